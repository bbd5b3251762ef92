"""`leyden lineage`: which rollouts made a version, and which versions a rollout took part in."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..infra import manifest
from ..infra.checkpoint_log import read_lineage
from ..infra.lineage import Lineage
from ..infra.manifest import Manifest
from ..infra.objects import ObjectStore
from ..infra.settings import RoleSettings


@dataclass(frozen=True, slots=True)
class VersionRow:
    """One version: where it comes from, what became of it, what it consumed."""

    version: int
    parent: int | None
    state: (
        str  # live | rolled_back | abandoned (an ancestor was rolled back) | candidate | past (was an ancestor of live)
    )
    offset_from: int
    offset_to: int
    trained_groups: int
    dropped: dict[str, int]  # reason -> groups
    rollouts: list[tuple[str, int, int]]  # trained (rollout_id, attempt, revision)


def state_of(version: int, lineage: Lineage) -> str:
    """What became of a version, in one word."""
    if version in lineage.rolled_back:
        return "rolled_back"
    if lineage.abandoned(version):
        return "abandoned"
    if lineage.live is None:
        return "candidate"
    if version == lineage.live.version:
        return "live"
    return "past" if version in lineage.ancestors(lineage.live.version) else "candidate"


def row(entry: Manifest, lineage: Lineage) -> VersionRow:
    """The row of one version."""
    trained = [batch for batch in entry.batches if batch.outcome == "trained"]
    dropped: dict[str, int] = {}
    for batch in entry.batches:
        if batch.outcome != "trained":
            dropped[batch.reason or "?"] = dropped.get(batch.reason or "?", 0) + 1
    return VersionRow(
        entry.version,
        entry.parent,
        state_of(entry.version, lineage),
        entry.offset_from,
        entry.offset_to,
        len(trained),
        dropped,
        [rollout for batch in trained for rollout in batch.rollouts],
    )


def of_rollout(rollout_id: str, rows: Iterable[VersionRow]) -> list[VersionRow]:
    """The versions that trained on the rollout."""
    return [row for row in rows if any(rollout[0] == rollout_id for rollout in row.rollouts)]


def lines(rows: Iterable[VersionRow]) -> Iterator[str]:
    """A table for a terminal."""
    yield f"{'version':>8} {'parent':>8} {'state':<12} {'batches':<16} {'groups':>7} {'rollouts':>9}  dropped"
    for r in rows:
        parent = "base" if r.parent is None else str(r.parent)
        dropped = ", ".join(f"{reason} {n}" for reason, n in sorted(r.dropped.items())) or "-"
        span = f"[{r.offset_from}, {r.offset_to})"
        yield (
            f"{r.version:>8} {parent:>8} {r.state:<12} {span:<16} {r.trained_groups:>7} {len(r.rollouts):>9}  {dropped}"
        )


def main(settings: RoleSettings, rollout_id: str | None = None) -> list[VersionRow]:
    """Rows of all versions of `settings.policy`, or of those that trained on `rollout_id`."""
    objects, lineage = ObjectStore(settings.objects), read_lineage(settings)
    entries = (manifest.load(settings.policy, v, objects)[0] for v in manifest.versions(settings.policy, objects))
    rows = [row(entry, lineage) for entry in entries]
    return rows if rollout_id is None else of_rollout(rollout_id, rows)
