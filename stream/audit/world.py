"""What the audit of every part needs: how far each log reaches, how far each reader came, who descends from whom."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class VersionSeen:
    """One version that has a manifest."""

    version: int
    parent: int | None
    offset_from: int
    offset_to: int


@dataclass(frozen=True, slots=True)
class Extent:
    """Of one topic, by partition: the first offset kept, and one behind the last that the audit reads."""

    first: dict[int, int] = field(default_factory=dict)
    end: dict[int, int] = field(default_factory=dict)

    def kept(self, partition: int, offset: int) -> bool:
        """False where retention has taken the record."""
        return offset >= self.first.get(partition, 0)

    def read(self, partition: int, offset: int) -> bool:
        """False where the record is newer than the audit's view of the topic."""
        return offset < self.end.get(partition, 0)


@dataclass(slots=True)
class World:
    """Times in milliseconds since the epoch."""

    policy: str
    """Whose batches and manifests are audited; rollouts of other policies are audited up to their trajectories."""
    now_ms: int
    grace_ms: int
    """How long the next stage may take before what it has not done counts as lost."""
    versions: dict[int, VersionSeen] = field(default_factory=dict)
    events: Extent = field(default_factory=Extent)
    trajectories: Extent = field(default_factory=Extent)
    batches: Extent = field(default_factory=Extent)
    events_since_ms: int = 0
    """From when on the topic is whole in all partitions; 0 where retention has taken nothing."""
    assembled_to: dict[int, int] = field(default_factory=dict)
    """Partition of events -> greatest offset that a trajectory names: the assembler has read that far."""
    grouped_to: dict[int, int] = field(default_factory=dict)
    """Partition of trajectories -> greatest offset that a batch names: the grouping has read that far."""

    def ancestors(self, version: int) -> list[int]:
        """The version, its parent, and so on to the root."""
        chain: dict[int, None] = {}
        at: int | None = version
        while at is not None and at not in chain:
            chain[at] = None
            at = self.versions[at].parent if at in self.versions else None
        return list(chain)

    @property
    def consumed_to(self) -> int:
        """One behind the last batch that any version has consumed."""
        return max((v.offset_to for v in self.versions.values()), default=0)

    def assembler_passed(self, partition: int, offset: int, ts_ms: int) -> bool:
        """The assembler has read past this event, and has had the time to act on it."""
        return offset < self.assembled_to.get(partition, -1) and ts_ms + self.grace_ms < self.now_ms

    def grouping_passed(self, partition: int, offset: int, ts_ms: int) -> bool:
        """The grouping has read past this trajectory, and has had the time to act on it."""
        return offset < self.grouped_to.get(partition, -1) and ts_ms + self.grace_ms < self.now_ms
