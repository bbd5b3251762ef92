"""What the topic `checkpoints` says: versions, parents, which one is live, which were rolled back."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ..avro import Checkpoint


@dataclass(frozen=True, slots=True)
class Lineage:
    """The fold of a policy's announcements in the order of the log."""

    policy: str
    versions: dict[int, Checkpoint] = field(default_factory=dict)  # the newest record of each version but `live` ones
    parents: dict[int, int | None] = field(default_factory=dict)
    rolled_back: frozenset[int] = frozenset()
    live: Checkpoint | None = None

    def apply(self, record: Checkpoint) -> "Lineage":
        """The lineage after one more record. A `live` record for a rolled-back version is void: it lost a race."""
        if record.policy != self.policy:
            return self
        parents = self.parents | {record.version: record.parent}
        if record.state == "live":
            return self if record.version in self.rolled_back else replace(self, parents=parents, live=record)
        gone = self.rolled_back | {record.version} if record.state == "rolled_back" else self.rolled_back
        live = None if self.live and self.live.version in gone else self.live
        return replace(
            self, versions=self.versions | {record.version: record}, parents=parents, rolled_back=gone, live=live
        )

    def ancestors(self, version: int) -> list[int]:
        """The version itself, then its parents up to the root."""
        chain: list[int] = []
        at: int | None = version
        while at is not None and at not in chain:
            chain.append(at)
            at = self.parents.get(at)
        return chain

    def staleness(self, oldest: int, trainer: int) -> float:
        """Ancestors along `parent` between `oldest` and the trainer's version; infinite where it is no ancestor."""
        chain = self.ancestors(trainer)
        return chain.index(oldest) if oldest in chain else math.inf

    def abandoned(self, version: int) -> bool:
        """True for a rolled-back version and all that descend from one."""
        return any(v in self.rolled_back for v in self.ancestors(version))


def fold(policy: str, records: Iterable[Checkpoint]) -> Lineage:
    """The lineage of `policy` after all records."""
    lineage = Lineage(policy)
    for record in records:
        lineage = lineage.apply(record)
    return lineage


def key_of(record: Checkpoint) -> bytes:
    """Key in the compacted topic: policy/live, else policy/version."""
    return f"{record.policy}/{'live' if record.state == 'live' else record.version}".encode()
