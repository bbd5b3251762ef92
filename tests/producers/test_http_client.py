"""The gateway's HTTP client against a server of this test that answers word for word what it is told."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from leyden.producers.gateway.http_client import AnswerLostError, HttpClient, UnreachableError

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Server:
    """Answers the n-th request with the n-th of its answers; `last` closes the connection after the last one."""

    def __init__(self, answers: list[bytes], last: bool = False) -> None:
        self.answers, self.last = list(answers), last
        self.n_connections = 0
        self.requests: list[bytes] = []
        self.gone = asyncio.Event()  # a client left

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.n_connections += 1
        try:
            while self.answers or not self.last:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.startswith(b"content-le")), 0)
                self.requests.append(head + await reader.readexactly(length))
                writer.write(self.answers.pop(0))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone.set()
        finally:
            writer.close()


Use = Callable[[HttpClient, Server], Awaitable[None]]


def with_server(server: Server, use: Use, read_timeout_s: float = 5.0) -> Server:
    """Run `use` with a client of `server`."""

    async def run() -> Server:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/base/"
        client = HttpClient(url, connect_timeout_s=5, read_timeout_s=read_timeout_s, keepalive_s=5)
        try:
            await use(client, server)
        finally:
            await client.close()
            listening.close()
            served = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            if served:
                await asyncio.wait(served, timeout=5)
        return server

    return asyncio.run(run())


async def body_of(client: HttpClient) -> bytes:
    async with await client.post("/v1/x", b"{}") as response:
        assert response.status == 200
        return await response.read()


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n"
CONTINUED = b"HTTP/1.1 100 Continue\r\nx-early: 1\r\n\r\n" + OK


@pytest.mark.parametrize("answer", [OK, CHUNKED, CONTINUED])
def test_a_connection_is_kept_after_a_whole_answer(answer: bytes) -> None:
    async def use(client: HttpClient, server: Server) -> None:
        for _ in range(3):
            assert await body_of(client) == b"ok"

    server = with_server(Server([answer] * 3), use)
    assert server.n_connections == 1
    assert server.requests[0].startswith(b"POST /base/v1/x HTTP/1.1\r\n")
    assert server.requests[0].endswith(b"\r\n\r\n{}")


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    async def use(client: HttpClient, server: Server) -> None:
        assert await body_of(client) == b"all there is"

    with_server(Server([b"HTTP/1.1 200 OK\r\n\r\nall there is"], last=True), use)


def test_an_answer_that_breaks_off_is_lost() -> None:
    async def use(client: HttpClient, server: Server) -> None:
        with pytest.raises(AnswerLostError, match="closed the connection"):
            await body_of(client)

    with_server(Server([b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"], last=True), use)


def test_leaving_an_answer_early_closes_its_connection() -> None:
    async def use(client: HttpClient, server: Server) -> None:
        async with await client.post("/", b"{}") as response:
            assert response.status == 200
        await asyncio.wait_for(server.gone.wait(), 5)
        assert await body_of(client) == b"ok"

    half = b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\nhalf"
    assert with_server(Server([half, OK]), use).n_connections == 2


def test_more_than_was_asked_for_is_not_taken_for_the_next_answer() -> None:
    async def use(client: HttpClient, server: Server) -> None:
        async with await client.post("/", b"{}") as response:
            assert await response.read() == b"ok"
        assert await body_of(client) == b"ok"

    assert with_server(Server([OK + OK.replace(b"ok", b"no"), OK]), use).n_connections == 2


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"SMTP ready\r\n\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n", "nothing came"),
        (b"", "nothing came"),
    ],
)
def test_an_answer_that_does_not_come_is_lost(answer: bytes, why: str) -> None:
    async def use(client: HttpClient, server: Server) -> None:
        with pytest.raises(AnswerLostError, match=why):
            await client.post("/", b"{}")

    with_server(Server([answer]), use, read_timeout_s=0.2)


def test_nobody_listening_is_told_apart_from_a_lost_answer() -> None:
    async def run() -> None:
        listening = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        listening.close()
        await listening.wait_closed()
        client = HttpClient(f"http://127.0.0.1:{port}", connect_timeout_s=5, read_timeout_s=5, keepalive_s=5)
        with pytest.raises(UnreachableError, match=str(port)):
            await client.get("/")

    asyncio.run(run())
