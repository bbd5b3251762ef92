"""The group stage: trajectories in, groups as keys, batches out."""

from collections.abc import Mapping, Sequence

from xxhash import xxh3_64_digest

from ..avro import GroupExpired, Member, Record, SchemaStore, Trajectory, decode_any
from ..avro.errors import DecodeError
from .grouping import Arrival, Group
from .log_state import Item, Output
from .rows import Row


class GroupStage:
    """Implements log_state.Stage for the topic `trajectories`."""

    needs_records = False

    def __init__(self, timeout_ms: int, min_group: int, train_on_serve: bool, store: SchemaStore) -> None:
        self._timeout_ms = timeout_ms
        self._min_group = min_group
        self._purposes = {"train", "serve"} if train_on_serve else {"train"}
        self._store = store

    def parse(self, value: bytes | None, partition: int, offset: int) -> Sequence[Item]:
        """One item; none for what is never trained: validation, attempts that are run again."""
        if value is None:
            raise DecodeError("a record without a value")
        record = decode_any(value, self._store)
        if isinstance(record, GroupExpired):
            event_id = xxh3_64_digest(f"expired/{record.as_of_offset}".encode())
            return (Item(record.group_id.encode(), event_id, offset, 0, record),)
        if not isinstance(record, Trajectory):
            raise DecodeError(f"a {type(record).__name__} in the topic of trajectories")
        if record.purpose not in self._purposes or not record.final:
            return ()
        member = Member(
            rollout_id=record.rollout_id,
            attempt=record.attempt,
            revision=record.revision,
            partition=partition,
            offset=offset,
            status=record.status,
            reward=record.reward,
            oldest_version=record.oldest_version,
            newest_version=record.newest_version,
            n_calls=record.n_calls,
            n_completion_tokens=record.n_completion_tokens,
        )
        arrival = Arrival(member, record.final, record.purpose, record.policy, record.group_size, record.task_digest)
        event_id = xxh3_64_digest(f"{record.rollout_id}/{record.attempt}/{record.revision}".encode())
        return (Item(record.group_id.encode(), event_id, offset, record.ended_ms, arrival),)

    def new(self, key: bytes) -> Group:
        """The state of a group of which nothing was seen."""
        return Group(key.decode(), self._timeout_ms, self._min_group)

    def opens(self, item: Item) -> bool:
        """Any trajectory."""
        return isinstance(item.body, Arrival)

    def needs(self, row: Row) -> list[int]:
        """Nothing: a group's row holds its members."""
        return []

    def restore(self, key: bytes, row: Row, records: dict[int, bytes], partition: int) -> Group:
        """From the row alone."""
        return Group.from_kept(row.kept, self._timeout_ms, self._min_group)

    def payload_offsets(self, state: Group) -> list[int]:
        """Batches are references."""
        return []

    def output(self, state: Group, revision: int, partition: int, payloads: Mapping[int, bytes]) -> Output | None:
        """The batch of the group as it is now."""
        batch = state.batch(revision)
        return None if batch is None else Output(batch.policy.encode(), batch, 0)

    def expiry(self, key: bytes, reason: str, as_of_offset: int) -> Record:
        """The record that says that a group's deadline passed."""
        return GroupExpired(key.decode(), as_of_offset, reason)

    def expiry_key(self, key: bytes) -> bytes:
        """Kafka key of that record."""
        return key
