"""What the agent asked for, and what the engine is asked on top of it so that the call can be captured."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from .refusals import RefusedError
from .shape import Shape

DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a completion, read once."""

    shape: Shape
    raw: bytes
    upstream: bytes
    digest: bytes  # blake2b-64 of raw
    model: str
    stream: bool
    sees_logprobs: bool
    sees_token_ids: bool
    temperature: float
    top_p: float
    max_tokens: int | None


def parse(raw: bytes) -> dict[str, Any]:
    """The JSON object of a request body. Raises RefusedError; of equal keys the last counts, as in the engine."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RefusedError(400, f"the request body is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise RefusedError(400, f"the request body is a JSON {type(body).__name__}, expected an object")
    return body


def prepare(
    shape: Shape,
    raw: bytes,
    body: dict[str, Any],
    overrides: Mapping[str, Any],
    served_model: str,
    max_completion_tokens: int,
) -> Asked:
    """The request as the engine gets it. Raises RefusedError for what could not be captured."""
    shape.refuse_uncapturable(body)
    sent = dict(body)
    if "max_tokens" in overrides:
        sent.pop("max_completion_tokens", None)
    sent.update(overrides)
    max_tokens = _integer(sent, "max_completion_tokens")
    max_tokens = _integer(sent, "max_tokens") if max_tokens is None else max_tokens
    if max_tokens is not None and max_tokens > max_completion_tokens:
        raise RefusedError(
            400, f"max_tokens {max_tokens} is over the gateway's {max_completion_tokens}", param="max_tokens"
        )
    model = body.get("model")
    sent |= {"model": served_model, "return_token_ids": True}
    if not shape.wants_logprobs(body):
        sent |= shape.ask_logprobs
    return Asked(
        shape=shape,
        raw=raw,
        upstream=orjson.dumps(sent),
        digest=blake2b(raw, digest_size=DIGEST_BYTES).digest(),
        model=model if isinstance(model, str) and model else served_model,
        stream=body.get("stream") is True,
        sees_logprobs=shape.sees_logprobs(body),
        sees_token_ids=body.get("return_token_ids") is True,
        temperature=_number(sent, "temperature"),
        top_p=_number(sent, "top_p"),
        max_tokens=max_tokens,
    )


def _number(body: Mapping[str, Any], name: str) -> float:
    """1.0 where the client leaves it open: the engine runs with OpenAI's defaults (--generation-config vllm)."""
    value = body.get(name)
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RefusedError(400, f"{name} must be a number", param=name)
    return float(value)


def _integer(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not -1 < value < 1 << 31):
        raise RefusedError(400, f"{name} must be an integer from 0", param=name)
    return value
