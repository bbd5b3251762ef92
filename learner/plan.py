"""Which messages of `batches` a step trains, and why the others are not: pure decisions over what was read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..avro import Member, TransitionBatch, graded
from ..infra.lineage import Lineage


@dataclass(frozen=True, slots=True)
class Message:
    """One record of `batches` and where it lies."""

    offset: int
    batch: TransitionBatch


@dataclass(frozen=True, slots=True)
class Admitted:
    """A group to train: its fresh members, and those too stale to train whose rewards still count in the baseline."""

    message: Message
    members: tuple[Member, ...]
    left_out: tuple[Member, ...] = ()
    left_out_reason: str = "stale"


@dataclass(frozen=True, slots=True)
class Dropped:
    """A group that is not trained."""

    message: Message
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A verdict on every message, in the order of the log."""

    admitted: tuple[Admitted, ...]
    dropped: tuple[Dropped, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """What a verdict depends on besides the message."""

    lineage: Lineage
    version: int  # of the trainer's weights
    trained: Mapping[str, int]  # group -> the highest revision that some version trained
    max_staleness: int
    serve: bool  # the policy opts in to production traffic


def plan(messages: Sequence[Message], standing: Standing) -> Plan:
    """Judge all messages of a step together: a later revision supersedes an earlier one that is still here."""
    newest: dict[str, int] = {}
    for message in messages:
        group = message.batch.group_id
        newest[group] = max(newest.get(group, -1), message.batch.revision)
    admitted: list[Admitted] = []
    dropped: list[Dropped] = []
    taken: set[str] = set()
    for message in messages:
        group = message.batch.group_id
        if message.batch.revision < newest[group]:
            verdict: Admitted | Dropped = Dropped(message, "superseded")
        elif group in taken:
            verdict = Dropped(message, "duplicate")
        else:
            verdict = judge(message, standing)
        if isinstance(verdict, Admitted):
            taken.add(group)
            admitted.append(verdict)
        else:
            dropped.append(verdict)
    return Plan(tuple(admitted), tuple(dropped))


def judge(message: Message, standing: Standing) -> Admitted | Dropped:
    """The verdict on one message that nothing in its step supersedes."""
    batch = message.batch
    if batch.purpose != "train" and not (batch.purpose == "serve" and standing.serve):
        return Dropped(message, batch.purpose)
    if (before := standing.trained.get(batch.group_id)) is not None:
        return Dropped(message, "duplicate" if batch.revision <= before else "late_reward")
    counting = [m for m in batch.members if graded(m.status, m.reward)]
    if not counting:
        return Dropped(message, "empty")
    fresh = tuple(m for m in counting if _staleness(m, standing) <= standing.max_staleness)
    left_out = tuple(m for m in counting if m not in fresh)
    gone = [m for m in left_out if standing.lineage.abandoned(m.oldest_version)]
    reason = "rolled_back" if gone else "stale"
    return Admitted(message, fresh, left_out, reason) if fresh else Dropped(message, reason)


def _staleness(member: Member, standing: Standing) -> float:
    return standing.lineage.staleness(member.oldest_version, standing.version)


def staleness_of(admitted: Sequence[Admitted], standing: Standing) -> tuple[float, float]:
    """(mean, max) over the members that are trained."""
    values = [_staleness(member, standing) for group in admitted for member in group.members]
    return (sum(values) / len(values), max(values)) if values else (0.0, 0.0)
