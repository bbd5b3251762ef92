"""Which request goes where, and errors in the shape that OpenAI clients understand."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import unquote

import orjson

from . import metrics
from .calls import Calls
from .chat import Chat
from .completion import Completion
from .dialect import Native, Route
from .engine import Engine
from .exchange import Answer, Exchange, Receive, Send
from .feedback import Feedback
from .identity import place
from .messages import Messages
from .refusals import RefusedError, error_body
from .responses import Responses
from .settings import GatewaySettings

log = logging.getLogger(__name__)
_ROLLOUT = re.compile(r"/v1/rollouts/(?P<id>[^/]+)/(?P<what>rewards|notes|end)")
_SETTLE = re.compile(r"/v1/rollouts/(?P<id>[^/]+)/attempts/(?P<attempt>[^/]+)/settle")
_POLICY = re.compile(r"/v1/policies/(?P<policy>[^/]+)")
_CHAT, _COMPLETION = Chat(), Completion()
_CAPTURED = {
    route.dialect.route: route
    for route in (
        Route(Native(_CHAT.route), _CHAT),
        Route(Native(_COMPLETION.route), _COMPLETION),
        Route(Responses(), _CHAT),
        Route(Messages(), _CHAT),
    )
}


class Gateway:
    """The handler of all requests, an ASGI application."""

    def __init__(self, settings: GatewaySettings, calls: Calls, feedback: Feedback, engine: Engine) -> None:
        self._settings, self._calls, self._feedback, self._engine = settings, calls, feedback, engine
        self._n_open = 0
        self._idle = asyncio.Event()
        self.stopping = False

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request; every error is OpenAI-shaped."""
        self._n_open += 1
        exchange = Exchange(scope, receive, send, self._settings.max_body_bytes)
        try:
            if (answer := await self._answer(exchange)) is not None:
                await exchange.answer(answer)
        finally:
            exchange.close()
            self._n_open -= 1
            if self._n_open == 0:
                self._idle.set()

    async def _answer(self, exchange: Exchange) -> Answer | None:
        """None where a stream was written."""
        try:
            if self.stopping:
                raise RefusedError(503, "the gateway is stopping", code="stopping", retry_after_s=1)
            return await self._route(exchange)
        except RefusedError as refused:
            metrics.REFUSED.labels(str(refused.status)).inc()
            return Answer(refused.status, refused.body, refused.headers)
        except Exception:
            log.exception("%s %s", exchange.method, exchange.path)
            metrics.REFUSED.labels("500").inc()
            return Answer(500, error_body(500, "internal error of the gateway; its log says more"))

    async def finish(self, timeout_s: float) -> bool:
        """Take no more requests and wait for those under way; False where some are left after `timeout_s`."""
        self.stopping = True
        try:
            async with asyncio.timeout(timeout_s):
                while self._n_open:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _route(self, exchange: Exchange) -> Answer | None:
        where = place(exchange.path)
        if (route := _CAPTURED.get(where.route)) is not None:
            try:
                _only(exchange, "POST")
                return await self._calls.answer(exchange, where, route)
            except RefusedError as refused:
                refused.body = route.dialect.error(refused.status, refused.body)
                raise
        if where.route == "/v1/models" or where.route.startswith("/v1/models/"):
            _only(exchange, "GET")
            status, body, content_type = await self._engine.get(where.route)
            return Answer(status, body, content_type=content_type)
        if match := _ROLLOUT.fullmatch(where.route):
            _only(exchange, "POST")
            routes: dict[str, Callable[[Exchange, str], Awaitable[Answer]]] = {
                "rewards": self._feedback.reward,
                "notes": self._feedback.note,
                "end": self._feedback.end,
            }
            return await routes[match["what"]](exchange, unquote(match["id"]))
        if match := _SETTLE.fullmatch(where.route):
            _only(exchange, "POST")
            return await self._feedback.settle(exchange, unquote(match["id"]), match["attempt"])
        if match := _POLICY.fullmatch(where.route):
            _only(exchange, "GET")
            return await self._policy(unquote(match["policy"]))
        raise RefusedError(
            404, f"{exchange.method} {where.route}: not captured here; use {' or '.join(_CAPTURED)}", code="unknown_url"
        )

    async def _policy(self, policy: str) -> Answer:
        if policy != self._settings.policy:
            raise RefusedError(404, f"policy {policy!r} is not served here, {self._settings.policy!r} is")
        body = orjson.dumps({"policy": policy, "version": await self._engine.version()})
        return Answer(200, body)


def _only(exchange: Exchange, method: str) -> None:
    if exchange.method != method:
        raise RefusedError(405, f"{exchange.path}: {method} it")
