"""Takes chunks of one topic through the operator; sends outputs, then rows, then lets the committed offset move."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Generic, Protocol, TypeVar

from ..avro import Trajectory, encode, now_ms
from ..avro.errors import DecodeError
from ..infra.deadletters import dead_letter
from ..infra.kafka import KafkaUnavailableError
from ..infra.objects import ObjectStore
from ..infra.parking import park
from ..infra.topics import MAX_RECORD_BYTES
from .deliveries import Batch, Deliveries
from .log_state import Item, LogPartition, Output, Stage, State, Step
from .metrics import StreamMetrics
from .payloads import PayloadCache, PayloadLostError, Refetch
from .rows import Row

log = logging.getLogger(__name__)
S = TypeVar("S", bound=State)

MAX_UNSETTLED = 6
# A refused chunk is sought again: mostly it was a dropped buffer. After this many, Kafka is asked what it still has.
SEEKS_BEFORE_KAFKA_IS_ASKED = 2
SEEK_AGAIN_S = 1.0
READ_AGAIN_S = 1.0
QUIET_S = 2.0
QUIET_WHILE_BUSY_S = 15.0
ASK_EXPIRY_AGAIN_MS = 30_000


class LogRecord(Protocol):
    """What a consumer delivers."""

    offset: int
    key: bytes | None
    value: bytes | None


class RowStore(Protocol):
    """The table, one partition at a time."""

    def get(self, partition: int, key: bytes) -> bytes | None:
        """The row of a key."""
        ...

    def put(self, partition: int, rows: Sequence[tuple[bytes, bytes]], changelog_offset: int) -> None:
        """Store rows whose changelog records are acknowledged up to `changelog_offset`."""
        ...

    def scan(self, partition: int) -> Iterable[tuple[bytes, bytes]]:
        """All rows."""
        ...


@dataclass(frozen=True, slots=True)
class Topics:
    """Full names of what a processor reads and writes."""

    source: str
    output: str
    changelog: str
    dead_letters: str


@dataclass(slots=True)
class Owned(Generic[S]):
    """One partition that this worker owns."""

    log: LogPartition[S]
    durable: int  # what may be committed now
    settling: deque[asyncio.Task[None]] = field(default_factory=deque)
    dormant: dict[bytes, Row] = field(default_factory=dict)  # open rows of keys that are not in memory
    expiry_asked_ms: dict[bytes, int] = field(default_factory=dict)
    sought_at: float = 0.0
    n_seeks: int = 0
    moved_at: float = field(default_factory=time.monotonic)


class TakenAwayError(Exception):
    """The partition went to another worker in the middle of a chunk."""


@dataclass(slots=True)
class Work:
    """What one chunk gave and what must be acknowledged before its offsets may be committed."""

    sends: Batch
    rows: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    n_outputs: int = 0


class Processor(Generic[S]):
    """One stage on all partitions of this worker. Lives in the event loop; `crash` is told of failures behind it."""

    def __init__(
        self,
        role: str,
        stage: Stage[S],
        topics: Topics,
        rows: RowStore,
        deliveries: Deliveries,
        refetch: Refetch,
        objects: ObjectStore,
        metrics: StreamMetrics,
        crash: Callable[[BaseException], None],
        *,
        max_replay: int,
        recent: int,
        cache_bytes: int,
    ) -> None:
        self._role = role
        self._stage = stage
        self.topics = topics
        self._rows = rows
        self._deliveries = deliveries
        self._refetch = refetch
        self._objects = objects
        self.metrics = metrics
        self._crash = crash
        # The other half is for what is taken and not committed yet: chunks that settle, and a second's commits.
        self._max_replay = max_replay // 2
        self._recent = recent
        self._cache = PayloadCache(cache_bytes)
        self._owned: dict[int, Owned[S]] = {}
        self._refetch_lock = asyncio.Lock()
        self._moved_at = time.monotonic()
        self.n_progress = 0

    # --- ownership ----------------------------------------------------------------------------------------------------

    def owned(self) -> list[int]:
        """Partitions owned now."""
        return list(self._owned)

    def own(self, partition: int, start: int) -> None:
        """Begin at the committed offset `start`; the table is recovered."""
        state = LogPartition(
            self._stage, partition, start, lambda key: self._rows.get(partition, key), self._max_replay, self._recent
        )
        own = self._owned[partition] = Owned(state, start)
        for key, data in self._rows.scan(partition):
            row = Row.decode(data)
            if not row.closed:
                own.dormant[key] = row
        self.n_progress += 1
        log.info("%s owns partition %d from offset %d, %d dormant", self._role, partition, start, len(own.dormant))

    async def disown(self, partitions: Iterable[int], timeout_s: float = 5.0) -> None:
        """Finish what is on its way out, then forget the partitions and their open keys."""
        gone = [self._owned.pop(p) for p in partitions if p in self._owned]
        tasks = [task for own in gone for task in own.settling]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        for task in tasks:
            task.cancel()
        for own in gone:
            self._cache.drop_partition(own.log.partition)

    def committable(self, partition: int) -> int | None:
        """What the committed offset may be; None where the partition is not owned."""
        own = self._owned.get(partition)
        return own.durable if own is not None else None

    def position(self, partition: int) -> int | None:
        """The next offset wanted."""
        own = self._owned.get(partition)
        return own.log.next if own is not None else None

    def unsettled(self) -> int:
        """Chunks whose outputs or rows are not acknowledged yet."""
        return sum(len(own.settling) for own in self._owned.values())

    # --- records ------------------------------------------------------------------------------------------------------

    async def chunk(self, partition: int, records: Sequence[LogRecord]) -> int | None:
        """Take a chunk. Returns the offset to seek to where it does not start where the last one ended."""
        own = self._owned.get(partition)
        if own is None or records[-1].offset < own.log.next:
            return None
        if records[0].offset > own.log.next and not await self._takes_gap(own, records[0].offset):
            return self.seek_wanted(own) if self._owned.get(partition) is own else None
        before = astuple(own.log.counts)
        work = Work(self._deliveries.batch())
        n = 0
        for record in records:
            if record.offset < own.log.next:
                continue
            try:
                await self._record(own, work, record)
            except TakenAwayError:
                return None
            n += 1
        for key in own.log.hold_back():
            work.rows[key] = own.log.record(key)
        self._moved_at = own.moved_at = time.monotonic()
        own.n_seeks = 0
        self.n_progress += 1
        self.metrics.records.inc(n)
        self.metrics.count(before, astuple(own.log.counts))
        await self._hand_over(own, work)
        return None

    async def _record(self, own: Owned[S], work: Work, record: LogRecord) -> None:
        state, value = own.log, record.value
        try:
            items = self._stage.parse(value, state.partition, record.offset)
        except DecodeError as error:
            await self._dead_letter(work, own, record, "undecodable", str(error))
            items = ()
        if value is not None and self._stage.needs_records:
            self._cache.put(state.partition, record.offset, value)
        for item in items:
            step = state.apply(item)
            if step is not Step.NOTHING:
                await self._act(own, work, record, item, step)
        if self._owned.get(state.partition) is not own:
            raise TakenAwayError
        state.next = record.offset + 1

    async def _act(self, own: Owned[S], work: Work, record: LogRecord, item: Item, step: Step) -> None:
        """What a step asks for. An item whose key needs records that are gone becomes a dead letter."""
        state, key = own.log, item.key
        if step is Step.LOAD:
            try:
                records = await self._payloads(own, state.needs(key))
            except PayloadLostError as error:
                await self._give_up(own, work, record, key, error)
                return
            state.load(key, records)
            own.dormant.pop(key, None)
            step = state.apply(item)
        if step is Step.RECORD:
            work.rows[key] = state.record(key)
        elif step is Step.CLOSE:
            await self._close(own, work, record, key)

    async def _close(self, own: Owned[S], work: Work, record: LogRecord, key: bytes) -> None:
        state, entry = own.log, own.log.entry(key)
        try:
            payloads = await self._payloads(own, self._stage.payload_offsets(entry.state))
        except PayloadLostError as error:
            work.rows[key] = state.close(key, emitted=False)
            await self._lost(own, work, record, key, error)
            return
        output = self._stage.output(entry.state, entry.revision + 1, state.partition, payloads)
        work.rows[key] = state.close(key, output is not None)
        if output is None:
            self.metrics.suppressed.inc()
        else:
            await self._send(work, output)

    async def _give_up(self, own: Owned[S], work: Work, record: LogRecord, key: bytes, error: PayloadLostError) -> None:
        """A key that cannot come back: an open one is closed, or its expiry would be asked for without end."""
        own.dormant.pop(key, None)
        if (row := own.log.close_unloaded(key)) is not None:
            work.rows[key] = row
        await self._lost(own, work, record, key, error)

    async def _send(self, work: Work, output: Output) -> None:
        value = encode(output.record)
        if len(value) > MAX_RECORD_BYTES and isinstance(output.record, Trajectory):
            value = await asyncio.to_thread(park, output.record, self._objects)
        await work.sends.send(self.topics.output, output.key, value, output.partition)
        work.n_outputs += 1

    async def _lost(self, own: Owned[S], work: Work, record: LogRecord, key: bytes, error: PayloadLostError) -> None:
        detail = f"{key.decode()} has no output with this record: {error}"
        await self._dead_letter(work, own, record, "payload_lost", detail)

    async def _dead_letter(self, work: Work, own: Owned[S], record: LogRecord, reason: str, detail: str) -> None:
        partition = own.log.partition
        log.warning("%s: %s/%d at %d: %s", self._role, self.topics.source, partition, record.offset, detail)
        letter = dead_letter(
            self._role,
            reason,
            detail,
            self.topics.source,
            partition,
            record.offset,
            record.key,
            record.value,
        )
        await work.sends.send(self.topics.dead_letters, record.key, encode(letter))

    async def _payloads(self, own: Owned[S], offsets: Sequence[int]) -> dict[int, bytes]:
        """Values at the offsets. Waits while Kafka does not answer. Raises PayloadLostError and TakenAwayError."""
        partition = own.log.partition
        found, missing = self._cache.get(partition, offsets)
        while missing:
            try:
                async with self._refetch_lock:
                    found |= await asyncio.to_thread(self._refetch.read, partition, missing)
                self.metrics.refetched.inc(len(missing))
                break
            except KafkaUnavailableError as error:
                log.warning("%s cannot read records again, it tries on: %s", self._role, error)
            await asyncio.sleep(READ_AGAIN_S)
            if self._owned.get(partition) is not own:
                raise TakenAwayError
        return found

    # --- acknowledgement ----------------------------------------------------------------------------------------------

    async def _hand_over(self, own: Owned[S], work: Work) -> None:
        """Outputs, then rows, then the offset: each only when the one before is acknowledged, in the chunks' order."""
        while len(own.settling) >= MAX_UNSETTLED:
            await asyncio.wait([own.settling[0]])
        if self._owned.get(own.log.partition) is not own:
            return
        previous = own.settling[-1] if own.settling else None
        task = asyncio.ensure_future(self._settle(own, work, own.log.safe, previous))
        own.settling.append(task)
        task.add_done_callback(lambda done: self._settled(own, done))

    async def _settle(self, own: Owned[S], work: Work, safe: int, previous: "asyncio.Task[None] | None") -> None:
        began = time.monotonic()
        await work.sends.acknowledged()
        if previous is not None:
            await previous
        if work.rows:
            partition = own.log.partition
            rows = self._deliveries.batch()
            for key, (row, _) in work.rows.items():
                await rows.send(self.topics.changelog, key, row, partition)
            await rows.acknowledged()
            self._rows.put(partition, [(key, row) for key, (row, _) in work.rows.items()], rows.last_offset)
            for key, (_, serial) in work.rows.items():
                own.log.settled(key, serial)
        own.durable = max(own.durable, safe)
        self.n_progress += 1
        self.metrics.outputs.labels(self._role).inc(work.n_outputs)
        self.metrics.settle_seconds.observe(time.monotonic() - began)

    def _settled(self, own: Owned[S], task: "asyncio.Task[None]") -> None:
        if task in own.settling:
            own.settling.remove(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crash(error)

    # --- gaps ---------------------------------------------------------------------------------------------------------

    def seek_wanted(self, own: Owned[S]) -> int | None:
        """The offset to seek to, unless that was asked for a moment ago."""
        now = time.monotonic()
        if now - own.sought_at < SEEK_AGAIN_S:
            return None
        own.sought_at = now
        own.n_seeks += 1
        self.metrics.gaps.inc()
        return own.log.next

    async def _takes_gap(self, own: Owned[S], first: int) -> bool:
        """Whether Kafka has nothing before `first` (retention, compaction): what is skipped is never read again.

        Kafka itself is asked, by a fetch that begins at the offset wanted: chunks after a seek may be from before it.
        """
        partition, wanted = own.log.partition, own.log.next
        if own.n_seeks < SEEKS_BEFORE_KAFKA_IS_ASKED:
            return False
        try:
            async with self._refetch_lock:
                there = min(first, await asyncio.to_thread(self._refetch.first, partition, wanted))
        except KafkaUnavailableError as error:
            log.warning("%s does not know what is missing, it seeks again: %s", self._role, error)
            return False
        if there > wanted:
            log.warning(
                "%s: %s/%d: offsets %d to %d are gone", self._role, self.topics.source, partition, wanted, there - 1
            )
            self.metrics.gone.inc(there - wanted)
            own.log.next = there
        return there == first

    def stalled(self, ends: dict[int, int]) -> dict[int, int]:
        """Partition -> offset to seek to, of partitions with records before them that do not come."""
        seeks: dict[int, int] = {}
        now = time.monotonic()
        for partition, own in self._owned.items():
            behind = ends.get(partition, 0) > own.log.next and not own.settling
            # While other partitions move, this one's chunks are probably waiting for their turn.
            quiet = now - self._moved_at > QUIET_S or now - own.moved_at > QUIET_WHILE_BUSY_S
            quiet = quiet and now - own.moved_at > QUIET_S
            if behind and quiet and (offset := self.seek_wanted(own)) is not None:
                seeks[partition] = offset
        return seeks

    # --- time ---------------------------------------------------------------------------------------------------------

    async def expire(self, ends: dict[int, int]) -> None:
        """Ask for the expiry of keys whose deadline passed, where a partition is read to its end. Writes no state."""
        now = now_ms()
        due: list[tuple[int, bytes, int, str]] = []
        for partition, own in self._owned.items():
            if partition not in ends or ends[partition] > own.log.next or own.settling:
                continue
            for key, entry in own.log.open.items():
                if entry.state.deadline_ms() <= now:
                    due.append((partition, key, entry.applied, entry.state.expiry_reason()))
            for key, row in list(own.dormant.items()):
                if key in own.log.open:
                    del own.dormant[key]
                elif row.deadline_ms <= now:
                    due.append((partition, key, row.applied_offset, "idle"))
        batch = self._deliveries.batch()
        for partition, key, as_of, reason in due:
            own = self._owned[partition]
            if now - own.expiry_asked_ms.get(key, 0) < ASK_EXPIRY_AGAIN_MS:
                continue
            own.expiry_asked_ms = {k: t for k, t in own.expiry_asked_ms.items() if now - t < ASK_EXPIRY_AGAIN_MS}
            own.expiry_asked_ms[key] = now
            record = self._stage.expiry(key, reason, as_of)
            await batch.send(self.topics.source, self._stage.expiry_key(key), encode(record), partition)
            self.metrics.expiries.labels(reason).inc()
        await batch.acknowledged()

    def observe(self, ends: dict[int, int]) -> None:
        """Set the gauges."""
        for partition, own in self._owned.items():
            label = str(partition)
            self.metrics.open.labels(label).set(len(own.log.open) + len(own.dormant))
            self.metrics.held.labels(label).set(own.log.n_held)
            self.metrics.lag.labels(label).set(max(0, ends.get(partition, own.log.next) - own.log.next))
            self.metrics.replay.labels(label).set(own.log.next - own.durable)
        self.metrics.cache_bytes.set(self._cache.n_bytes)
