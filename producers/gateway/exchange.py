"""One HTTP exchange with an agent, over ASGI: request read within bounds, answer written, leaving noticed."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from .refusals import RefusedError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = "application/json"
HANDLERS = "leyden.handlers"
"""In the ASGI state of a connection: the set of tasks that answer on it, cancelled when it is lost."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A plain answer."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = JSON


class Exchange:
    """`read`, then either one `answer`, or `begin`, `write`s and `end`; `close` at last.

    Where `end` does not follow, the connection is closed without the mark of a whole answer. An agent that leaves
    before the end of its answer has the task cancelled that made the exchange.
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
        self._handlers: set[asyncio.Task[Any]] = scope["state"][HANDLERS]
        self._task = asyncio.current_task()
        if self._task is not None:
            self._handlers.add(self._task)

    async def read(self) -> bytes:
        """The request's body. Raises RefusedError (413), CancelledError (the agent left)."""
        stated = self.headers.get("content-length", "0")
        if stated.isdigit() and int(stated) > self._max_body_bytes:
            raise self._too_large()
        parts: list[bytes] = []
        n_bytes = 0
        while True:
            message = await self._receive()
            if message["type"] != "http.request":  # lost before this task's first step
                raise asyncio.CancelledError("the agent left before its request was read")
            parts.append(message.get("body", b""))
            n_bytes += len(parts[-1])
            if n_bytes > self._max_body_bytes:
                raise self._too_large()
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def _too_large(self) -> RefusedError:
        return RefusedError(413, f"the request is larger than {self._max_body_bytes} bytes")

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
        self.close()
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    def close(self) -> None:
        """Whoever leaves from now on cancels nothing."""
        if self._task is not None:
            self._handlers.discard(self._task)
