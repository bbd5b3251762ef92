"""A gateway as a process of its own before any engine, and its events as they stand in Kafka."""

import asyncio
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiohttp import web
from leyden.avro import Event, decode
from leyden.infra import kafka, topics
from leyden.infra.local.ports import free_port
from leyden.infra.local.stack import RunningStack, StackSpec, role, start
from leyden.infra.settings import EngineSettings, ObjectSettings, RoleSettings

StartGateway = Callable[..., RunningStack]
ReadEvents = Callable[[RunningStack, str, int], list[Event]]


@pytest.fixture(scope="session")
def start_gateway(services: RunningStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartGateway]:
    """`start_gateway(engine, **LEYDEN_ variables)`: a deployment with one gateway in front of `engine`."""
    stacks: list[RunningStack] = []

    def make(engine: EngineSettings, **env: str) -> RunningStack:
        prefix = f"g{secrets.token_hex(4)}."
        objects: ObjectSettings = services.settings.objects.model_copy(update={"bucket": prefix[:-1] + "-bucket"})
        settings = RoleSettings(prefix=prefix, kafka=services.settings.kafka, objects=objects, engine=engine)
        stack = start(StackSpec(tmp_path_factory.mktemp("gateway"), settings, roles=(role("gateway", env=env),)))
        stacks.append(stack)
        stack.wait_ready("gateway")
        return stack

    yield make
    for stack in stacks:
        stack.stop()


@pytest.fixture(scope="session")
def gateway(start_gateway: StartGateway, engine_settings: EngineSettings) -> RunningStack:
    """One gateway in front of the tiny model."""
    return start_gateway(engine_settings)


@pytest.fixture(scope="session")
def read_events() -> ReadEvents:
    """`read_events(stack, rollout_id, n)`: the rollout's events in log order, waiting until there are n."""

    def read(stack: RunningStack, rollout_id: str, n: int) -> list[Event]:
        settings = stack.settings
        deadline = time.monotonic() + 20
        while True:
            found = [
                decode(message.value() or b"", Event)
                for message in kafka.read_all(settings.kafka, settings.prefix + topics.EVENTS)
                if message.key() == rollout_id.encode()
            ]
            if len(found) >= n or time.monotonic() > deadline:
                assert len(found) >= n, f"{len(found)} of {n} events of {rollout_id}"
                return found

    return read


class FakeEngine:
    """A scripted stand-in for vLLM: its answers are made up. The last message of a call says what becomes of it."""

    PROMPT, IDS, TEXT = [1, 2, 3], [7, 8, 9, 10], ["To", "k", "ens", "!"]

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.release = threading.Event()  # lets calls that say "wait" go on
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self.port = free_port()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    @property
    def settings(self) -> EngineSettings:
        """Where a gateway finds it."""
        return EngineSettings(url=f"http://127.0.0.1:{self.port}", model="policy")

    def close(self) -> None:
        """Stop listening."""
        if self._thread.is_alive():
            self.release.set()
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10)

    def forget(self) -> None:
        """As new, for the next test."""
        self.requests.clear()
        self.release.clear()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        runner = web.ServerRunner(web.Server(self._handle, handler_cancellation=True))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True).start()
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/leyden/version":
            return web.json_response({"version": 4})
        body = await request.json()
        self.requests.append(body)
        what = body["messages"][-1]["content"]
        if what == "wait":
            await asyncio.to_thread(self.release.wait, 60)
        if what == "reset":
            assert request.transport is not None
            request.transport.abort()
        if what == "busy":
            return web.json_response({"error": {"message": "later"}}, status=429, headers={"retry-after": "7"})
        return await (self._stream(request, what) if body.get("stream") else self._plain(what))

    async def _plain(self, what: str) -> web.StreamResponse:
        text = "x" * 2_000_000 if what == "large" else "".join(self.TEXT)
        content = [{"token": t, "logprob": -0.5, "bytes": None, "top_logprobs": []} for t in self.TEXT]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "logprobs": None if what == "bare" else {"content": content},
            "finish_reason": "stop",
            "token_ids": None if what == "bare" else self.IDS,
        }
        return web.json_response(
            {"id": f"chatcmpl-{secrets.token_hex(8)}", "model": "policy", "choices": [choice]}
            | {"prompt_token_ids": self.PROMPT, "usage": {"total_tokens": 7}},
            headers={"x-leyden-version-start": "4", "x-leyden-version-end": "5"},
        )

    async def _stream(self, request: web.BaseRequest, what: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-leyden-version-start": "4"})
        await response.prepare(request)
        base = {"id": f"chatcmpl-{secrets.token_hex(8)}", "model": "policy", "object": "chat.completion.chunk"}

        async def send(prompt: list[int] | None = None, finish: str | None = None, **of_choice: Any) -> None:
            choice = {"index": 0, "logprobs": None, "finish_reason": finish} | of_choice
            chunk = base | {"choices": [choice]} | ({"prompt_token_ids": prompt} if prompt else {})
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())

        await send(self.PROMPT, delta={"role": "assistant", "content": ""})
        for at, (token, text) in enumerate(zip(self.IDS, self.TEXT, strict=True)):
            if what == "die" and at == 2:
                assert request.transport is not None
                request.transport.abort()
                return response
            logprobs = {"content": [{"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []}]}
            delta = {} if what == "silent" and at == 1 else {"content": text}
            await send(delta=delta, token_ids=[token], logprobs=logprobs)
        if what == "no end":
            return response
        if what == "error":
            await response.write(b'data: {"error": {"message": "out of memory", "type": "server_error"}}\n\n')
        else:
            await send(finish="stop", delta={"content": ""}, token_ids=[], logprobs={"content": []})
        if what == "hang":
            await asyncio.to_thread(self.release.wait, 60)
        await response.write(b": leyden-version-end 6\n\ndata: [DONE]\n\n")
        return response


@pytest.fixture(scope="session")
def one_fake_engine() -> Iterator[FakeEngine]:
    """A fake engine that tests share."""
    engine = FakeEngine()
    yield engine
    engine.close()


@pytest.fixture
def fake_engine(one_fake_engine: FakeEngine) -> FakeEngine:
    """The shared fake engine as new."""
    one_fake_engine.forget()
    return one_fake_engine


@pytest.fixture
def own_fake_engine() -> Iterator[FakeEngine]:
    """A fake engine of this test's own, which it may close."""
    engine = FakeEngine()
    yield engine
    engine.close()
