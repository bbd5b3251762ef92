"""The processor over a log in memory: what it does where Kafka no longer has, or does not give, what it wants."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from leyden.avro import COMMITTED, DeadLetter, Event, Record, RolloutExpired, Trajectory, decode_any, encode
from leyden.infra.deadletters import DEAD_LETTERS_TOTAL
from leyden.infra.kafka import KafkaUnavailableError
from leyden.stream import processor as processors
from leyden.stream.assemble_stage import AssembleStage
from leyden.stream.assembly import Limits
from leyden.stream.metrics import StreamMetrics
from leyden.stream.payloads import PayloadLostError
from leyden.stream.processor import Processor, Topics
from leyden.stream.rows import Row
from prometheus_client import CollectorRegistry

from .rollouts import called, ended, rewarded, started

TOPICS = Topics("events", "trajectories", "rows", "dead-letters")


@dataclass
class Written:
    """A record of the log."""

    offset: int
    key: bytes | None
    value: bytes | None


@dataclass
class Log:
    """One partition: its records, where it begins, and how often Kafka does not answer. As payloads.Refetch."""

    values: list[bytes] = field(default_factory=list)
    begins: int = 0
    n_silent: int = 0
    n_asked: int = 0
    on_silence: Callable[[], object] = lambda: None

    def write(self, *events: Event) -> list[Written]:
        """Append; the chunk that a consumer would deliver."""
        at = len(self.values)
        self.values += [encode(e) for e in events]
        return [Written(at + n, e.rollout_id.encode(), encode(e)) for n, e in enumerate(events)]

    def read(self, partition: int, offsets: list[int]) -> dict[int, bytes]:
        self._answer()
        if lost := [o for o in offsets if o < self.begins]:
            raise PayloadLostError(f"topic events, partition {partition}, offset {lost[0]} is gone")
        return {o: self.values[o] for o in offsets}

    def first(self, partition: int, wanted: int) -> int:
        self._answer()
        return max(wanted, self.begins)

    def _answer(self) -> None:
        self.n_asked += 1
        if self.n_silent:
            self.n_silent -= 1
            self.on_silence()
            raise KafkaUnavailableError("nothing came")


@dataclass
class Kafka:
    """What was produced, acknowledged at once. As deliveries.Deliveries and its batches."""

    sent: list[tuple[str, Record | bytes]] = field(default_factory=list)
    last_offset: int = 0

    def batch(self) -> "Kafka":
        return self

    async def send(self, topic: str, key: bytes | None, value: bytes, partition: int | None = None) -> None:
        self.sent.append((topic, value if topic == TOPICS.changelog else decode_any(value)))

    async def acknowledged(self) -> None:
        await asyncio.sleep(0)

    def of(self, topic: str) -> list[Any]:
        return [record for to, record in self.sent if to == topic]


class Rows(dict[bytes, bytes]):
    """As processor.RowStore."""

    def get(self, partition: int, key: bytes) -> bytes | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().get(key)

    def put(self, partition: int, rows: Sequence[tuple[bytes, bytes]], changelog_offset: int) -> None:
        self.update(rows)

    def scan(self, partition: int) -> Iterable[tuple[bytes, bytes]]:
        return list(self.items())

    def row(self, key: bytes) -> Row:
        return Row.decode(self[key])


@dataclass
class World:
    """A worker on partition 0; `restart` forgets all but the table."""

    log: Log = field(default_factory=Log)
    kafka: Kafka = field(default_factory=Kafka)
    rows: Rows = field(default_factory=Rows)
    crashed: list[BaseException] = field(default_factory=list)
    processor: Processor[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.restart(0)

    def restart(self, committed: int) -> None:
        stage = AssembleStage(Limits(idle_ms=1000, absolute_ms=10_000, grace_ms=1000), COMMITTED)
        self.processor = Processor(
            "assemble", stage, TOPICS, self.rows, cast(Any, self.kafka), cast(Any, self.log), cast(Any, None),
            StreamMetrics("assemble", CollectorRegistry()), self.crashed.append,
            max_replay=4, recent=0, cache_bytes=0,
        )  # fmt: skip
        self.processor.own(0, committed)

    async def take(self, *events: Event) -> None:
        """Write events, take them as one chunk, wait until it is durable."""
        chunk = self.log.write(*events)
        await self.processor.chunk(0, chunk)
        await self.settled()

    async def settled(self) -> None:
        while self.processor.unsettled():  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not self.crashed

    async def expire(self) -> list[Event]:
        """What the deadlines ask for, read to the end of the log."""
        before = len(self.kafka.of("events"))
        await self.processor.expire({0: len(self.log.values)})
        return self.kafka.of("events")[before:]

    def letters(self) -> list[DeadLetter]:
        return self.kafka.of("dead-letters")

    def outputs(self) -> list[tuple[str, int]]:
        return [(t.rollout_id, t.revision) for t in self.kafka.of("trajectories") if isinstance(t, Trajectory)]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "READ_AGAIN_S", 0.0)
    monkeypatch.setattr(processors, "SEEK_AGAIN_S", 0.0)


def rollout(name: str) -> list[Event]:
    return [started(name), called(name, 0), ended(name, 1)]


def counted() -> float:
    return DEAD_LETTERS_TOTAL.labels("assemble", "payload_lost")._value.get()


def test_a_late_event_of_a_rollout_whose_events_are_gone_is_a_dead_letter_and_the_partition_goes_on():
    async def scenario() -> None:
        world = World()
        await world.take(*rollout("a"), *rollout("b"))
        world.log.begins = 6
        before = counted()
        await world.take(rewarded("a", 1.0), *rollout("c"))
        assert world.outputs() == [("a", 0), ("b", 0), ("c", 0)]
        letter = world.letters()[0]
        assert (letter.reason, letter.topic, letter.partition, letter.offset) == ("payload_lost", "events", 0, 6)
        assert letter.value == world.log.values[6]
        assert letter.detail == "a/1 has no output with this record: topic events, partition 0, offset 0 is gone"
        assert counted() == before + 1
        assert world.processor.committable(0) == 10
        assert world.rows.row(b"a/1").applied_offset == 2

    asyncio.run(scenario())


def test_an_open_rollout_that_cannot_come_back_is_closed_with_a_dead_letter_and_never_expired_again():
    async def scenario() -> None:
        world = World()
        await world.take(started("open"), called("open", 0), *rollout("b"))
        world.restart(5)
        world.log.begins = 5
        asked = await world.expire()
        assert [e.rollout_id for e in asked] == ["open"]
        await world.take(*asked)
        assert [(x.reason, x.offset) for x in world.letters()] == [("payload_lost", 5)]
        row = world.rows.row(b"open/1")
        assert (row.closed, row.revision, row.deadline_ms) == (True, -1, 0)
        assert await world.expire() == []
        world.restart(6)
        assert await world.expire() == []
        assert world.outputs() == [("b", 0)]

        await world.take(rewarded("open", 1.0), asked[0])
        assert [x.offset for x in world.letters()] == [5, 6], "an event is put aside, one more expiry says nothing"

    asyncio.run(scenario())


def test_a_rollout_in_memory_whose_calls_are_gone_closes_without_output_and_with_a_dead_letter():
    async def scenario() -> None:
        world = World()
        await world.take(started("a"), called("a", 0))
        world.log.begins = 2
        await world.take(ended("a", 1), *rollout("b"))
        assert [(x.reason, x.offset) for x in world.letters()] == [("payload_lost", 2)]
        assert world.outputs() == [("b", 0)]
        assert (world.rows.row(b"a/1").closed, world.rows.row(b"a/1").revision) == (True, -1)
        assert await world.expire() == []

    asyncio.run(scenario())


def test_what_changes_nothing_about_a_closed_rollout_is_ignored_without_reading_it_again():
    async def scenario() -> None:
        world = World()
        await world.take(*rollout("a"), *rollout("b"))
        world.log.begins, n = 6, world.log.n_asked
        expired = Event("x", "a", 1, 9000, RolloutExpired(2, "idle"))
        await world.take(expired, replace(started("a", 2), ts_ms=9001))
        assert (world.log.n_asked, world.letters()) == (n, [])

    asyncio.run(scenario())


def test_while_kafka_does_not_answer_the_event_waits_and_is_no_dead_letter():
    async def scenario() -> None:
        world = World()
        await world.take(*rollout("a"), *rollout("b"))
        world.log.n_silent, n = 3, world.log.n_asked
        await world.take(rewarded("a", 1.0))
        assert world.outputs() == [("a", 0), ("b", 0), ("a", 1)]
        assert world.letters() == []
        assert world.log.n_asked > n + 3

    asyncio.run(scenario())


def test_a_partition_that_is_taken_away_while_kafka_is_silent_is_left_alone():
    async def scenario() -> None:
        world = World()
        await world.take(*rollout("a"), *rollout("b"))
        sent = len(world.kafka.sent)
        loop = asyncio.get_running_loop()
        world.log.n_silent = 1_000_000
        world.log.on_silence = lambda: loop.call_soon_threadsafe(world.processor._owned.clear)
        await world.take(rewarded("a", 1.0))
        assert len(world.kafka.sent) == sent

    asyncio.run(scenario())


def test_a_gap_is_sought_again_however_often_while_kafka_has_its_records_or_does_not_answer():
    async def scenario() -> None:
        world = World()
        chunk = world.log.write(*rollout("a"), *rollout("b"))
        for _ in range(10):
            assert world.processor.stalled({0: 6}) in ({}, {0: 0})
            assert await world.processor.chunk(0, chunk[3:]) == 0
        world.log.begins, world.log.n_silent = 3, 1
        assert await world.processor.chunk(0, chunk[3:]) == 0
        world.log.begins = 0
        assert await world.processor.chunk(0, chunk) is None
        await world.settled()
        assert world.outputs() == [("a", 0), ("b", 0)]
        assert world.processor.metrics.gone._value.get() == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(("begins", "gone", "then"), [(3, 3, None), (2, 2, 2)])
def test_a_gap_is_passed_over_as_far_as_kafka_says_that_it_is_gone(begins: int, gone: int, then: int | None):
    async def scenario() -> None:
        world = World()
        chunk = world.log.write(*rollout("a"), *rollout("b"))
        world.log.begins = begins
        seeks = [await world.processor.chunk(0, chunk[3:]) for _ in range(3)]
        await world.settled()
        assert seeks == [0, 0, then]
        assert world.processor.metrics.gone._value.get() == gone
        assert world.processor.position(0) == (6 if then is None else then)
        assert world.outputs() == ([("b", 0)] if then is None else [])

    asyncio.run(scenario())
