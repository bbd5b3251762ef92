"""The listening socket: uvicorn's HTTP connections, with bounds on a request's head and on the time it may take."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from .exchange import HANDLERS
from .refusals import error_body

App = Callable[[Any, Any, Any], Awaitable[None]]

MAX_HEAD_BYTES = 64 << 10
# Of one request, from its first byte to its last; a body of megabytes over a slow line takes some.
MAX_REQUEST_S = 60.0
_KEEPALIVE_S = 75
_LOOK_S = 5.0


class BoundedConnection(HttpToolsProtocol):
    """Closes a connection whose request has too large a head or does not end; cancels who answers on a lost one."""

    reading_since: float | None = None  # the first byte of a request that is not whole yet
    _head_bytes = 0
    _in_head = False

    def data_received(self, data: bytes) -> None:
        """As uvicorn does; then what is left of an unfinished head is counted."""
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.refuse(431, f"the head of the request is larger than {MAX_HEAD_BYTES} bytes")

    def connection_lost(self, exc: Exception | None) -> None:
        """The client left, or was left."""
        super().connection_lost(exc)
        for task in list(self.app_state[HANDLERS]):
            task.cancel()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_head, self._head_bytes = True, 0
        self.reading_since = self.loop.time()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its head is whole."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """It is whole."""
        self.reading_since = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP; OpenAI-shaped."""
        self.refuse(400, msg)

    def refuse(self, status: int, why: str) -> None:
        """Answer where nothing was answered yet, and close."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = error_body(status, why)
            head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()


class Listener:
    """Serves `app` (ASGI) until closed."""

    def __init__(self, app: App) -> None:
        # Its errors are ours to log, or a stream that is broken off on purpose.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self._config = Config(
            app,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEPALIVE_S,
        )
        self._config.load()
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._watch: asyncio.Task[None] | None = None

    async def open(self, host: str, port: int) -> None:
        """Raises OSError where the address is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, host, port, backlog=1024)
        self._watch = loop.create_task(self._end_slow_requests())

    def _connection(self) -> BoundedConnection:
        return BoundedConnection(self._config, self._state, {HANDLERS: set()}, asyncio.get_running_loop())

    async def _end_slow_requests(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LOOK_S)
            for connection in list(self._state.connections):
                since = getattr(connection, "reading_since", None)
                if since is not None and loop.time() - since > MAX_REQUEST_S:
                    assert isinstance(connection, BoundedConnection)
                    connection.refuse(408, f"the request was not whole after {MAX_REQUEST_S:g} s")

    def stop_listening(self) -> None:
        """Take no new connections; those there are go on."""
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """End what is left."""
        if self._watch is not None:
            self._watch.cancel()
        for task in list(self._state.tasks):
            task.cancel()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=1.0)
        for connection in list(self._state.connections):
            connection.transport.abort()
