"""Each repair of Faust, with the fault as it is upstream: a test that fails upstream shows that the repair can go."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard
from aiokafka import codec
from aiokafka.errors import KafkaConnectionError
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from leyden.stream.faust_patches import zstd
from leyden.stream.faust_patches.fetch_wait import FetchWait
from leyden.stream.faust_patches.thread_safe_seek import ThreadSafeSeek
from leyden.stream.faust_patches.tolerant_commit import TolerantCommit


def test_zstd_is_read_although_the_frame_does_not_say_how_large_it_is():
    compressor = zstandard.ZstdCompressor().compressobj()
    frame = compressor.compress(b"record" * 1000) + compressor.flush()
    zstd.apply()
    assert codec.has_zstd()
    assert codec.zstd_decode(frame) == b"record" * 1000


def seeks_in(consumer_class: Any) -> bool:
    """Whether `_seek` reaches aiokafka through the consumer thread's queue."""
    queued: list[Any] = []

    async def call_thread(method: Any, *args: Any) -> None:
        queued.append(method)

    seeker = SimpleNamespace(seek=lambda *_: None)
    thread = SimpleNamespace(call_thread=call_thread, _ensure_consumer=lambda: seeker, seek=lambda *_: None)
    consumer = consumer_class.__new__(consumer_class)
    consumer._thread = thread
    asyncio.run(consumer._seek(TP("t", 0), 5))
    return bool(queued)


def test_seeks_go_through_the_thread_that_runs_aiokafka():
    assert not seeks_in(driver.Consumer), "upstream is repaired: faust_patches/thread_safe_seek.py can go"
    assert seeks_in(ThreadSafeSeek)


def commit_crashes(thread_class: Any) -> bool:
    """Whether a commit that Kafka does not take crashes the app."""
    crashed: list[BaseException] = []

    class AwayConsumer:
        async def commit(self, offsets: Any) -> None:
            raise KafkaConnectionError("broker away")

    async def crash(error: BaseException) -> None:
        crashed.append(error)

    thread = thread_class.__new__(thread_class)
    thread.tp_last_committed_at = {}
    thread.log = SimpleNamespace(exception=lambda *_: None)
    thread.assignment = lambda: {TP("t", 0)}
    thread._ensure_consumer = AwayConsumer
    thread.crash = crash
    assert asyncio.run(thread._commit({TP("t", 0): 3})) is False
    return bool(crashed)


def test_a_commit_that_fails_crashes_nothing():
    assert commit_crashes(driver.AIOKafkaConsumerThread), "upstream is repaired: tolerant_commit.py can go"
    assert not commit_crashes(TolerantCommit)


@pytest.mark.parametrize(("thread_class", "wait_ms"), [(driver.AIOKafkaConsumerThread, 1500), (FetchWait, 50)])
def test_the_fetch_wait_is_a_setting(monkeypatch: pytest.MonkeyPatch, thread_class: Any, wait_ms: int):
    upstream = SimpleNamespace(_fetch_max_wait_ms=1500)
    monkeypatch.setattr(driver.AIOKafkaConsumerThread, "_create_worker_consumer", lambda *_: upstream)
    thread = thread_class.__new__(thread_class)
    assert thread._create_worker_consumer(SimpleNamespace(fetch_wait_ms=50))._fetch_max_wait_ms == wait_ms
