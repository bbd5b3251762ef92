"""Calls through the gateway, captured in Kafka, against a direct connection to the same scripted upstream."""

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

MIN_CALLS_PER_S = 1000
CONNECTIONS, CALLS, STREAMED_CALLS, ROUNDS = 64, 6000, 1200, 3
PROMPT = " ".join(["word"] * 1000)


@dataclass(frozen=True, slots=True)
class Run:
    """One side, one round."""

    calls_per_s: float
    cpu_ms_a_call: float
    median_latency_ms: float


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


async def load(url: str, path: str, stream: bool, n_calls: int) -> list[float]:
    """Seconds of each of `n_calls` calls over CONNECTIONS connections."""
    body: dict[str, object] = {"model": "policy", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 200}
    data = json.dumps(body | ({"stream": True} if stream else {}), separators=(",", ":")).encode()
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


def measure(url: str, path: str, stream: bool, n_calls: int, server: psutil.Process) -> Run:
    """One round; CPU is that of `server`, all of its threads."""
    before, began = server.cpu_times(), time.perf_counter()
    latencies = uvloop.run(load(url, path, stream, n_calls))
    seconds, after = time.perf_counter() - began, server.cpu_times()
    cpu_s = after.user + after.system - before.user - before.system
    return Run(n_calls / seconds, cpu_s / n_calls * 1000, statistics.median(latencies) * 1000)


def compare(stack: RunningStack, upstream: psutil.Process) -> dict[str, Any]:
    """Both sides in turn, ROUNDS times; medians. The first round of each is a warm-up of a tenth of its calls."""
    gateway_id = stack.status("gateway").id
    assert gateway_id is not None
    sides = {"gateway": (stack.gateway_url, psutil.Process(gateway_id.pid)), "direct": (stack.engine_url, upstream)}
    runs: dict[str, list[Run]] = {}
    n_through = 0
    for round_ in range(ROUNDS + 1):
        for stream, n_calls in ((False, CALLS), (True, STREAMED_CALLS)):
            for side, (url, process) in sides.items():
                n = n_calls if round_ else n_calls // 10
                path = f"/rollout/{new_id()}/attempt/1" if side == "gateway" else ""
                n_through += n if path else 0
                run = measure(url, path, stream, n, process)
                if round_:
                    runs.setdefault(f"{side}_streamed" if stream else side, []).append(run)
    topic = stack.settings.prefix + topics.EVENTS
    n_events = sum(1 for _ in kafka.read_all(stack.settings.kafka, topic))
    n_starts = 2 * (ROUNDS + 1)
    assert n_events == n_through + n_starts, f"{n_events} events of {n_through} calls and {n_starts} starts"
    return {
        f"{side}_{name}": round(statistics.median(getattr(run, name) for run in of_side), 3)
        for side, of_side in runs.items()
        for name in Run.__slots__
    } | {"events_in_kafka": n_events}


def main() -> None:
    """Start the upstream, Kafka and a gateway, measure, print one JSON line."""
    port = free_port()
    upstream = subprocess.Popen([sys.executable, "-m", "benchmarks.scripted_engine", str(port)])
    try:
        with tempfile.TemporaryDirectory() as folder:
            settings = RoleSettings(prefix="bench.", engine=EngineSettings(url=f"http://127.0.0.1:{port}"))
            with start(StackSpec(Path(folder), settings, roles=(role("gateway"),))) as stack:
                stack.wait_ready("gateway")
                while http_ready(f"http://127.0.0.1:{port}/")() is not None:
                    time.sleep(0.05)
                figures = compare(stack, psutil.Process(upstream.pid))
    finally:
        upstream.terminate()
        upstream.wait()
    rate = figures["gateway_calls_per_s"]
    line = {
        "name": "gateway",
        "machine": {"cpus": os.cpu_count(), "processor": platform.machine(), "python": platform.python_version()},
        "figures": figures | {"prompt_tokens": 1000, "completion_tokens": 200, "connections": CONNECTIONS},
        "bars": {"calls_per_s": {"value": rate, "at_least": MIN_CALLS_PER_S, "holds": rate >= MIN_CALLS_PER_S}},
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
