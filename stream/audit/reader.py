"""Reads ledgers, topics and manifests into the spool; holds one manifest, one record and small indexes at a time.

Order matters on a running deployment: manifests first, then ledgers, then the topics downstream. What a manifest or a
ledger names must then be found in what is read after it; what a topic gained in between is left out by its extent.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from confluent_kafka import Message

from ...avro import GroupExpired, Trajectory, TransitionBatch, decode, decode_any, decode_head, now_ms
from ...infra import kafka, manifest, topics
from ...infra.errors import DecodeError
from ...infra.manifest import BatchEntry
from ...infra.objects import ObjectStore
from ...infra.parking import unpark
from ...infra.schema_exchange import learning_store
from ...infra.settings import RoleSettings
from .batches import account, audit_ranges
from .facts import GroupExpiredSeen, GroupFact, RolloutFact
from .report import Report
from .spool import Spool
from .translate import of_batch, of_event, of_ledger, of_manifest, of_members, of_trajectory
from .world import Extent, VersionSeen, World


class Reader:
    """One pass over everything. `read` fills the spools and the world."""

    def __init__(self, settings: RoleSettings, grace_ms: int) -> None:
        self._settings = settings
        self._objects = ObjectStore(settings.objects)
        self._schemas = learning_store(self._objects)
        self._too_new: set[tuple[int, int]] = set()
        self.world = World(policy=settings.policy, now_ms=now_ms(), grace_ms=grace_ms)
        self.report = Report()

    def expected_facts(self) -> int:
        """Upper bound by the size of the topics, so that the spool can choose its parts."""
        reader = kafka.consumer(self._settings.kafka, "leyden-audit")
        try:
            names = (topics.EVENTS, topics.TRAJECTORIES, topics.BATCHES)
            extents = [kafka.end_offsets(reader, self._settings.prefix + name) for name in names]
            return sum(end - first for extent in extents for first, end in extent.values())
        finally:
            reader.close()

    def read(self, ledgers: Iterable[Path], facts: Spool[RolloutFact], groups: Spool[GroupFact]) -> None:
        """Everything, in the order of the module's docstring."""
        for version in manifest.versions(self._settings.policy, self._objects):
            self._read_manifest(version, facts)
        audit_ranges(self.world, self.report)
        for path in ledgers:
            with path.open("rb") as lines:
                for n, line in enumerate(lines, 1):
                    entry = of_ledger(line, f"{path}:{n}")
                    facts.add(entry.rollout_id, entry)
        self._read_events(facts)
        self._read_trajectories(facts, groups)
        self._read_batches(facts)

    def _read_manifest(self, version: int, facts: Spool[RolloutFact]) -> None:
        entry, _ = manifest.load(self._settings.policy, version, self._objects)
        self.world.versions[version] = VersionSeen(version, entry.parent, entry.offset_from, entry.offset_to)
        for fact in of_manifest(entry):
            facts.add(fact.rollout_id, fact)

    def _read_events(self, facts: Spool[RolloutFact]) -> None:
        self.world.events = self._extent(topics.EVENTS)
        cut = {partition for partition, first in self.world.events.first.items() if first > 0}
        for message in self._messages(topics.EVENTS, self.world.events):
            try:
                event = decode_head(message.value() or b"", self._schemas)
            except DecodeError:
                self.report.figures["events_undecodable"] += 1
                continue
            partition = message.partition() or 0
            if partition in cut:
                cut.remove(partition)
                self.world.events_since_ms = max(self.world.events_since_ms, event.ts_ms)
            fact = of_event(event, partition, message.offset() or 0)
            if fact is not None:
                facts.add(fact.rollout_id, fact)

    def _read_trajectories(self, facts: Spool[RolloutFact], groups: Spool[GroupFact]) -> None:
        self.world.trajectories = self._extent(topics.TRAJECTORIES)
        for message in self._messages(topics.TRAJECTORIES, self.world.trajectories):
            raw, partition, offset = message.value() or b"", message.partition() or 0, message.offset() or 0
            try:
                record = decode_any(raw, self._schemas)
            except DecodeError:
                self.report.figures["trajectories_undecodable"] += 1
                continue
            if isinstance(record, GroupExpired):
                groups.add(record.group_id, GroupExpiredSeen(record.group_id, record.as_of_offset, partition, offset))
            elif isinstance(record, Trajectory):
                if not self.world.events.read(record.partition, record.last_offset):
                    self._too_new.add((partition, offset))
                    continue
                whole = unpark(record, self._objects, self._schemas)
                facts.add(record.rollout_id, of_trajectory(whole, raw, partition, offset, self._schemas))
                _raise_to(self.world.assembled_to, record.partition, record.last_offset)

    def _read_batches(self, facts: Spool[RolloutFact]) -> None:
        self.world.batches = self._extent(topics.BATCHES)
        said = _Manifests(self.world, self._objects)
        for message in self._messages(topics.BATCHES, self.world.batches):
            offset = message.offset() or 0
            try:
                batch = decode(message.value() or b"", TransitionBatch, self._schemas)
            except DecodeError:
                self.report.figures["batches_undecodable"] += 1
                continue
            if batch.policy != self._settings.policy:
                continue
            outcomes = account(of_batch(batch, offset), said.of(offset), self.world, self.report)
            for member in of_members(batch, offset, outcomes):
                _raise_to(self.world.grouped_to, member.at_partition, member.at_offset)
                if (member.at_partition, member.at_offset) not in self._too_new and self.world.trajectories.read(
                    member.at_partition, member.at_offset
                ):
                    facts.add(member.rollout_id, member)

    def _extent(self, topic: str) -> Extent:
        reader = kafka.consumer(self._settings.kafka, "leyden-audit")
        try:
            ends = kafka.end_offsets(reader, self._settings.prefix + topic)
        finally:
            reader.close()
        return Extent({p: lo for p, (lo, _) in ends.items()}, {p: hi for p, (_, hi) in ends.items()})

    def _messages(self, topic: str, extent: Extent) -> Iterator[Message]:
        for message in kafka.read_all(self._settings.kafka, self._settings.prefix + topic):
            if extent.read(message.partition() or 0, message.offset() or 0):
                self.report.figures[f"records_{topic}"] += 1
                yield message


class _Manifests:
    """The versions that consumed an offset, for offsets that only grow; manifests are read again when needed."""

    def __init__(self, world: World, objects: ObjectStore) -> None:
        self._coming = sorted(world.versions.values(), key=lambda v: v.offset_from, reverse=True)
        self._here: list[VersionSeen] = []

        @lru_cache(maxsize=8)
        def entries(version: int) -> dict[int, list[BatchEntry]]:
            by_offset: dict[int, list[BatchEntry]] = {}
            for entry in manifest.load(world.policy, version, objects)[0].batches:
                by_offset.setdefault(entry.offset, []).append(entry)
            return by_offset

        self._entries = entries

    def of(self, offset: int) -> list[tuple[int, list[BatchEntry]]]:
        """(version, its entries for the offset), oldest version first."""
        while self._coming and self._coming[-1].offset_from <= offset:
            self._here.append(self._coming.pop())
        self._here = [v for v in self._here if v.offset_to > offset]
        return [
            (v.version, self._entries(v.version).get(offset, [])) for v in sorted(self._here, key=lambda v: v.version)
        ]


def _raise_to(marks: dict[int, int], partition: int, offset: int) -> None:
    marks[partition] = max(marks.get(partition, -1), offset)
