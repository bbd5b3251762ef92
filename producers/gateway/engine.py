"""The engine as the gateway's client: one request, asked again while nobody listens."""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

import orjson

from ...infra.settings import EngineSettings
from . import metrics
from .http_client import AnswerLostError, HttpClient, Response, UnreachableError
from .refusals import RefusedError

log = logging.getLogger(__name__)
VERSION_START, VERSION_END = "x-leyden-version-start", "x-leyden-version-end"
UNKNOWN_VERSION = -1
# Below the 5 s after which the engine's HTTP server closes an idle connection: else a call may meet the close.
_KEEPALIVE_S = 3.0
_CONNECT_S = 5.0
_RETRY_AFTER_S = 2
_ROUTE_TIMEOUT_S = 10.0


class Engine:
    """One vLLM, or a load balancer before several."""

    def __init__(self, settings: EngineSettings, wait_s: float, retry_s: float, read_timeout_s: float) -> None:
        self._wait_s, self._retry_s = wait_s, retry_s
        self._client = HttpClient(
            settings.url, connect_timeout_s=_CONNECT_S, read_timeout_s=read_timeout_s, keepalive_s=_KEEPALIVE_S
        )

    async def post(self, route: str, body: bytes) -> Response:
        """The head of the answer; reading it is the caller's, and closing it early aborts the call in the engine.

        While the engine refuses connections, or answers 503 (it restarts), nothing was generated: asked again until
        `engine_wait_s` have passed. Raises RefusedError then, AnswerLostError where a sent request was lost.
        """
        deadline = time.monotonic() + self._wait_s
        while True:
            try:
                response = await self._client.post(route, body)
                if response.status != 503:
                    return response
                async with response:
                    why = (await response.read())[:200].decode(errors="replace")
            except UnreachableError as error:
                why = str(error)
            if time.monotonic() >= deadline:
                raise RefusedError(
                    503, f"the engine is away: {why}", code="engine_unavailable", retry_after_s=_RETRY_AFTER_S
                )
            metrics.ENGINE_RETRIES.inc()
            await asyncio.sleep(self._retry_s)

    async def get(self, route: str) -> tuple[int, bytes, str]:
        """(status, body, content type) of a small route. Raises RefusedError where the engine is away."""
        try:
            async with asyncio.timeout(_ROUTE_TIMEOUT_S), await self._client.get(route) as response:
                return response.status, await response.read(), content_type(response)
        except (UnreachableError, AnswerLostError, TimeoutError) as error:
            raise RefusedError(
                503, f"the engine is away: {error}", code="engine_unavailable", retry_after_s=_RETRY_AFTER_S
            ) from error

    async def version(self) -> int | None:
        """The version that it says it serves; None where it has no such route."""
        status, body, _ = await self.get("/leyden/version")
        return int(orjson.loads(body)["version"]) if status == 200 else None

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()


def content_type(response: Response) -> str:
    """As the engine wrote it."""
    return response.headers.get("content-type", "application/octet-stream")


def version_in(headers: Mapping[str, Any], name: str) -> int:
    """A version from the engine's headers; -1 where it says nothing."""
    try:
        return int(headers[name])
    except (KeyError, ValueError):
        return UNKNOWN_VERSION
