"""The ledger: a line for each response that an agent received whole; `leyden audit` holds it against the log."""

import os
import re
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import Any

import orjson

from ..avro import now_ms
from .identity import Identity

LEDGER = "LEYDEN_LEDGER"
_STREAM_ID = re.compile(rb'"id"\s*:\s*"([^"]+)"')
# Of chats and completions; of responses; of messages.
_STREAM_END = re.compile(
    rb"^(data: \[DONE\]|event: response\.(completed|incomplete)|event: message_stop)$", re.MULTILINE
)
_ROUTES = ("/completions", "/responses", "/messages")


class Ledger:
    """Appends to one file, one write a line with O_APPEND: many processes may share it."""

    def __init__(self, path: str, identity: Identity) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._identity = identity

    def note(self, response_id: str) -> None:
        """This response was received whole."""
        line = {
            "rollout_id": self._identity.rollout_id,
            "attempt": self._identity.attempt,
            "response_id": response_id,
            "ts_ms": now_ms(),
        }
        os.write(self._fd, orjson.dumps(line) + b"\n")

    def after_send(self, library: ModuleType, response: Any, stream: bool) -> None:
        """The hook for `http_hooks.wrap_clients`."""
        if response.status_code != 200 or not response.request.url.path.endswith(_ROUTES):
            return
        if not stream:
            body = orjson.loads(response.content)
            if isinstance(body, dict) and isinstance(body.get("id"), str):
                self.note(body["id"])
        elif hasattr(response.stream, "__aiter__") and not hasattr(response.stream, "__iter__"):
            response.stream = _async_watcher(library, response.stream, self)
        else:
            response.stream = _watcher(library, response.stream, self)


class _StreamWatch:
    """Finds the id and the end marker in the bytes of an event stream, however they are cut."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._id, self._tail, self._done = ledger, "", b"", False

    def feed(self, chunk: bytes) -> None:
        seen = self._tail + chunk
        if not self._id and (found := _STREAM_ID.search(seen)):
            self._id = found[1].decode()
        if not self._done and _STREAM_END.search(seen):
            self._done = True
            # Noted here and not at the end of the body: clients stop reading at the marker.
            if self._id:
                self._ledger.note(self._id)
        self._tail = seen[-200:]


def _watcher(library: ModuleType, inner: Any, ledger: Ledger) -> Any:
    class Watched(library.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            watch = _StreamWatch(ledger)
            for chunk in inner:
                watch.feed(chunk)
                yield chunk

        def close(self) -> None:
            inner.close()

    return Watched()


def _async_watcher(library: ModuleType, inner: Any, ledger: Ledger) -> Any:
    class Watched(library.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            watch = _StreamWatch(ledger)
            async for chunk in inner:
                watch.feed(chunk)
                yield chunk

        async def aclose(self) -> None:
            await inner.aclose()

    return Watched()
