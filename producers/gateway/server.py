"""Which request goes where, and errors in the shape that OpenAI clients understand."""

import asyncio
import logging
import re
from collections.abc import Callable

import orjson
from aiohttp import web
from aiohttp.web_exceptions import HTTPRequestEntityTooLarge

from . import metrics
from .calls import Calls
from .chat import Chat
from .completion import Completion
from .engine import Engine
from .feedback import Feedback
from .identity import place
from .refusals import RefusedError, error_body
from .settings import GatewaySettings
from .shape import Shape

log = logging.getLogger(__name__)
_ROLLOUT = re.compile(r"/v1/rollouts/(?P<id>[^/]+)/(?P<what>rewards|notes|end)")
_SETTLE = re.compile(r"/v1/rollouts/(?P<id>[^/]+)/attempts/(?P<attempt>[^/]+)/settle")
_POLICY = re.compile(r"/v1/policies/(?P<policy>[^/]+)")
_JSON = "application/json"
_SHAPES: dict[str, Shape] = {shape.route: shape for shape in (Chat(), Completion())}


class Gateway:
    """The handler of all requests."""

    def __init__(self, settings: GatewaySettings, calls: Calls, feedback: Feedback, engine: Engine) -> None:
        self._settings, self._calls, self._feedback, self._engine = settings, calls, feedback, engine
        self._n_open = 0
        self._idle = asyncio.Event()
        self.stopping = False

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; every error is OpenAI-shaped."""
        self._n_open += 1
        try:
            if self.stopping:
                raise RefusedError(503, "the gateway is stopping", code="stopping", retry_after_s=1)
            return await self._route(request)
        except RefusedError as refused:
            metrics.REFUSED.labels(str(refused.status)).inc()
            return _answer(refused.status, refused.body, refused.headers)
        except HTTPRequestEntityTooLarge:
            metrics.REFUSED.labels("413").inc()
            return _answer(
                413, error_body(413, f"the request is larger than {self._settings.max_body_bytes} bytes"), {}
            )
        except Exception:
            log.exception("%s %s", request.method, request.path)
            metrics.REFUSED.labels("500").inc()
            return _answer(500, error_body(500, "internal error of the gateway; its log says more"), {})
        finally:
            self._n_open -= 1
            if self._n_open == 0:
                self._idle.set()

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

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        where = place(request.path)
        if (shape := _SHAPES.get(where.route)) is not None:
            _only(request, "POST")
            return await self._calls.answer(request, where, shape)
        if where.route == "/v1/models" or where.route.startswith("/v1/models/"):
            _only(request, "GET")
            status, body, content_type = await self._engine.get(where.route)
            return web.Response(status=status, body=body, content_type=content_type)
        if match := _ROLLOUT.fullmatch(where.route):
            _only(request, "POST")
            routes: dict[str, Callable] = {
                "rewards": self._feedback.reward,
                "notes": self._feedback.note,
                "end": self._feedback.end,
            }
            return await routes[match["what"]](request, match["id"])
        if match := _SETTLE.fullmatch(where.route):
            _only(request, "POST")
            return await self._feedback.settle(request, match["id"], match["attempt"])
        if match := _POLICY.fullmatch(where.route):
            _only(request, "GET")
            return await self._policy(match["policy"])
        raise RefusedError(
            404, f"{request.method} {where.route}: not captured here; use {' or '.join(_SHAPES)}", code="unknown_url"
        )

    async def _policy(self, policy: str) -> web.Response:
        if policy != self._settings.policy:
            raise RefusedError(404, f"policy {policy!r} is not served here, {self._settings.policy!r} is")
        body = orjson.dumps({"policy": policy, "version": await self._engine.version()})
        return web.Response(body=body, content_type=_JSON)


def _only(request: web.BaseRequest, method: str) -> None:
    if request.method != method:
        raise RefusedError(405, f"{request.path}: {method} it")


def _answer(status: int, body: bytes, headers: dict[str, str]) -> web.Response:
    return web.Response(status=status, body=body, content_type=_JSON, headers=headers)
