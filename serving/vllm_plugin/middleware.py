"""The server's half of a hot reload: its route, and the version of the weights on every answer."""

import hmac
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from .checkpoint_files import BadCheckpointError
from .reload import BrokenEngineError, EngineVersion, ReloadInProgressError, times_as_dict

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

TOKEN_VARIABLE = "LEYDEN_ENGINE__RELOAD_TOKEN"
MAX_REQUEST_BYTES = 65_536
DONE = b"data: [DONE]"


class LeydenMiddleware:
    """`--middleware`: `POST /leyden/reload`, `GET /leyden/version`, and the versions on every answer under /v1.

    Header `x-leyden-version-start` is the version when the request came. The version when the answer was complete is
    header `x-leyden-version-end` of a plain answer; in a stream it is the comment `: leyden-version-end N` before
    `data: [DONE]`. A call with start < end spans a reload. Everything else, client disconnects included, passes as is.
    """

    def __init__(self, app: App, versions: EngineVersion | None = None) -> None:
        self._app = app
        self._versions = versions or EngineVersion()
        self._token = os.environ.get(TOKEN_VARIABLE, "")

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"] == "/leyden/version":
            await _answer(send, 200, self._versions.status())
        elif scope["path"] == "/leyden/reload":
            await _answer(send, *await self._reload(scope, receive))
        elif scope["path"].startswith("/v1"):
            if self._versions.broken:
                await _answer(send, 503, {"error": {"message": self._versions.error, "type": "engine_restarting"}})
            else:
                await self._app(scope, receive, stamped(send, lambda: self._versions.version))
        else:
            await self._app(scope, receive, send)

    async def _reload(self, scope: MutableMapping[str, Any], receive: Receive) -> tuple[int, dict[str, Any]]:
        if scope["method"] != "POST":
            return 405, {"error": "POST it"}
        if not self._token:
            return 403, {"error": f"the engine was started without {TOKEN_VARIABLE}: reloading is off"}
        given = dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            return 401, {"error": f"the bearer token is not the engine's {TOKEN_VARIABLE}"}
        try:
            version, path = parse_request(await _body(receive))
        except ValueError as error:
            return 400, {"error": str(error)}
        try:
            times = await self._versions.reload(scope["app"].state.engine_client, version, path)
        except BadCheckpointError as error:
            return 422, self._versions.status() | {"error": str(error)}
        except ReloadInProgressError as error:
            return 409, self._versions.status() | {"error": str(error)}
        except BrokenEngineError as error:
            return 500, self._versions.status() | {"error": str(error)}
        return 200, self._versions.status() | times_as_dict(times)


def parse_request(body: bytes) -> tuple[int, str]:
    """(version, path) of a reload request. Raises ValueError with what is wrong."""
    try:
        request = json.loads(body)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    version = request.get("version") if isinstance(request, dict) else None
    path = request.get("path") if isinstance(request, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 0 or not isinstance(path, str):
        raise ValueError('expected {"version": integer from 0, "path": folder on this machine}')
    if not Path(path).is_dir():
        raise ValueError(f"{path} is no folder on the engine's machine")
    return version, path


def stamped(send: Send, version: Callable[[], int]) -> Send:
    """`send` that adds the versions to one answer; the version at its start is the one now."""
    start, streams = version(), False

    async def stamping_send(message: Message) -> None:
        nonlocal streams
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", []))
            streams = any(k.lower() == b"content-type" and v.startswith(b"text/event-stream") for k, v in headers)
            headers.append((b"x-leyden-version-start", str(start).encode()))
            if not streams:
                # vLLM sends the head of a plain answer when the whole answer is there.
                headers.append((b"x-leyden-version-end", str(version()).encode()))
            message = {**message, "headers": headers}
        elif streams and DONE in (body := message.get("body", b"")):
            message = {**message, "body": with_version_end(body, version())}
        await send(message)

    return stamping_send


def with_version_end(body: bytes, version: int) -> bytes:
    """A piece of an event stream with the comment before its `data: [DONE]`; unchanged where it only quotes one."""
    # Inside of an event's JSON a line end is escaped, so only the real one stands at the start of a line.
    at = 0 if body.startswith(DONE) else body.find(b"\n" + DONE) + 1
    if not body.startswith(DONE, at):
        return body
    return body[:at] + f": leyden-version-end {version}\n\n".encode() + body[at:]


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ValueError("the client went away")
        body += message.get("body", b"")
        if len(body) > MAX_REQUEST_BYTES:
            raise ValueError(f"more than {MAX_REQUEST_BYTES} bytes")
        if not message.get("more_body"):
            return body


async def _answer(send: Send, status: int, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
