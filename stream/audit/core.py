"""`audit(facts, world) -> Report`: the whole audit over records, without I/O."""

from collections import defaultdict
from collections.abc import Iterable

from .facts import GroupExpiredSeen, GroupFact, GroupMemberSeen, RolloutFact
from .groups import audit_group
from .report import Report
from .rollouts import audit_rollout
from .world import World

MIN_GROUP = 2


def audit_rollouts(facts: Iterable[RolloutFact], world: World) -> tuple[Report, list[GroupMemberSeen]]:
    """The rollouts of one part of the log; every fact of a rollout must be in the same part."""
    report, places = Report(), []
    by_rollout: defaultdict[str, list[RolloutFact]] = defaultdict(list)
    for fact in facts:
        by_rollout[fact.rollout_id].append(fact)
    for one in by_rollout.values():
        found, place = audit_rollout(one, world)
        report.add(found)
        if place is not None:
            places.append(place)
    return report, places


def audit_groups(facts: Iterable[GroupFact], world: World, min_group: int = MIN_GROUP) -> Report:
    """The groups of one part; every fact of a group must be in the same part."""
    report = Report()
    by_group: defaultdict[str, list[GroupFact]] = defaultdict(list)
    for fact in facts:
        by_group[fact.group_id].append(fact)
    for one in by_group.values():
        report.add(audit_group(one, world, min_group))
    return report


def audit(facts: Iterable[RolloutFact | GroupExpiredSeen], world: World, min_group: int = MIN_GROUP) -> Report:
    """Everything at once, in memory."""
    of_rollouts: list[RolloutFact] = []
    of_groups: list[GroupFact] = []
    for fact in facts:
        if isinstance(fact, GroupExpiredSeen):
            of_groups.append(fact)
        else:
            of_rollouts.append(fact)
    report, places = audit_rollouts(of_rollouts, world)
    report.add(audit_groups([*of_groups, *places], world, min_group))
    return report
