"""A log, a table and a shell in memory: what processor.py does with Kafka, with crashes wherever a test wants them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from leyden.avro import Record, encode
from leyden.avro.errors import DecodeError
from leyden.stream.log_state import LogPartition, Step


class Crash(Exception):
    """The process dies here."""


@dataclass
class Simulation:
    """One partition. `crash` is asked at each point where a real worker can die, with the name of the point."""

    stage: Any
    log: list[bytes]
    max_replay: int = 10_000
    recent: int = 2
    chunk: int = 7
    crash: Callable[[str], bool] = lambda _: False
    table: dict[bytes, bytes] = field(default_factory=dict)
    published: list[Record] = field(default_factory=list)
    poison: list[int] = field(default_factory=list)
    committed: int = 0
    n_starts: int = 0
    most_reread: int = 0
    read_up_to: int = 0

    def run(self) -> "Simulation":
        """Start workers until one has read the log to its end."""
        while True:
            self.n_starts += 1
            self.most_reread = max(self.most_reread, self.read_up_to - self.committed)
            try:
                self.worker()
            except Crash:
                continue
            return self

    def worker(self) -> LogPartition:
        """One life: from the committed offset to the end of the log."""
        state = LogPartition(self.stage, 0, self.committed, self.table.get, self.max_replay, self.recent)
        while state.next < len(self.log):
            self.one_chunk(state, self.log[state.next : state.next + self.chunk])
        return state

    def one_chunk(self, state: LogPartition, values: Sequence[bytes]) -> None:
        """Outputs, then rows, then the offset."""
        outputs: list[Record] = []
        rows: dict[bytes, tuple[bytes, int]] = {}
        for value in values:
            try:
                items = self.stage.parse(value, 0, state.next)
            except DecodeError:
                self.poison.append(state.next)
                items = ()
            for item in items:
                self.one_item(state, item, outputs, rows)
            state.next += 1
        self.read_up_to = max(self.read_up_to, state.next)
        for key in state.hold_back():
            rows[key] = state.record(key)
        for output in outputs:
            self.point("before an output")
            self.published.append(output)
        for key, (row, serial) in rows.items():
            self.point("before a row")
            self.table[key] = row
            state.settled(key, serial)
        self.point("before the commit")
        self.committed = max(self.committed, state.safe)
        self.point("after the commit")

    def one_item(self, state: LogPartition, item: Any, outputs: list[Record], rows: dict[bytes, Any]) -> None:
        """As Processor._act."""
        step = state.apply(item)
        if step is Step.LOAD:
            state.load(item.key, {offset: self.log[offset] for offset in state.needs(item.key)})
            step = state.apply(item)
        if step is Step.RECORD:
            rows[item.key] = state.record(item.key)
        elif step is Step.CLOSE:
            entry = state.entry(item.key)
            payloads = {offset: self.log[offset] for offset in self.stage.payload_offsets(entry.state)}
            output = self.stage.output(entry.state, entry.revision + 1, 0, payloads)
            rows[item.key] = state.close(item.key, output is not None)
            if output is not None:
                outputs.append(output.record)

    def point(self, name: str) -> None:
        """A place where the process can die."""
        if self.crash(name):
            raise Crash(name)

    def distinct(self, identity: Callable[[Any], tuple]) -> dict[tuple, bytes]:
        """Published outputs without their copies; fails where two copies differ."""
        seen: dict[tuple, bytes] = {}
        for record in self.published:
            data = encode(record)
            assert seen.setdefault(identity(record), data) == data, "copies of an output must be byte-equal"
        return seen
