"""The audit of what became of one rollout in the learner: trained once in a lineage, or dropped and why. Pure."""

from itertools import combinations

from .facts import MemberSeen, TrainedSeen, TrajectorySeen
from .report import Finding, Report
from .world import World


def audit_training(
    members: list[MemberSeen], trained: list[TrainedSeen], trajectories: list[TrajectorySeen], world: World
) -> Report:
    """The batches and manifests that name one rollout, against its trajectories."""
    report = Report()
    _audit_members(members, trajectories, world, report)
    _audit_purpose(members, trained, trajectories, report)
    _audit_once(trained, world, report)
    named = {(m.batch_offset, m.attempt, m.revision) for m in members}
    for t in trained:
        if (t.batch_offset, t.attempt, t.revision) not in named and world.batches.kept(0, t.batch_offset):
            report.find(
                Finding.TRAINED_UNFOUNDED,
                f"{t.rollout_id}/{t.attempt} revision {t.revision}: version {t.version}, batch {t.batch_offset}",
            )
    if members:
        _count(members, trained, world, report)
    return report


def _audit_members(members: list[MemberSeen], trajectories: list[TrajectorySeen], world: World, report: Report) -> None:
    have = {(t.attempt, t.revision) for t in trajectories}
    for m in members:
        # Retention takes trajectories before the batches that were made of them.
        if (m.attempt, m.revision) not in have and world.trajectories.kept(m.at_partition, m.at_offset):
            report.find(
                Finding.MEMBER_UNFOUNDED,
                f"{m.rollout_id}/{m.attempt} revision {m.revision}: batch {m.batch_offset} of group {m.group_id}",
            )


def _audit_purpose(
    members: list[MemberSeen], trained: list[TrainedSeen], trajectories: list[TrajectorySeen], report: Report
) -> None:
    if not any(t.purpose == "validate" for t in trajectories):
        return
    for m in members:
        report.find(Finding.VALIDATION_TRAINED, f"{m.rollout_id}/{m.attempt}: in batch {m.batch_offset}")
    for t in trained:
        report.find(Finding.VALIDATION_TRAINED, f"{t.rollout_id}/{t.attempt}: in the manifest of version {t.version}")


def _audit_once(trained: list[TrainedSeen], world: World, report: Report) -> None:
    for a, b in combinations(sorted(trained, key=lambda t: t.version), 2):
        if a.version in world.ancestors(b.version):
            report.find(
                Finding.TRAINED_TWICE,
                f"{a.rollout_id}: version {a.version} (batch {a.batch_offset}) "
                f"and version {b.version} (batch {b.batch_offset})",
            )


def _count(members: list[MemberSeen], trained: list[TrainedSeen], world: World, report: Report) -> None:
    """One figure a rollout: trained, dropped for the reason that the last version gave, or not consumed yet."""
    if trained:
        report.figures["rollouts_trained"] += 1
        return
    reasons = [o.reason or "none given" for m in members for o in m.outcomes if o.outcome == "dropped"]
    if reasons:
        report.dropped[reasons[-1]] += 1
    elif max(m.batch_offset for m in members) >= world.consumed_to:
        report.pending["not_consumed"] += 1
    else:
        report.dropped["member_not_trainable"] += 1
