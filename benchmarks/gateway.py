"""Calls through the gateway, captured in Kafka, against a proxy that only copies bytes and a direct connection.

All sides ask the same scripted upstream, which answers at once; the proxy copies the answer that the gateway gets, with
ids and logprobs.
"""

import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psutil
import uvloop
from leyden.avro import new_id
from leyden.infra import kafka, topics
from leyden.infra.local.ports import free_port
from leyden.infra.local.services import http_ready
from leyden.infra.local.stack import RunningStack, StackSpec, role, start
from leyden.infra.settings import EngineSettings, RoleSettings

MIN_BYTE_PROXY_RATIO = 0.5
MAX_GROWTH_MB = 5.0
CONNECTIONS, CALLS, STREAMED_CALLS, ROUNDS = 32, 5000, 1200, 3
SOAK_CALLS, SOAK_WARM_CALLS = 50_000, 10_000
PROMPT = " ".join(["word"] * 1000)


@dataclass(frozen=True, slots=True)
class Run:
    """One side, one round."""

    calls_per_s: float
    cpu_ms_a_call: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Side:
    """Something that answers calls; `asks_ids`: the client itself asks for what the gateway asks of its own."""

    name: str
    url: str
    process: psutil.Process
    asks_ids: bool


class Client(asyncio.Protocol):
    """One connection that repeats one request: as little work as can be, so that the sides are measured and not it."""

    def __init__(self, request: bytes, end: bytes | None, left: list[int], latencies: list[float]) -> None:
        self._request, self._end, self._left, self._latencies = request, end, left, latencies
        self._buffer = bytearray()
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report."""
        if not self.closed.done():
            self.closed.set_exception(exc or ConnectionError("closed in the middle"))

    def data_received(self, data: bytes) -> None:
        """Go on when the answer is whole."""
        self._buffer += data
        if not self._is_whole():
            return
        if not self._buffer.startswith(b"HTTP/1.1 200"):
            self.closed.set_exception(ConnectionError(self._buffer[:300].decode()))
            return
        self._latencies.append(time.perf_counter() - self._began)
        self._buffer.clear()
        self._send()

    def _send(self) -> None:
        if self._left[0] == 0:
            self.closed.set_result(None)
            self._transport.close()
            return
        self._left[0] -= 1
        self._began = time.perf_counter()
        self._transport.write(self._request)

    def _is_whole(self) -> bool:
        if self._end is not None:
            return self._buffer.endswith(self._end)
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self._buffer[:end]).lower()
        return len(self._buffer) >= end + 4 + int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])


async def load(side: Side, path: str, stream: bool, n_calls: int) -> list[float]:
    """Seconds of each of `n_calls` calls over CONNECTIONS connections."""
    url = side.url
    body: dict[str, object] = {"model": "policy", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 200}
    body |= {"stream": True} if stream else {}
    body |= {"return_token_ids": True, "logprobs": True} if side.asks_ids else {}
    data = json.dumps(body, separators=(",", ":")).encode()
    host, port = url.removeprefix("http://").split(":")
    head = f"POST {path}/v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    request = head.encode() + f"content-length: {len(data)}\r\n\r\n".encode() + data
    left, latencies, loop = [n_calls], [], asyncio.get_running_loop()
    end = b"0\r\n\r\n" if stream else None
    clients = [
        (await loop.create_connection(lambda: Client(request, end, left, latencies), host, int(port)))[1]
        for _ in range(CONNECTIONS)
    ]
    await asyncio.gather(*(client.closed for client in clients))
    return latencies


def measure(side: Side, path: str, stream: bool, n_calls: int) -> Run:
    """One round; CPU is that of the side's process, all of its threads."""
    before, began = side.process.cpu_times(), time.perf_counter()
    latencies = uvloop.run(load(side, path, stream, n_calls))
    seconds, after = time.perf_counter() - began, side.process.cpu_times()
    cpu_s = after.user + after.system - before.user - before.system
    cuts = statistics.quantiles(latencies, n=100)
    return Run(n_calls / seconds, cpu_s / n_calls * 1000, cuts[49] * 1000, cuts[98] * 1000)


def compare(sides: list[Side]) -> dict[str, float]:
    """All sides in turn, ROUNDS times; medians. The first round of each is a warm-up of a tenth of its calls."""
    runs: dict[str, list[Run]] = {}
    for round_ in range(ROUNDS + 1):
        for stream, n_calls in ((False, CALLS), (True, STREAMED_CALLS)):
            for side in sides:
                path = f"/rollout/{new_id()}/attempt/1" if side.name == "gateway" else ""
                run = measure(side, path, stream, n_calls if round_ else n_calls // 10)
                if round_:
                    runs.setdefault(f"{side.name}_streamed" if stream else side.name, []).append(run)
    return {
        f"{side}_{name}": round(statistics.median(getattr(run, name) for run in of_side), 3)
        for side, of_side in runs.items()
        for name in Run.__slots__
    }


def soak(gateway: Side) -> float:
    """MB by which the gateway's resident memory grows over the last calls of many, each a rollout of its own."""
    uvloop.run(load(gateway, "", False, SOAK_WARM_CALLS))
    before = gateway.process.memory_info().rss
    uvloop.run(load(gateway, "", False, SOAK_CALLS - SOAK_WARM_CALLS))
    return round((gateway.process.memory_info().rss - before) / 1e6, 2)


def count_events(stack: RunningStack) -> int:
    """The events in Kafka, which must be those of all calls: nothing that was answered is missing."""
    n_events = sum(1 for _ in kafka.read_all(stack.settings.kafka, stack.settings.prefix + topics.EVENTS))
    n_calls = ROUNDS * (CALLS + STREAMED_CALLS) + CALLS // 10 + STREAMED_CALLS // 10
    n_expected = n_calls + 2 * (ROUNDS + 1) + 3 * SOAK_CALLS  # a start a rollout, and an end of those that nobody named
    assert n_events == n_expected, f"{n_events} events in Kafka, expected {n_expected}"
    return n_events


def figures_of(
    folder: Path, upstream_url: str, upstream: psutil.Process, proxy_url: str, proxy: psutil.Process
) -> dict[str, Any]:
    """Figures of all sides."""
    settings = RoleSettings(prefix="bench.", engine=EngineSettings(url=upstream_url))
    with start(StackSpec(folder, settings, roles=(role("gateway"),))) as stack:
        stack.wait_ready("gateway")
        gateway_id = stack.status("gateway").id
        assert gateway_id is not None
        gateway = Side("gateway", stack.gateway_url, psutil.Process(gateway_id.pid), asks_ids=False)
        others = [
            Side("byte_proxy", proxy_url, proxy, asks_ids=True),
            Side("direct", upstream_url, upstream, asks_ids=False),
        ]
        figures = compare([gateway, *others])
        return figures | {"memory_growth_mb": soak(gateway), "events_in_kafka": count_events(stack)}


def main() -> None:
    """Start the upstream, the proxy, Kafka and a gateway, measure, print one JSON line."""
    upstream_url, proxy_url = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    commands = {
        upstream_url: ["benchmarks.scripted_engine", upstream_url.rpartition(":")[2]],
        proxy_url: ["benchmarks.byte_proxy", proxy_url.rpartition(":")[2], upstream_url],
    }
    peers = {url: subprocess.Popen([sys.executable, "-m", *command]) for url, command in commands.items()}
    try:
        while any(http_ready(f"{url}/")() is not None for url in peers):
            time.sleep(0.05)
        upstream, proxy = (psutil.Process(peer.pid) for peer in peers.values())
        with tempfile.TemporaryDirectory() as folder:
            figures = figures_of(Path(folder), upstream_url, upstream, proxy_url, proxy)
    finally:
        for peer in peers.values():
            peer.terminate()
            peer.wait()
    ratio = round(figures["gateway_calls_per_s"] / figures["byte_proxy_calls_per_s"], 3)
    growth = figures["memory_growth_mb"]
    line = {
        "name": "gateway",
        "machine": {"cpus": os.cpu_count(), "processor": platform.machine(), "python": platform.python_version()},
        "figures": figures | {"prompt_tokens": 1000, "completion_tokens": 200, "connections": CONNECTIONS},
        "bars": {
            "byte_proxy_ratio": {
                "value": ratio,
                "at_least": MIN_BYTE_PROXY_RATIO,
                "holds": ratio >= MIN_BYTE_PROXY_RATIO,
            },
            "memory_growth_mb": {"value": growth, "at_most": MAX_GROWTH_MB, "holds": growth <= MAX_GROWTH_MB},
        },
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
