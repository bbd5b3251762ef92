"""Requests to one HTTP server over kept connections. A general client costs the gateway more than all its own work."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urlsplit

from ...infra.errors import LeydenError
from .http_connection import AnswerLostError, Connection

__all__ = ["AnswerLostError", "HttpClient", "Response", "UnreachableError"]


class UnreachableError(LeydenError):
    """Nobody accepts a connection: nothing was sent."""


class Response:
    """An answer whose head is here. Leaving its `async with` before the end of the body closes the connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.status: int = connection.status
        self.headers: Mapping[str, str] = connection.headers  # names in lower case

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises AnswerLostError."""
        while (piece := await self._connection.next_piece()) is not None:
            yield piece

    async def read(self) -> bytes:
        """The whole body. Raises AnswerLostError."""
        return b"".join([piece async for piece in self.pieces()])

    async def __aenter__(self) -> "Response":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connection.release()


class HttpClient:
    """For the server of `url`. Used from one event loop; not more than one request waits on a connection."""

    def __init__(self, url: str, *, connect_timeout_s: float, read_timeout_s: float, keepalive_s: float) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._base = parts.path.rstrip("/")
        self._head = f" HTTP/1.1\r\nhost: {parts.netloc.rpartition('@')[2]}\r\n"
        self._connect_timeout_s, self._read_timeout_s, self._keepalive_s = (
            connect_timeout_s,
            read_timeout_s,
            keepalive_s,
        )
        self._free: dict[Connection, float] = {}  # with the time since when; the last one is asked next
        self._open: set[Connection] = set()

    async def post(self, path: str, json: bytes) -> Response:
        """The answer's head. Raises UnreachableError, AnswerLostError."""
        head = (
            f"POST {self._base}{path}{self._head}content-type: application/json\r\ncontent-length: {len(json)}\r\n\r\n"
        )
        return await self._ask(head.encode() + json)

    async def get(self, path: str) -> Response:
        """As `post`."""
        return await self._ask(f"GET {self._base}{path}{self._head}\r\n".encode())

    async def close(self) -> None:
        """Close all connections."""
        for connection in list(self._open):
            connection.abort("the gateway closed it")
        await asyncio.sleep(0)  # the loop closes them in its next turn

    async def _ask(self, request: bytes) -> Response:
        connection = self._kept() or await self._connect()
        try:
            await connection.ask(request)
        except BaseException:
            connection.abort("it was given up here")
            raise
        return Response(connection)

    def _kept(self) -> Connection | None:
        now = asyncio.get_running_loop().time()
        while self._free:
            connection, since = self._free.popitem()
            if now - since < self._keepalive_s:
                return connection
            connection.abort("it was idle for long")
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(self._new, self._host, self._port, ssl=self._tls)
        except (OSError, TimeoutError) as error:
            raise UnreachableError(f"{self._host}:{self._port}: {error or 'no answer'}") from error
        self._open.add(connection)
        return connection

    def _new(self) -> Connection:
        return Connection(self._read_timeout_s, self._keep, self._forget)

    def _keep(self, connection: Connection) -> None:
        self._free[connection] = asyncio.get_running_loop().time()

    def _forget(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._free.pop(connection, None)
