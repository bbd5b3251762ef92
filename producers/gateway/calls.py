"""A completion on its way: agent, engine, Kafka, agent."""

import asyncio
import logging
import time

import orjson

from ...avro import new_id, now_us
from . import events, metrics
from .attempts import Attempts
from .capture import NOTHING, Captured, CaptureError, capture_plain
from .dialect import ChunkTranslator, Route
from .engine import UNKNOWN_VERSION, VERSION_END, VERSION_START, Engine, content_type, version_in
from .event_log import EventLog, NotSafeError
from .events import Call
from .exchange import Answer, Exchange
from .http_client import AnswerLostError, Response
from .identity import Identity, Place, identify
from .refusals import RefusedError, error_body, error_event
from .request import parse, prepare
from .settings import GatewaySettings
from .stream_capture import StreamCapture

log = logging.getLogger(__name__)
_RETRY_AFTER_S = 5
_LOST = (AnswerLostError, CaptureError)
_EVENT_STREAM = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
_OUTCOME = {"completed": "succeeded", "failed": "failed", "abandoned": "cancelled"}


class Calls:
    """Order of every call: the attempt's start is sent, the engine answers, the call's event is made safe, and only
    then may the agent go on: it gets the plain answer, or the end of the stream from `finish_reason` on."""

    def __init__(self, settings: GatewaySettings, engine: Engine, event_log: EventLog, attempts: Attempts) -> None:
        self._settings, self._engine, self._log, self._attempts = settings, engine, event_log, attempts

    async def answer(self, exchange: Exchange, where: Place, route: Route) -> Answer | None:
        """Answer one completion; None where it was streamed. Raises RefusedError before the engine is asked."""
        began = time.monotonic()
        call = await self._read(exchange, where, route)
        key = (call.identity.rollout_id, call.identity.attempt)
        if self._log.full and self._settings.on_spool_full == "refuse":
            raise RefusedError(
                503, "Kafka is away and the spool is full", code="spool_full", retry_after_s=_RETRY_AFTER_S
            )
        first = self._attempts.begin(key)
        metrics.IN_FLIGHT.inc()
        recorded = False  # the call's event is sent or will be; it reports the end of the call
        try:
            if first:
                self._log.submit(events.started(call.identity, call.policy)).add_done_callback(_heed)
            upstream = await self._engine.post(call.asked.shape.route, call.asked.upstream)
            recorded = True
            call.version_start = version_in(upstream.headers, VERSION_START)
            call.http_status = upstream.status
            async with upstream:
                answer = self._stream if call.asked.stream and upstream.status == 200 else self._plain
                return await answer(exchange, call, upstream)
        except asyncio.CancelledError:
            if not recorded:
                self._record(call, "abandoned")
                recorded = True
            raise
        except AnswerLostError as error:
            # Sent, and no answer: what the engine did is unknown, so only the agent may decide to ask again.
            recorded = True
            return await self._lost(call, NOTHING, error)
        finally:
            metrics.IN_FLIGHT.dec()
            metrics.CALL_SECONDS.observe(time.monotonic() - began)
            if not recorded:
                self._attempts.finish(key, safe=False)

    async def _read(self, exchange: Exchange, where: Place, route: Route) -> Call:
        raw = await exchange.read()
        body = parse(raw)
        identity = identify(where, exchange.headers, body, self._settings.prefix)
        settings = self._settings
        chat = route.dialect.request(body)
        if chat is not body:
            # Calls of all dialects are kept in one form, that of the engine's answers.
            raw = orjson.dumps(chat)
        asked = prepare(route.shape, raw, chat, where.overrides, settings.engine.model, settings.max_completion_tokens)
        retry_count = exchange.headers.get("x-stainless-retry-count", "0")
        return Call(
            identity=identity,
            asked=asked,
            dialect=route.dialect,
            body=body,
            policy=settings.policy,
            route=where.route,
            retry_count=int(retry_count) if retry_count.isascii() and retry_count.isdigit() else 0,
            call_id=new_id(),
            started_us=now_us(),
        )

    async def _plain(self, exchange: Exchange, call: Call, upstream: Response) -> Answer:
        try:
            payload = await upstream.read()
        except asyncio.CancelledError:
            self._record(call, "abandoned")
            raise
        except _LOST as error:
            return await self._lost(call, NOTHING, error)
        if upstream.status != 200:
            return await self._engine_refused(call, upstream, payload)
        call.version_end = version_in(upstream.headers, VERSION_END)
        try:
            captured = capture_plain(payload, call.asked)
        except CaptureError as error:
            return await self._lost(call, NOTHING, error)
        await self._safely(call, "completed", captured)
        return Answer(200, call.dialect.answer(captured.response, call.body), _headers(call))

    async def _stream(self, exchange: Exchange, call: Call, upstream: Response) -> None:
        capture, translator = StreamCapture(call.asked), call.dialect.stream(call.body)
        problem: Exception | str | None = None
        try:
            await exchange.begin(200, _headers(call) | _EVENT_STREAM)
            async for data in upstream.pieces():
                if passed := translator.feed(capture.feed(data)):
                    await exchange.write(passed)
            problem = capture.error
        except asyncio.CancelledError:
            # Leaving closes the connection to the engine, which aborts the call there.
            self._note(call, capture)
            self._record(call, "abandoned", capture.captured())
            raise
        except _LOST as error:
            problem = error
        self._note(call, capture)
        captured = capture.captured()
        try:
            if problem is None and not capture.complete:
                problem = "the engine's stream ended without its end, or without token ids"
            if problem is None:
                await self._safely(call, "completed", captured)
        except RefusedError as error:
            problem = error
        if problem is not None:
            await self._broken_off(exchange, call, capture, translator, problem)
        else:
            await exchange.end(translator.feed(capture.held))

    async def _broken_off(
        self,
        exchange: Exchange,
        call: Call,
        capture: StreamCapture,
        translator: ChunkTranslator,
        problem: Exception | str,
    ) -> None:
        """Never a clean end: the engine's own error event, or ours and then a closed connection."""
        if not isinstance(problem, RefusedError):  # which is: the event of a whole answer could not be made safe
            await asyncio.wait([self._record(call, "failed", capture.captured(), str(problem) or repr(problem))])
        if capture.error is not None and problem == capture.error:
            await exchange.end(translator.feed(capture.held))
            return
        log.warning("call %s broke off: %s", call.call_id, problem)
        await exchange.write(translator.feed(error_event(f"the answer broke off: {problem}", "upstream_broke_off")))

    def _note(self, call: Call, capture: StreamCapture) -> None:
        call.first_token_us = capture.first_token_us
        call.version_end = UNKNOWN_VERSION if capture.version_end is None else capture.version_end

    async def _engine_refused(self, call: Call, upstream: Response, payload: bytes) -> Answer:
        """The engine's own error, word for word."""
        call.version_end = call.version_start
        await self._safely(call, "failed", NOTHING, payload[:2000].decode(errors="replace"))
        headers = _headers(call) | {k: v for k in ("retry-after",) if (v := upstream.headers.get(k))}
        return Answer(upstream.status, call.dialect.error(upstream.status, payload), headers, content_type(upstream))

    async def _lost(self, call: Call, captured: Captured, error: Exception) -> Answer:
        log.warning("call %s failed: %r", call.call_id, error)
        await self._safely(call, "failed", captured, str(error) or repr(error))
        body = error_body(502, f"the engine's answer was lost: {error}", code="upstream_broke_off")
        return Answer(502, call.dialect.error(502, body), _headers(call))

    async def _safely(self, call: Call, status: str, captured: Captured, error: str | None = None) -> None:
        """Record and wait. Raises RefusedError (503) where the event is not safe, unless the policy is to go on."""
        try:
            await asyncio.shield(self._record(call, status, captured, error))
        except NotSafeError as problem:
            if self._settings.on_spool_full == "serve_uncaptured":
                metrics.EVENTS_LOST.labels("serve_uncaptured").inc()
                return
            raise RefusedError(503, str(problem), code="not_captured", retry_after_s=_RETRY_AFTER_S) from problem

    def _record(
        self, call: Call, status: str, captured: Captured = NOTHING, error: str | None = None
    ) -> asyncio.Future[None]:
        """Send the call's event; the call counts as finished when that is in Kafka, whatever became of the agent."""
        identity = call.identity
        safe = self._log.submit(call.event(status, captured, error))
        safe.add_done_callback(lambda done: self._finished(identity, done))
        if identity.single:
            end = events.ended(identity.rollout_id, identity.attempt, _OUTCOME[status], n_calls=1)
            self._log.submit(end).add_done_callback(_heed)
        metrics.CALLS.labels(status).inc()
        metrics.TOKENS.labels("prompt").inc(len(captured.prompt_ids) // 4)
        metrics.TOKENS.labels("completion").inc(len(captured.completion_ids) // 4)
        return safe

    def _finished(self, identity: Identity, done: asyncio.Future[None]) -> None:
        self._attempts.finish((identity.rollout_id, identity.attempt), safe=done.exception() is None)


def _heed(done: asyncio.Future[None]) -> None:
    """What failed was logged and counted where it failed."""
    done.exception()


def _headers(call: Call) -> dict[str, str]:
    return {
        "x-leyden-rollout": call.identity.rollout_id,
        "x-leyden-attempt": str(call.identity.attempt),
        "x-leyden-call": call.call_id,
    }
