"""The audit of one group: a whole and rewarded one is in a batch. Pure."""

from collections.abc import Iterable

from .facts import GroupExpiredSeen, GroupFact, GroupMemberSeen
from .report import Finding, Report
from .world import World


def audit_group(facts: Iterable[GroupFact], world: World, min_group: int) -> Report:
    """All facts of one group; `min_group` graded members are needed to train a group of more than one."""
    report = Report()
    facts = list(facts)
    members = [f for f in facts if isinstance(f, GroupMemberSeen)]
    if not members:
        return report
    report.figures["groups"] += 1
    size = max(m.group_size for m in members)
    expired = any(isinstance(f, GroupExpiredSeen) and _holds(f, members) for f in facts)
    good = [m for m in members if m.graded]
    unrewarded = sum(m.succeeded and not m.graded for m in members)
    left_out = [m for m in good if not m.batched]
    if not left_out:
        if unrewarded:
            report.pending["unrewarded"] += unrewarded
    elif not expired and (len(members) < size or unrewarded):
        report.pending["group_incomplete"] += len(left_out)
    elif len(good) < (min_group if size > 1 else 1):
        report.dropped["below_min_group"] += len(left_out)
    else:
        last = max(facts, key=lambda f: f.at_offset)
        newest_ms = max(m.ts_ms for m in members)
        if all(world.grouping_passed(f.at_partition, f.at_offset, newest_ms) for f in facts):
            report.find(
                Finding.BATCH_LOST,
                f"group {last.group_id}: {len(left_out)} of {len(good)} rewarded rollouts are in no batch, "
                f"e.g. {left_out[0].rollout_id}",
            )
        else:
            report.pending["not_grouped"] += len(left_out)
    return report


def _holds(expiry: GroupExpiredSeen, members: list[GroupMemberSeen]) -> bool:
    """An expiry is void if a member came between what it speaks of and itself."""
    return not any(expiry.as_of_offset < m.at_offset < expiry.at_offset for m in members)
