"""What the gateway's socket does with requests that are too large, too slow or no HTTP."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from leyden.infra.local.ports import free_port
from leyden.producers.gateway import listener
from leyden.producers.gateway.exchange import Answer, Exchange
from leyden.producers.gateway.listener import MAX_HEAD_BYTES, Listener
from leyden.producers.gateway.refusals import RefusedError

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class App:
    """Answers with the body that it got."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.outcome: BaseException | None = None
        self.wait = False  # for ever, in the middle of the answer

    async def __call__(self, scope, receive, send) -> None:  # pyright: ignore[reportMissingParameterType]
        """ASGI."""
        exchange = Exchange(scope, receive, send, 1000)
        try:
            body = await exchange.read()
            if self.wait:
                await asyncio.Event().wait()
            await exchange.answer(Answer(200, body, {"x-path": exchange.path}))
        except RefusedError as refused:
            await exchange.answer(Answer(refused.status, refused.body))
        except asyncio.CancelledError as error:
            self.outcome = error
        finally:
            self.ended.set()


def talk(app: Callable[[], App], say: Talk) -> App:
    """Connect to a listener and talk to it."""

    async def run() -> App:
        made, port = app(), free_port()
        listening = Listener(made)
        await listening.open("127.0.0.1", port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.wait_for(say(reader, writer), 20)
        finally:
            writer.close()
            listening.stop_listening()
            await listening.close()
        return made

    return asyncio.run(run())


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """(status, body) of the next answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(length)


def test_requests_follow_one_another_on_a_connection() -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for body in (b"one", b"three"):
            writer.write(b"POST /a%%20b?c=d HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"x-path: /a%20b\r\n" in head
            assert await reader.readexactly(len(body)) == body

    talk(App, say)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST / HTTP/1.1\r\ncontent-length: 1001\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3E9\r\n" + b"x" * 1001 + b"\r\n", 413),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * (MAX_HEAD_BYTES + 1), 431),
        (b"GET /" + b"y" * (MAX_HEAD_BYTES + 1), 431),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * (MAX_HEAD_BYTES // 6 + 1), 431),
        (b"NONSENSE\r\n\r\n", 400),
    ],
)
def test_what_is_too_large_or_no_http_is_refused(request_: bytes, status: int) -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(request_)
        answered, body = await answer_of(reader)
        assert answered == status
        assert json.loads(body)["error"]["type"] == "invalid_request_error"

    talk(App, say)


@pytest.mark.parametrize("part", [b"GET / HT", b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nhalf"])
def test_a_request_that_does_not_end_is_given_up(part: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_REQUEST_S", 0.1)
    monkeypatch.setattr(listener, "_LOOK_S", 0.05)

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(part)
        assert (await answer_of(reader))[0] == 408
        assert await reader.read() == b""

    talk(App, say)


@pytest.mark.parametrize("waiting", [False, True])
def test_a_client_that_leaves_is_noticed(waiting: bool) -> None:
    """Before its request is whole, and while it waits for the answer."""

    def app() -> App:
        made = App()
        made.wait = True
        apps.append(made)
        return made

    apps: list[App] = []

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"POST / HTTP/1.1\r\ncontent-length: 4\r\n\r\n" + (b"body" if waiting else b"bo"))
        await writer.drain()
        writer.close()
        await apps[0].ended.wait()

    assert isinstance(talk(app, say).outcome, asyncio.CancelledError)
