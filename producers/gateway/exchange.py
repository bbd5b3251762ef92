"""One HTTP exchange with an agent, over ASGI: request read within bounds, answer written, leaving noticed."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .refusals import RefusedError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = "application/json"


class ClientGoneError(Exception):
    """The agent closed its connection before its request was whole."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A plain answer."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = JSON


class Exchange:
    """`read`, then either one `answer`, or `begin`, `write`s and `end`.

    Where `end` does not follow, the connection is closed without the mark of a whole answer.
    """

    def __init__(self, scope: Mapping[str, Any], receive: Receive, send: Send, max_body_bytes: int) -> None:
        self._receive, self._send, self._max_body_bytes = receive, send, max_body_bytes
        self.method: str = scope["method"]
        self.path: str = scope["raw_path"].decode("latin-1")  # as the agent wrote it, percent-encoded
        # Of equal names the first counts.
        self.headers: Mapping[str, str] = {
            name.decode("latin-1"): value.decode("utf-8", "surrogateescape")
            for name, value in reversed(scope["headers"])
        }
        self._over = False

    async def read(self) -> bytes:
        """The request's body. Raises RefusedError (413), ClientGoneError."""
        stated = self.headers.get("content-length", "0")
        if stated.isdigit() and int(stated) > self._max_body_bytes:
            raise self._too_large()
        parts: list[bytes] = []
        n_bytes = 0
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientGoneError
            parts.append(message.get("body", b""))
            n_bytes += len(parts[-1])
            if n_bytes > self._max_body_bytes:
                raise self._too_large()
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def _too_large(self) -> RefusedError:
        return RefusedError(413, f"the request is larger than {self._max_body_bytes} bytes")

    @contextmanager
    def cancelled_if_gone(self) -> Iterator[None]:
        """From after `read` on: the task is cancelled where the agent leaves before its answer's end."""
        task = asyncio.current_task()
        assert task is not None
        watch = asyncio.ensure_future(self._receive())

        def on_news(done: "asyncio.Future[Message]") -> None:
            if not self._over and not done.cancelled():
                task.cancel()

        watch.add_done_callback(on_news)
        try:
            yield
        finally:
            self._over = True
            watch.cancel()

    async def answer(self, answer: Answer) -> None:
        """All of it."""
        length = {"content-type": answer.content_type, "content-length": str(len(answer.body))}
        await self.begin(answer.status, {**length, **answer.headers})
        await self.end(answer.body)

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of a streamed answer."""
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def write(self, data: bytes) -> None:
        """A part of a streamed answer."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes) -> None:
        """The last part, and the mark of a whole answer."""
        self._over = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})
