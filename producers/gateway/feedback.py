"""Rewards, notes and ends that agents and production systems report over HTTP."""

import asyncio
import math
from typing import Any

import orjson

from ...avro import Note, Reward, new_id
from ...avro.records import Body, TokenSpan
from . import events
from .attempts import Attempts
from .event_log import EventLog, NotSafeError
from .exchange import Answer, Exchange
from .identity import check_attempt, check_id
from .refusals import RefusedError
from .request import parse

_TEXT_MAX = 256
_KINDS = ("message", "object", "annotation", "exception")
_STATUSES = ("succeeded", "failed", "timeout", "cancelled")
_END_TIMEOUT_S = 5.0
_SETTLE_MAX_S = 600.0
_RETRY_AFTER_S = 5


class Feedback:
    """Each route answers 200 when its event is safe, as calls do."""

    def __init__(self, event_log: EventLog, attempts: Attempts, max_bytes: int) -> None:
        self._log, self._attempts, self._max_bytes = event_log, attempts, max_bytes

    async def reward(self, exchange: Exchange, rollout_id: str) -> Answer:
        """`{attempt?, value, source?, key?, call_id?, token_span?: [a, b]}`."""
        body = await self._read(exchange)
        return await self._write(rollout_id, body, read_reward(body))

    async def note(self, exchange: Exchange, rollout_id: str) -> Answer:
        """`{attempt?, kind, name, content, call_id?}`; content is any JSON."""
        body = await self._read(exchange)
        return await self._write(rollout_id, body, read_note(body))

    async def end(self, exchange: Exchange, rollout_id: str) -> Answer:
        """`{attempt?, status, error?}`: the attempt takes no more calls; for agents that no runner runs."""
        body = await self._read(exchange)
        status = _choice(body, "status", _STATUSES)
        error = _text(body, "error", None, limit=10_000)
        attempt = self._attempt(rollout_id, body)
        n_calls = await self._settled(rollout_id, attempt, _END_TIMEOUT_S)
        return await self._submit(events.ended(check_id(rollout_id), attempt, status or "", n_calls, error))

    async def settle(self, exchange: Exchange, rollout_id: str, attempt: str) -> Answer:
        """`{timeout_s}` to `{"n_calls": int | null}`: no more calls, and those there were are in Kafka.

        null: not known, because calls were still under way after timeout_s or other gateways or an earlier life of this
        one served the attempt.
        """
        body = await self._read(exchange)
        timeout_s = body.get("timeout_s", 10.0)
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 <= timeout_s <= _SETTLE_MAX_S:
            raise RefusedError(400, f"timeout_s: a number from 0 to {_SETTLE_MAX_S}", param="timeout_s")
        n_calls = await self._settled(check_id(rollout_id), check_attempt(attempt), float(timeout_s))
        return Answer(200, orjson.dumps({"n_calls": n_calls}))

    async def _settled(self, rollout_id: str, attempt: int, timeout_s: float) -> int | None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        key = (rollout_id, attempt)
        whole = await self._attempts.settle(key, timeout_s)
        whole = await self._log.drained(max(0.0, deadline - loop.time())) and whole
        return self._attempts.n_calls(key) if whole else None

    async def _read(self, exchange: Exchange) -> dict[str, Any]:
        raw = await exchange.read()
        if len(raw) > self._max_bytes:
            raise RefusedError(413, f"{len(raw)} bytes; at most {self._max_bytes} fit one record")
        return parse(raw) if raw else {}

    def _attempt(self, rollout_id: str, body: dict[str, Any]) -> int:
        attempt = body.get("attempt")
        return self._attempts.newest(rollout_id) if attempt is None else check_attempt(attempt)

    async def _write(self, rollout_id: str, body: dict[str, Any], record: Body) -> Answer:
        return await self._submit(events.event(check_id(rollout_id), self._attempt(rollout_id, body), record))

    async def _submit(self, event: events.Event) -> Answer:
        if self._log.full:
            raise RefusedError(503, "Kafka is away and the spool is full", retry_after_s=_RETRY_AFTER_S)
        try:
            await asyncio.shield(self._log.submit(event))
        except NotSafeError as problem:
            raise RefusedError(503, str(problem), retry_after_s=_RETRY_AFTER_S) from problem
        return Answer(200, orjson.dumps({"event_id": event.event_id, "attempt": event.attempt}))


def read_reward(body: dict[str, Any]) -> Reward:
    """A reward from JSON. Without a key each report replaces the earlier one of its source (call, span)."""
    value = body.get("value")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RefusedError(400, f"value {value!r}: a finite number", param="value")
    source = _text(body, "source", "user") or "user"
    call_id = _text(body, "call_id", None)
    span = _span(body.get("token_span"), call_id)
    parts = [source, call_id, f"{span.start}-{span.end}" if span else None]
    key = _text(body, "key", None) or ":".join(part for part in parts if part)
    return Reward(float(value), source, key, call_id, span)


def read_note(body: dict[str, Any]) -> Note:
    """A note from JSON."""
    kind = _choice(body, "kind", _KINDS)
    name = _text(body, "name", None) or new_id()
    return Note(kind, name, orjson.dumps(body.get("content")), _text(body, "call_id", None))


def _span(value: Any, call_id: str | None) -> TokenSpan | None:
    if value is None:
        return None
    whole = isinstance(value, list) and len(value) == 2 and all(type(edge) is int for edge in value)
    if not whole or not 0 <= value[0] < value[1] < 1 << 31:
        raise RefusedError(400, "token_span: [start, end] with 0 <= start < end", param="token_span")
    if call_id is None:
        raise RefusedError(400, "token_span: of which call? call_id is missing", param="call_id")
    return TokenSpan(value[0], value[1])


def _text(body: dict[str, Any], name: str, default: str | None, limit: int = _TEXT_MAX) -> str | None:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, str) or not 0 < len(value) <= limit:
        raise RefusedError(400, f"{name}: a text of 1 to {limit} characters", param=name)
    return value


def _choice(body: dict[str, Any], name: str, allowed: tuple[str, ...]) -> str:
    value = body.get(name)
    if value not in allowed:
        raise RefusedError(400, f"{name} {value!r}: one of {', '.join(allowed)}", param=name)
    return str(value)
