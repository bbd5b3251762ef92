"""The log is the state: the state machine of one partition, without Kafka, Faust or a clock.

What makes it exact, in the order of the letters of docs/design.md:
(a) an output is acknowledged, then its row, and only then may the committed offset pass its items (`safe` is taken
    after a chunk and published when the chunk's outputs and rows are acknowledged);
(b) at or below a row's applied offset is a replay, a known id is a duplicate, all else is late;
(c) a key without a row opens on any of its items: while it is open the committed offset does not pass its first item,
    so a tail without its head can only belong to a key that has a row;
(d) the position is owned here: `next` is the one offset that is taken;
(e) beyond `max_replay` items the oldest open keys become open rows and hold no longer.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Generic, Protocol, TypeVar

from ..avro import Record
from .rows import Row


@dataclass(slots=True)
class Item:
    """One thing that one record says about one key."""

    key: bytes
    event_id: bytes  # 8 bytes
    offset: int
    ts_ms: int
    body: object


@dataclass(frozen=True, slots=True)
class Output:
    """What a closed key gives. `partition` None: where the key's hash says."""

    key: bytes | None
    record: Record
    partition: int | None


class Late(Enum):
    """What an item means for a key that has closed."""

    IGNORE = "changes nothing and is not remembered"
    RECORD = "is remembered, the output stays"
    REVISE = "makes the next revision"


class State(Protocol):
    """The state of one key; a function of its items in the order of the log."""

    def add(self, item: Item) -> bool:
        """Take one item; False: it is void and leaves no trace."""
        ...

    def complete(self) -> bool:
        """Whether the key closes now."""
        ...

    def late(self, item: Item) -> Late:
        """What the item would mean after closing."""
        ...

    def deadline_ms(self) -> int:
        """When the key expires (ms since the epoch) if nothing more comes."""
        ...

    def expiry_reason(self) -> str:
        """Why the deadline is what it is."""
        ...

    def kept(self) -> bytes:
        """What `Stage.restore` needs."""
        ...


S = TypeVar("S", bound=State)


class Stage(Protocol[S]):
    """What differs between assemble and group."""

    needs_records: bool
    """Whether states and outputs are made of whole records, so that keeping those in memory pays."""

    def parse(self, value: bytes | None, partition: int, offset: int) -> Sequence[Item]:
        """The items of one record; none where it does not concern the stage. Raises DecodeError."""
        ...

    def new(self, key: bytes) -> S:
        """The state of a key of which nothing was seen."""
        ...

    def opens(self, item: Item) -> bool:
        """Whether the item may open a key; one that may not changes nothing for a closed one either."""
        ...

    def needs(self, row: Row) -> list[int]:
        """Offsets of the records without which `restore` cannot work."""
        ...

    def restore(self, key: bytes, row: Row, records: dict[int, bytes], partition: int) -> S:
        """The state that a row stands for."""
        ...

    def payload_offsets(self, state: S) -> list[int]:
        """Offsets of the records that the output contains whole."""
        ...

    def output(self, state: S, revision: int, partition: int, payloads: Mapping[int, bytes]) -> Output | None:
        """What the key gives as it is now; None: nothing, or nothing new."""
        ...

    def expiry(self, key: bytes, reason: str, as_of_offset: int) -> Record:
        """The record that says that the key's deadline passed."""
        ...

    def expiry_key(self, key: bytes) -> bytes:
        """Kafka key of that record."""
        ...


@dataclass(slots=True)
class Entry(Generic[S]):
    """One key in memory."""

    state: S
    closed: bool = False
    revision: int = -1
    applied: int = -1
    written_ms: int = 0
    ids: dict[bytes, None] = field(default_factory=dict)


class Step(Enum):
    """What applying an item asks of the shell."""

    NOTHING = 0
    RECORD = 1  # write the row
    CLOSE = 2  # make the output and write the row
    LOAD = 3  # bring the key's state back with `load`, then apply the item again


@dataclass(slots=True)
class Counts:
    """What happened to items; the shell turns differences into metrics."""

    applied: int = 0
    replayed: int = 0
    duplicates: int = 0
    late: int = 0
    ignored: int = 0
    void: int = 0
    held_back: int = 0


class LogPartition(Generic[S]):
    """One partition of the source topic. `rows` looks a key up in the table."""

    def __init__(
        self,
        stage: Stage[S],
        partition: int,
        start: int,
        rows: Callable[[bytes], bytes | None],
        max_replay: int,
        recent: int = 2000,
    ) -> None:
        self.partition = partition
        self.next = start
        self.open: dict[bytes, Entry[S]] = {}
        self.counts = Counts()
        self._stage = stage
        self._rows = rows
        self._pending: dict[bytes, tuple[int, bytes]] = {}  # rows not yet in the table, with their serial
        self._serial = 0
        self._recent: OrderedDict[bytes, Entry[S]] = OrderedDict()
        self._holds: dict[bytes, int] = {}  # open key -> first offset that no row covers; ascending
        self._max_replay = max_replay
        self._n_recent = recent

    @property
    def safe(self) -> int:
        """What may be committed once all outputs and rows so far are acknowledged."""
        return next(iter(self._holds.values()), self.next)

    @property
    def n_held(self) -> int:
        """Open keys that hold the committed offset back."""
        return len(self._holds)

    def apply(self, item: Item) -> Step:
        """Take one item at the offset `next`."""
        key, counts = item.key, self.counts
        entry = self.open.get(key)
        if entry is None:
            entry = self._recent.get(key)
        if entry is None:
            if self._row_bytes(key) is not None:
                return self._apply_to_row(item)
            if not self._stage.opens(item):
                counts.ignored += 1
                return Step.NOTHING
            entry = self.open[key] = Entry(self._stage.new(key))
        elif item.offset <= entry.applied:
            counts.replayed += 1
            return Step.NOTHING
        elif item.event_id in entry.ids:
            counts.duplicates += 1
            return Step.NOTHING
        if entry.closed:
            return self._apply_late(entry, item)
        if not entry.state.add(item):
            counts.void += 1
            if not entry.ids:
                del self.open[key]
            return Step.NOTHING
        self._remember(entry, item)
        if key not in self._holds:
            self._holds[key] = item.offset
        counts.applied += 1
        return Step.CLOSE if entry.state.complete() else Step.NOTHING

    def _apply_to_row(self, item: Item) -> Step:
        row = self.row(item.key)
        assert row is not None
        if item.offset <= row.applied_offset:
            self.counts.replayed += 1
            return Step.NOTHING
        if item.event_id in {row.ids[i : i + 8] for i in range(0, len(row.ids), 8)}:
            self.counts.duplicates += 1
            return Step.NOTHING
        if row.closed and not self._stage.opens(item):
            # Asked before loading: what the load would read may be gone by now.
            self.counts.ignored += 1
            return Step.NOTHING
        return Step.LOAD

    def _apply_late(self, entry: Entry[S], item: Item) -> Step:
        late = entry.state.late(item)
        if late is Late.IGNORE or not entry.state.add(item):
            self.counts.ignored += 1
            return Step.NOTHING
        self._remember(entry, item)
        self.counts.late += 1
        return Step.CLOSE if late is Late.REVISE else Step.RECORD

    @staticmethod
    def _remember(entry: Entry[S], item: Item) -> None:
        entry.ids[item.event_id] = None
        entry.applied = item.offset
        entry.written_ms = item.ts_ms

    def row(self, key: bytes) -> Row | None:
        """The key's row, also one that is on its way into the table."""
        data = self._row_bytes(key)
        return Row.decode(data) if data is not None else None

    def _row_bytes(self, key: bytes) -> bytes | None:
        pending = self._pending.get(key)
        return pending[1] if pending is not None else self._rows(key)

    def needs(self, key: bytes) -> list[int]:
        """Offsets of the records that `load` wants."""
        row = self.row(key)
        return self._stage.needs(row) if row is not None else []

    def load(self, key: bytes, records: dict[int, bytes]) -> None:
        """Bring the state of a key with a row back into memory."""
        row = self.row(key)
        assert row is not None
        entry = Entry(
            self._stage.restore(key, row, records, self.partition),
            closed=row.closed,
            revision=row.revision,
            applied=row.applied_offset,
            written_ms=row.written_ms,
            ids=dict.fromkeys(row.ids[i : i + 8] for i in range(0, len(row.ids), 8)),
        )
        if row.closed:
            self._keep_recent(key, entry)
        else:
            self.open[key] = entry

    def entry(self, key: bytes) -> Entry[S]:
        """The entry of a key that `apply` asked something for."""
        entry = self.open.get(key)
        return entry if entry is not None else self._recent[key]

    def close(self, key: bytes, emitted: bool) -> tuple[bytes, int]:
        """After Step.CLOSE, with whether there was an output: the key's row, and its serial for `settled`."""
        entry = self.entry(key)
        entry.closed = True
        entry.revision += emitted
        if self.open.pop(key, None) is not None:
            self._holds.pop(key, None)
        self._keep_recent(key, entry)
        return self.record(key)

    def close_unloaded(self, key: bytes) -> tuple[bytes, int] | None:
        """Instead of `load`, where its records are gone: the closed row of an open key; None where it is closed."""
        row = self.row(key)
        assert row is not None
        return None if row.closed else self._write(key, replace(row, closed=True, deadline_ms=0))

    def record(self, key: bytes) -> tuple[bytes, int]:
        """The key's row as it is now, and its serial."""
        entry = self.entry(key)
        row = Row(
            entry.closed,
            entry.revision,
            entry.applied,
            0 if entry.closed else entry.state.deadline_ms(),
            entry.written_ms,
            b"".join(entry.ids),
            entry.state.kept(),
        )
        return self._write(key, row)

    def _write(self, key: bytes, row: Row) -> tuple[bytes, int]:
        self._serial += 1
        self._pending[key] = (self._serial, row.encode())
        return self._pending[key][1], self._serial

    def settled(self, key: bytes, serial: int) -> None:
        """The row is acknowledged and in the table."""
        pending = self._pending.get(key)
        if pending is not None and pending[0] == serial:
            del self._pending[key]

    def hold_back(self) -> list[bytes]:
        """Keys that hold more than `max_replay` items back: they hold no longer, their rows must be written now."""
        keys: list[bytes] = []
        for key, offset in self._holds.items():
            if self.next - offset <= self._max_replay:
                break
            keys.append(key)
        for key in keys:
            del self._holds[key]
        self.counts.held_back += len(keys)
        return keys

    def _keep_recent(self, key: bytes, entry: Entry[S]) -> None:
        # One is always kept: the key being worked on.
        self._recent[key] = entry
        self._recent.move_to_end(key)
        while len(self._recent) > max(1, self._n_recent):
            self._recent.popitem(last=False)
