"""Hooks around the send of httpx and httpx2 clients (openai uses httpx2 from 3.0 on), so that agents stay untouched."""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

LIBRARIES = ("httpx", "httpx2")
BeforeSend = Callable[[Any], None]
"""Gets the request and may change it."""
AfterSend = Callable[[ModuleType, Any, bool], None]
"""Gets the library, the response and whether its body is still to be streamed."""


def _libraries() -> Iterator[ModuleType]:
    for name in LIBRARIES:
        if importlib.util.find_spec(name) is not None:
            yield importlib.import_module(name)


def wrap_clients(before: BeforeSend | None = None, after: AfterSend | None = None) -> None:
    """Run `before` and `after` around every send of this process from now on, sync and async, of any client."""
    for library in _libraries():
        _wrap(library, before, after)


def _wrap(library: ModuleType, before: BeforeSend | None, after: AfterSend | None) -> None:
    send, async_send = library.Client.send, library.AsyncClient.send

    def hooked(self: Any, request: Any, *, stream: bool = False, **more: Any) -> Any:
        if before is not None:
            before(request)
        response = send(self, request, stream=stream, **more)
        if after is not None:
            after(library, response, stream)
        return response

    async def async_hooked(self: Any, request: Any, *, stream: bool = False, **more: Any) -> Any:
        if before is not None:
            before(request)
        response = await async_send(self, request, stream=stream, **more)
        if after is not None:
            after(library, response, stream)
        return response

    library.Client.send, library.AsyncClient.send = hooked, async_hooked
