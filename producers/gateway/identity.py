"""Where a call belongs: the path, the headers, or a session that the gateway opens."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from ...avro import named_id, new_id
from .refusals import RefusedError

# An id is part of keys, paths and file names further on.
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_AGENT_MAX = 128
_ATTEMPT = re.compile(r"[0-9]{1,7}")
_ATTEMPT_MAX = 1_000_000
_PATH = re.compile(
    r"/rollout/(?P<id>[^/]+)/attempt/(?P<attempt>[^/]+)"
    r"(?:/agent/(?P<agent>[^/]+))?(?:/set/(?P<set>[^/]+))?(?P<rest>/.*)"
)
# Ids of rollouts that are one call: they say so themselves, so that nobody has to remember them.
_SINGLE = "single-"
Number = int | float


@dataclass(frozen=True, slots=True)
class Identity:
    """A call's attempt. `known`: the client named it; else the gateway opened it, for this one call if `single`."""

    rollout_id: str
    attempt: int
    agent: str | None = None
    known: bool = True
    single: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """What a request path says: the route behind it, an attempt, sampling parameters that outrank the body's."""

    route: str
    identity: Identity | None = None
    overrides: Mapping[str, Number] = field(default_factory=dict)


def place(path: str) -> Place:
    """Read `/rollout/{id}/attempt/{n}[/agent/{name}][/set/{k=v,…}]/v1/…`; other paths are routes without an attempt."""
    if not path.startswith("/rollout/"):
        return Place(path)
    match = _PATH.fullmatch(path)
    if match is None:
        raise RefusedError(404, f"{path}: expected /rollout/ID/attempt/N[/agent/NAME][/set/K=V,…]/v1/…")
    agent = _check_agent(unquote(match["agent"])) if match["agent"] else None
    overrides = _overrides(unquote(match["set"])) if match["set"] else {}
    return Place(match["rest"], _named(unquote(match["id"]), match["attempt"], agent), overrides)


def identify(where: Place, headers: Mapping[str, str], body: Mapping[str, Any], scope: str) -> Identity:
    """The attempt of a call: by path, by headers, by session, else a rollout of its own.

    `scope` (the deployment's prefix) keeps the sessions of several deployments apart. Raises RefusedError.
    """
    agent = _check_agent(headers.get("x-leyden-agent"))
    if where.identity is not None:
        found = where.identity
        return found if found.agent or not agent else replace(found, agent=agent)
    if (rollout_id := headers.get("x-leyden-rollout")) is not None:
        return _named(rollout_id, headers.get("x-leyden-attempt", "1"), agent)
    if (session := _session(headers, body)) is not None:
        # Derived, not stored: every replica and every restart finds the same rollout.
        return Identity(named_id(f"{scope}\0session:{session}"), 1, agent, known=False)
    return Identity(_SINGLE + new_id(), 1, agent, known=False, single=True)


def is_single(rollout_id: str) -> bool:
    """The gateway made this rollout for one call: its start, its call and its end are written together."""
    return rollout_id.startswith(_SINGLE)


def check_id(rollout_id: str) -> str:
    """The id itself. Raises RefusedError for what cannot be one."""
    if not _ID.fullmatch(rollout_id):
        raise RefusedError(400, f"rollout id {rollout_id[:140]!r}: 1 to 128 of A-Z a-z 0-9 . _ : -", param="rollout")
    return rollout_id


def check_attempt(attempt: Any) -> int:
    """The attempt's number from 1. Raises RefusedError."""
    text = "" if isinstance(attempt, bool) else str(attempt)
    if not _ATTEMPT.fullmatch(text) or not 1 <= int(text) <= _ATTEMPT_MAX:
        raise RefusedError(400, f"attempt {attempt!r:.40}: an integer from 1 to {_ATTEMPT_MAX}", param="attempt")
    return int(text)


def _check_agent(agent: str | None) -> str | None:
    # What a header holds beyond UTF-8 is not printable either, and no record can take it.
    if agent is not None and not (1 <= len(agent) <= _AGENT_MAX and agent.isprintable()):
        raise RefusedError(400, f"an agent's name has 1 to {_AGENT_MAX} printable characters", param="agent")
    return agent


def _named(rollout_id: str, attempt: str, agent: str | None) -> Identity:
    if is_single(check_id(rollout_id)):
        raise RefusedError(410, f"rollout {rollout_id} was one call, which has ended", code="attempt_ended")
    return Identity(rollout_id, check_attempt(attempt), agent)


def _session(headers: Mapping[str, str], body: Mapping[str, Any]) -> str | None:
    """What names one conversation. Not OpenAI's `user`: a person has many, and they would make one endless rollout."""
    if session := headers.get("x-session-id"):
        return session
    metadata = body.get("metadata")
    session = metadata.get("session_id") if isinstance(metadata, dict) else None
    return session if isinstance(session, str) and session else None


def _overrides(text: str) -> dict[str, Number]:
    """Sampling parameters from `k=v[,k=v…]`: temperature, top_p, max_tokens, seed."""
    kinds: dict[str, type[Number]] = {"temperature": float, "top_p": float, "max_tokens": int, "seed": int}
    out: dict[str, Number] = {}
    for pair in text.split(","):
        name, _, value = pair.partition("=")
        if name not in kinds:
            raise RefusedError(400, f"set/{text[:200]}: {name!r} is none of {', '.join(kinds)}", param="set")
        try:
            number = kinds[name](value)
        except ValueError as error:
            raise RefusedError(400, f"set/{text[:200]}: {value!r} is no {kinds[name].__name__}", param="set") from error
        if not abs(number) < float("inf"):
            raise RefusedError(400, f"set/{text[:200]}: {value!r} is not finite", param="set")
        out[name] = number
    return out
