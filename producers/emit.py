"""emit: rewards and notes of the running rollout, sent through the gateway; agents hold no Kafka credentials."""

import math
import os
import time
import traceback
import urllib.error
import urllib.request
from typing import Any

import orjson

from ..avro.errors import LeydenError
from .identity import API_KEY, GATEWAY, Identity, NoRolloutError, current

KINDS = ("reward", "message", "object", "annotation", "exception")
# How often a gateway that is away or full is asked again; it says 503 while its disk spool is full.
RETRY_S = 0.25


class EmitError(LeydenError):
    """The gateway refused, or was away for as long as `timeout_s`; the message says which and why."""


def emit(
    *,
    reward: float | None = None,
    message: str | None = None,
    object: Any = None,
    annotation: dict[str, Any] | None = None,
    exception: BaseException | None = None,
    name: str = "",
    source: str = "agent",
    key: str | None = None,
    call_id: str | None = None,
    token_span: tuple[int, int] | None = None,
    rollout_id: str | None = None,
    attempt: int | None = None,
    timeout_s: float = 30.0,
) -> None:
    """Put exactly one of `reward`, `message`, `object`, `annotation`, `exception` into the rollout's log.

    Returns when Kafka has it. Works in the agent, its threads and its subprocesses; elsewhere (a user's verdict that
    comes days later) name the `rollout_id`, with LEYDEN_GATEWAY_URL set. A reward with the `key` of an earlier one
    replaces it (default: one a rollout, which the agent's return value replaces, and one a call where `call_id` is
    given); rewards of different keys add up. `token_span` is a half-open range of the named call's completion tokens.
    Raises EmitError, NoRolloutError, or ValueError.
    """
    values = {
        "reward": reward,
        "message": message,
        "object": object,
        "annotation": annotation,
        "exception": exception,
    }
    given = [kind for kind in KINDS if values[kind] is not None]
    if len(given) != 1:
        raise ValueError(f"emit takes exactly one of {', '.join(KINDS)}; got {', '.join(given) or 'none'}")
    to = _target(rollout_id, attempt)
    body: dict[str, Any] = {"call_id": call_id} if call_id else {}
    if rollout_id is None or attempt is not None:
        body["attempt"] = to.attempt
    if reward is not None:
        body |= reward_body(reward, source, key or (f"call:{call_id}" if call_id else "reward"), token_span)
        path = "rewards"
    else:
        body |= {"kind": given[0], "name": name, "content": note_content(given[0], values[given[0]])}
        path = "notes"
    post(to, f"/v1/rollouts/{to.rollout_id}/{path}", body, timeout_s)


def reward_body(value: float, source: str, key: str, token_span: tuple[int, int] | None) -> dict[str, Any]:
    """The gateway's fields of a reward. Raises ValueError for what is no finite number."""
    value = float(value)
    if not math.isfinite(value):
        raise ValueError(f"a reward is a finite number, not {value}")
    span = {"token_span": list(token_span)} if token_span is not None else {}
    return {"value": value, "source": source, "key": key} | span


def note_content(kind: str, value: Any) -> Any:
    """What is kept of a note, as JSON values. Raises ValueError for an object that JSON cannot say."""
    if kind == "exception":
        return {
            "type": type(value).__name__,
            "message": str(value),
            "traceback": "".join(traceback.format_exception(value)),
        }
    try:
        return orjson.loads(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))
    except orjson.JSONEncodeError as error:
        raise ValueError(f"the {kind} is not JSON: {error}") from error


def post(to: Identity, path: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """POST to the gateway; asks again while it is away or says 503, until `timeout_s`. Raises EmitError."""
    request = urllib.request.Request(
        to.gateway_url.rstrip("/") + path,
        data=orjson.dumps(body),
        headers={"Content-Type": "application/json"}
        | ({"Authorization": f"Bearer {to.api_key}"} if to.api_key else {}),
    )
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with urllib.request.urlopen(request, timeout=max(0.1, deadline - time.monotonic())) as response:
                return orjson.loads(response.read() or b"{}")
        except urllib.error.HTTPError as error:
            reason = f"HTTP {error.code}: {error.read()[:500].decode(errors='replace')}"
            if error.code != 503:
                raise EmitError(f"{path}: {reason}") from error
        except (OSError, orjson.JSONDecodeError) as error:
            reason = str(error)
        if time.monotonic() + RETRY_S > deadline:
            raise EmitError(f"{path}: the gateway at {to.gateway_url} did not take it within {timeout_s} s: {reason}")
        time.sleep(RETRY_S)


def _target(rollout_id: str | None, attempt: int | None) -> Identity:
    own = current()
    if rollout_id is None:
        if own is None:
            raise NoRolloutError("emit was called outside of a rollout: name the rollout_id, or run under a runner")
        return own if attempt is None else Identity(own.rollout_id, attempt, own.gateway_url, own.api_key)
    gateway = own.gateway_url if own else os.environ.get(GATEWAY, "")
    if not gateway:
        raise NoRolloutError(f"emit does not know the gateway: set {GATEWAY}")
    return Identity(rollout_id, attempt or 1, gateway, own.api_key if own else os.environ.get(API_KEY, ""))
