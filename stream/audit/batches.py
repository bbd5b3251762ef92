"""The audit of `batches` against the manifests: what each version says became of each message. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from ...infra.manifest import BatchEntry
from .facts import Outcome
from .report import Finding, Report
from .world import World

Rollout = tuple[str, int, int]
"""(rollout_id, attempt, revision)."""


@dataclass(frozen=True, slots=True)
class BatchSeen:
    """One TransitionBatch in `batches`."""

    group_id: str
    revision: int
    offset: int
    members: tuple[tuple[Rollout, bool], ...]  # with whether it is graded


def account(
    batch: BatchSeen, said: Iterable[tuple[int, list[BatchEntry]]], world: World, report: Report
) -> dict[Rollout, tuple[Outcome, ...]]:
    """What became of each member by the versions that consumed this offset. `said` holds (version, its entries)."""
    outcomes: dict[Rollout, tuple[Outcome, ...]] = {rollout: () for rollout, _ in batch.members}
    where = f"batch {batch.offset}, group {batch.group_id} revision {batch.revision}"
    consumed = False
    for version, entries in said:
        consumed = True
        named: set[Rollout] = set()
        for entry in entries:
            if (entry.group_id, entry.revision) != (batch.group_id, batch.revision):
                other = f"group {entry.group_id} revision {entry.revision}"
                report.find(Finding.MANIFEST_WRONG, f"{where}: version {version} says {other}")
            if entry.outcome == "dropped" and not entry.reason:
                report.find(Finding.DROP_WITHOUT_REASON, f"{where}: version {version}")
            for rollout in entry.rollouts:
                named.add(rollout)
                outcome = Outcome(version, entry.outcome, entry.reason)
                outcomes[rollout] = (*outcomes.get(rollout, ()), outcome)
        silent = [rollout for rollout, graded in batch.members if graded and rollout not in named]
        if silent or not entries:
            missed = f"nothing of {len(silent)} members" if entries else "nothing"
            report.find(Finding.BATCH_UNACCOUNTED, f"{where}: version {version} consumed it and says {missed}")
    if not consumed and batch.offset < world.consumed_to:
        report.find(Finding.BATCH_UNACCOUNTED, f"{where}: no version consumed it")
    report.figures["batches"] += 1
    return outcomes


def audit_ranges(world: World, report: Report) -> None:
    """Along a lineage no offset is consumed twice; `account` finds what none consumed."""
    reached: dict[int, int] = {}  # version -> one behind the last offset that its lineage consumed
    for version, seen in sorted(world.versions.items()):
        before = reached.get(seen.parent, 0) if seen.parent is not None else 0
        if not before <= seen.offset_from <= seen.offset_to:
            report.find(
                Finding.RANGE_BROKEN,
                f"version {version}: [{seen.offset_from}, {seen.offset_to}) after version {seen.parent}, "
                f"whose lineage had come to {before}",
            )
        reached[version] = max(before, seen.offset_to)
    report.figures["versions"] += len(world.versions)
