"""One kept HTTP/1.1 connection to a server, on httptools: one request at a time."""

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

from ...infra.errors import LeydenError

# What may wait unread of one answer before the server is no longer listened to.
_PAUSE_BYTES = 1 << 20


class AnswerLostError(LeydenError):
    """A request was sent and its answer did not come whole: what the server did is unknown."""


class Connection(asyncio.Protocol):
    """`ask`, then `next_piece` until None, then `release`. The parser calls the `on_…` methods."""

    status: int
    headers: dict[str, str]  # names in lower case; of equal names the first

    def __init__(
        self,
        read_timeout_s: float,
        on_free: "Callable[[Connection], None]",
        on_closed: "Callable[[Connection], None]",
    ) -> None:
        self._read_timeout_s, self._on_free, self._on_closed = read_timeout_s, on_free, on_closed
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._lost: str | None = None
        self._asked = self._has_head = self._whole = self._paused = self._kept = False
        self._pieces: list[bytes] = []
        self._n_bytes = 0
        self._heard = 0.0

    # --- one request --------------------------------------------------------------------------------------------------

    async def ask(self, request: bytes) -> None:
        """Write it and wait for `status` and `headers`. Raises AnswerLostError."""
        self.status, self.headers = 0, {}
        self._asked, self._has_head, self._whole = True, False, False
        self._heard = self._loop.time()
        self._silence = self._loop.call_later(self._read_timeout_s, self._check_silence)
        self._transport.write(request)
        while not self._has_head:
            await self._news()

    async def next_piece(self) -> bytes | None:
        """What came of the body since the last piece; None at its end. Raises AnswerLostError."""
        while not self._pieces:
            if self._whole:
                return None
            await self._news()
        piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces, self._n_bytes = [], 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return piece

    def release(self) -> None:
        """The answer is no longer wanted: a connection on which more of it would come is closed."""
        if self._silence is not None:
            self._silence.cancel()
        if self._whole and not self._pieces and self._lost is None and self._kept:
            self._asked = False
            self._on_free(self)
        else:
            self.abort("it was closed here")

    def abort(self, why: str) -> None:
        """Close at once."""
        self._lost = self._lost or why
        if self._silence is not None:
            self._silence.cancel()
        self._transport.abort()
        self._wake()

    async def _news(self) -> None:
        if self._lost is not None:
            raise AnswerLostError(self._lost)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _check_silence(self) -> None:
        # One timer an answer, not one a piece: it looks how long ago the last one came.
        left = self._read_timeout_s - (self._loop.time() - self._heard)
        if left > 0 or self._paused:
            self._silence = self._loop.call_later(max(left, 1.0), self._check_silence)
        else:
            self.abort(f"nothing came for {self._read_timeout_s:g} s")

    # --- what the socket says -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Part of an answer; without a request it is none of ours."""
        if not self._asked or self._lost is not None:
            self.abort("the server spoke without being asked")
            return
        self._heard = self._loop.time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.abort(f"the answer is no HTTP/1.1: {error!r}")

    def connection_lost(self, exc: Exception | None) -> None:
        """An answer of no stated length ends so; any other is lost."""
        if self._has_head and not self._whole and self._lost is None and exc is None and self._ends_with_connection():
            self._whole = True
        self._lost = self._lost or f"the server closed the connection{f': {exc}' if exc else ''}"
        self._on_closed(self)
        self._wake()

    def _ends_with_connection(self) -> bool:
        return "content-length" not in self.headers and "transfer-encoding" not in self.headers

    # --- what the parser says -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A head; none is wanted after the whole answer. What is raised here ends the parsing."""
        if self._whole:
            raise AnswerLostError("the server answered more than it was asked")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self.headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        """The head is whole; one below 200 announces another."""
        self.status = self._parser.get_status_code()
        if self.status >= 200:
            self._has_head, self._kept = True, self._parser.should_keep_alive()
            self._wake()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._pieces.append(body)
        self._n_bytes += len(body)
        if self._n_bytes > _PAUSE_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        """The end of an answer."""
        if self.status < 200:
            self.headers = {}
            return
        self._whole = True
        self._wake()
