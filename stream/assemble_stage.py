"""The assemble stage: events in, attempts as keys, trajectories out."""

from collections.abc import Mapping, Sequence

from xxhash import xxh3_64_digest

from ..avro import (
    Event,
    EventHead,
    Record,
    RolloutExpired,
    RolloutStarted,
    SchemaStore,
    decode_head,
    new_id,
    now_ms,
)
from ..avro.errors import DecodeError
from .assembly import Attempt, Limits
from .log_state import Item, Output
from .rows import Row, unpack_offsets


def attempt_key(rollout_id: str, attempt: int) -> bytes:
    """Key of an attempt in the table."""
    return f"{rollout_id}/{attempt}".encode()


class AssembleStage:
    """Implements log_state.Stage for the topic `events`."""

    needs_records = True

    def __init__(self, limits: Limits, store: SchemaStore) -> None:
        self._limits = limits
        self._store = store

    def parse(self, value: bytes | None, partition: int, offset: int) -> Sequence[Item]:
        """One item; two where an attempt begins that is not the first: the one before it ends with that."""
        if value is None:
            raise DecodeError("a record without a value")
        head = decode_head(value, self._store)
        event_id = xxh3_64_digest(head.event_id.encode())
        item = Item(attempt_key(head.rollout_id, head.attempt), event_id, offset, head.ts_ms, head)
        if head.attempt > 1 and isinstance(head.body, RolloutStarted):
            before = attempt_key(head.rollout_id, head.attempt - 1)
            return Item(before, event_id, offset, head.ts_ms, head), item
        return (item,)

    def new(self, key: bytes) -> Attempt:
        """The state of an attempt of which nothing was seen."""
        rollout_id, _, attempt = key.decode().rpartition("/")
        return Attempt(rollout_id, int(attempt), self._limits)

    def opens(self, item: Item) -> bool:
        """Any event of the attempt but an expiry; the next attempt's start does not open this one."""
        head = item.body
        assert isinstance(head, EventHead)
        return not isinstance(head.body, RolloutExpired) and item.key == attempt_key(head.rollout_id, head.attempt)

    def needs(self, row: Row) -> list[int]:
        """All events of the attempt."""
        return unpack_offsets(row.kept)

    def restore(self, key: bytes, row: Row, records: dict[int, bytes], partition: int) -> Attempt:
        """Add the attempt's events again."""
        state = self.new(key)
        for offset in unpack_offsets(row.kept):
            for item in self.parse(records[offset], partition, offset):
                if item.key == key:
                    state.add(item)
        return state

    def payload_offsets(self, state: Attempt) -> list[int]:
        """Offsets of the records that the output contains whole."""
        return state.payload_offsets()

    def output(self, state: Attempt, revision: int, partition: int, payloads: Mapping[int, bytes]) -> Output | None:
        """The trajectory of the attempt as it is now."""
        trajectory = state.trajectory(revision, partition, payloads)
        return None if trajectory is None else Output(trajectory.group_id.encode(), trajectory, None)

    def expiry(self, key: bytes, reason: str, as_of_offset: int) -> Record:
        """The event that says that an attempt's deadline passed."""
        rollout_id, _, attempt = key.decode().rpartition("/")
        return Event(new_id(), rollout_id, int(attempt), now_ms(), RolloutExpired(as_of_offset, reason))

    def expiry_key(self, key: bytes) -> bytes:
        """Kafka key of that event."""
        return key.rpartition(b"/")[0]
