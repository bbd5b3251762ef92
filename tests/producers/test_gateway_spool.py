"""The disk spool: what survives a crash, what a broken file costs, and a gateway whose Kafka goes away."""

import asyncio
import errno
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import KafkaException
from hypothesis import given
from hypothesis import strategies as st
from leyden.avro import Event, LLMCall, Note, RolloutStarted, decode, new_id
from leyden.infra import kafka, topics
from leyden.infra.errors import ObjectStoreError
from leyden.infra.local.stack import RunningStack, StackSpec, role, start
from leyden.infra.objects import ObjectStore
from leyden.infra.settings import ObjectSettings, RoleSettings
from leyden.producers.gateway.event_log import EventLog, NotSafeError
from leyden.producers.gateway.kafka_writer import KafkaWriter, Report
from leyden.producers.gateway.spool import Record, Spool, SpoolError, _frame, read_frames
from prometheus_client import REGISTRY

RECORDS = st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=200)), max_size=20)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    """An empty spool of small segments."""
    spool = Spool(tmp_path / "spool", max_bytes=10_000, segment_bytes=100)
    yield spool
    spool.close()


def drain(spool: Spool) -> list[Record]:
    """All records, removed segment by segment."""
    out: list[Record] = []
    while (oldest := spool.oldest()) is not None:
        out += oldest[1]
        spool.remove(oldest[0])
    return out


def records(n: int) -> list[Record]:
    """Records that differ."""
    return [(b"key", f"value {i}".encode() * 3) for i in range(n)]


@given(RECORDS, st.integers(0, 5000))
def test_cut_off_file_gives_the_records_before_the_cut(written: list[Record], cut: int) -> None:
    frames = [_frame(*record) for record in written]
    data = b"".join(frames)[:cut]
    n_whole = 0
    while n_whole < len(frames) and sum(map(len, frames[: n_whole + 1])) <= cut:
        n_whole += 1
    assert list(read_frames(data)) == written[:n_whole]


@given(RECORDS.filter(bool), st.data())
def test_flipped_bit_never_gives_a_record_that_was_not_written(written: list[Record], data: st.DataObject) -> None:
    raw = bytearray(b"".join(_frame(*record) for record in written))
    at = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[at // 8] ^= 1 << at % 8
    found = list(read_frames(bytes(raw)))
    assert found == written[: len(found)]
    assert len(found) < len(written)


def test_order_is_kept_over_segments_and_restarts(spool: Spool, tmp_path: Path) -> None:
    written = records(30)
    for at in range(0, 15, 3):
        spool.append(written[at : at + 3])
    spool.close()
    again = Spool(tmp_path / "spool", max_bytes=10_000, segment_bytes=100)
    again.append(written[15:])
    assert not again.empty
    assert drain(again) == written
    assert again.empty
    again.close()


def test_record_cut_off_by_a_crash_is_set_aside(spool: Spool, tmp_path: Path) -> None:
    spool.append(records(2))
    (file,) = (tmp_path / "spool").glob("*.events")
    file.write_bytes(file.read_bytes()[:-1])
    assert drain(spool) == records(1)
    assert len(list((tmp_path / "spool").glob("*.unreadable"))) == 1


FULL_DISK = """
import resource, sys
from pathlib import Path
from leyden.producers.gateway.spool import Spool

spool = Spool(Path(sys.argv[1]), 1 << 20, 1 << 20)
spool.append([(b"k", b"first")])
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
for refused in (b"x" * 100, b"y" * 20_000):
    try:
        spool.append([(b"k", b"whole but refused with its batch"), (b"k", refused)])
    except OSError as error:
        print(error.errno)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
spool.append([(b"k", b"second")])
spool.close()
"""


def test_what_a_full_disk_refused_is_never_there_later(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [str(errno.EFBIG)] * 2
    spool = Spool(tmp_path, max_bytes=10_000, segment_bytes=100)
    assert drain(spool) == [(b"k", b"first"), (b"k", b"second")]
    assert not list(tmp_path.glob("*.unreadable"))
    spool.close()


def test_what_could_not_be_taken_back_is_not_drained_either(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    spool.append(records(1))
    spool._seal()
    spool._file = Untruncatable(next((tmp_path / "spool").glob("*.events")), "ab")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="broken"):
            spool.append(records(2))
    spool.append(records(3)[2:])
    assert drain(spool) == [records(1)[0], records(3)[2]]


class Untruncatable(FileIO):
    """A file on a disk that breaks."""

    def truncate(self, size: int | None = None, /) -> int:
        raise OSError(errno.EIO, "the disk is broken")


def test_spool_is_full_at_its_limit_and_empty_after_draining(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=300, segment_bytes=1000)
    while not spool.full:
        spool.append(records(1))
    drain(spool)
    assert not spool.full
    spool.close()


def test_folder_belongs_to_one_gateway(spool: Spool, tmp_path: Path) -> None:
    assert spool.empty
    with pytest.raises(SpoolError, match="another gateway"):
        Spool(tmp_path / "spool", 1, 1)


class KafkaIsAway(KafkaWriter):
    """Reports every delivery as failed."""

    def __init__(self) -> None:
        """No producer."""

    def send(self, key: bytes, value: bytes, report: Report) -> None:
        asyncio.get_running_loop().call_soon(report, "nobody there")

    def close(self, timeout_s: float) -> None:
        """Nothing is under way."""


class Refuses(ObjectStore):
    """An object store that is away."""

    def put(self, key: str, data: bytes) -> None:
        raise ObjectStoreError(f"object {key}: away")


@pytest.mark.parametrize(("reason", "n_bytes"), [("spool", 1), ("too_large", 2_000_000)])
def test_event_that_is_nowhere_fails_and_is_counted(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, reason: str, n_bytes: int
) -> None:
    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(spool, "append", full)

    async def submit() -> None:
        log = EventLog(KafkaIsAway(), spool, Refuses(ObjectSettings()))
        note = Note("object", "n", b"x" * n_bytes)
        with pytest.raises(NotSafeError, match="spool cannot be written" if reason == "spool" else "too large"):
            await log.submit(Event(new_id(), "r", 1, 0, note))
        await log.close(1.0)

    def counted() -> float:
        return REGISTRY.get_sample_value("leyden_gateway_events_unsafe_total", {"reason": reason}) or 0.0

    before = counted()
    asyncio.run(submit())
    assert counted() == before + 1


@pytest.fixture
def with_own_kafka(services: RunningStack, fake_engine: Any, tmp_path: Path) -> Iterator[RunningStack]:
    """A gateway with a Kafka that the test may stop."""
    prefix = f"g{secrets.token_hex(4)}."
    objects = services.settings.objects.model_copy(update={"bucket": prefix[:-1] + "-bucket"})
    settings = RoleSettings(prefix=prefix, objects=objects, engine=fake_engine.settings)
    env = {"LEYDEN_KAFKA_TIMEOUT_S": "1", "LEYDEN_SPOOL_MAX_BYTES": "20000"}
    with start(StackSpec(tmp_path / "stack", settings, roles=(role("gateway", env=env),))) as stack:
        stack.wait_ready("gateway")
        yield stack


def ask(stack: RunningStack, rollout: str, **more: Any) -> httpx.Response:
    """One call."""
    body = {"model": "policy", "messages": [{"role": "user", "content": "hello"}]} | more
    url = f"{stack.gateway_url}/rollout/{rollout}/attempt/1/v1/chat/completions"
    return httpx.post(url, json=body, timeout=60)


def events_once_there(stack: RunningStack, done: Callable[[list[Event]], bool]) -> list[Event]:
    """All events of the deployment, in log order, once `done` says that they are all there."""
    topic, found = stack.settings.prefix + topics.EVENTS, []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            found = [decode(m.value() or b"", Event) for m in kafka.read_all(stack.settings.kafka, topic)]
        except (KafkaException, kafka.KafkaUnavailableError):
            continue  # it has only just come back
        if done(found):
            return found
    raise AssertionError(f"{len(found)} events")


@pytest.mark.kafka
def test_nothing_is_lost_while_kafka_is_away_nor_by_a_kill_meanwhile(with_own_kafka: RunningStack) -> None:
    stack, rollout = with_own_kafka, new_id()
    ids = [ask(stack, rollout, stream=False).json()["id"]]
    stack.stop_process("kafka")
    ids += [ask(stack, rollout).json()["id"] for _ in range(3)]
    reward = httpx.post(f"{stack.gateway_url}/v1/rollouts/{rollout}/rewards", json={"value": 1}, timeout=30)
    assert reward.status_code == 200
    stack.kill("gateway")
    stack.wait_ready("gateway")
    ids.append(ask(stack, rollout).json()["id"])
    answers = [ask(stack, rollout) for _ in range(40)]
    refused = [answer for answer in answers if answer.status_code == 503]
    assert refused
    assert all(answer.headers["retry-after"] for answer in refused)
    ids += [answer.json()["id"] for answer in answers if answer.status_code == 200]
    stack.resume("kafka")
    stack.wait_ready("kafka")
    found = events_once_there(stack, lambda events: len({e.event_id for e in events}) >= len(ids) + 2)
    firsts = list({event.event_id: event for event in found}.values())
    assert isinstance(firsts[0].body, RolloutStarted)
    assert [event.body.response_id for event in firsts if isinstance(event.body, LLMCall)] == ids
    assert ask(stack, rollout).status_code == 200
