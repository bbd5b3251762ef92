"""The audit of one rollout: ledger, events, trajectories, batches and manifests held against each other. Pure."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...avro import graded
from .facts import (
    CallSeen,
    EndedSeen,
    GroupMemberSeen,
    LedgerLine,
    MemberSeen,
    RewardSeen,
    RolloutFact,
    StartedSeen,
    TrainedSeen,
    TrajectorySeen,
)
from .joins import chains, speaks_for
from .report import Finding, Report
from .trained import audit_training
from .world import World

EventFact = CallSeen | RewardSeen | StartedSeen | EndedSeen


@dataclass(slots=True)
class Attempt:
    """The facts of one attempt; events without their copies."""

    name: str  # rollout/attempt, for the report
    calls: list[CallSeen] = field(default_factory=list)
    rewards: list[RewardSeen] = field(default_factory=list)
    started: list[StartedSeen] = field(default_factory=list)
    ended: list[EndedSeen] = field(default_factory=list)
    trajectories: list[TrajectorySeen] = field(default_factory=list)

    @property
    def events(self) -> list[EventFact]:
        """All of them."""
        return [*self.calls, *self.rewards, *self.started, *self.ended]

    @property
    def owner(self) -> StartedSeen | None:
        """The start that is first in the log."""
        return min(self.started, key=lambda s: s.offset, default=None)

    @property
    def end(self) -> EndedSeen | None:
        """The earliest end that the owner of the attempt wrote; an empty claim speaks for the owner."""
        claims = ("", self.owner.claim_id) if self.owner else ()
        return min((e for e in self.ended if e.claim_id in claims), key=lambda e: (e.ts_ms, e.event_id), default=None)

    @property
    def newest(self) -> TrajectorySeen | None:
        """The trajectory of the highest revision."""
        return max(self.trajectories, key=lambda t: t.revision, default=None)


def audit_rollout(facts: Iterable[RolloutFact], world: World) -> tuple[Report, GroupMemberSeen | None]:
    """All facts of one rollout. Returns what was found, and its place in its group once it has a final trajectory."""
    report = Report()
    facts = list(facts)
    attempts = _attempts(facts, report)
    report.figures["rollouts"] += 1
    _audit_ledger([f for f in facts if isinstance(f, LedgerLine)], attempts, world, report)
    for number, attempt in attempts.items():
        _audit_attempt(attempt, _next_start(attempts, number), world, report)
    members = [f for f in facts if isinstance(f, MemberSeen)]
    trained = [f for f in facts if isinstance(f, TrainedSeen)]
    report.add(audit_training(members, trained, [t for a in attempts.values() for t in a.trajectories], world))
    final = [a for _, a in sorted(attempts.items()) if a.newest is not None and a.newest.final]
    return report, _place_in_group(final[-1], members, world) if final else None


def _audit_ledger(lines: list[LedgerLine], attempts: dict[int, Attempt], world: World, report: Report) -> None:
    seen = {call.response_id for attempt in attempts.values() for call in attempt.calls}
    for response_id, line in {line.response_id: line for line in lines}.items():
        report.figures["ledger_responses"] += 1
        if response_id in seen:
            continue
        if line.ts_ms < world.events_since_ms:
            report.figures["ledger_responses_beyond_retention"] += 1
        else:
            report.find(Finding.LEDGER_CALL_MISSING, f"{line.rollout_id}/{line.attempt}: response {response_id}")


def _attempts(facts: list[RolloutFact], report: Report) -> dict[int, Attempt]:
    attempts: dict[int, Attempt] = {}
    copies: set[str] = set()
    for fact in facts:
        if not isinstance(fact, EventFact | TrajectorySeen):
            continue
        attempt = attempts.setdefault(fact.attempt, Attempt(f"{fact.rollout_id}/{fact.attempt}"))
        if isinstance(fact, TrajectorySeen):
            attempt.trajectories.append(fact)
            continue
        if fact.event_id in copies:
            report.figures["event_copies"] += 1
            continue
        copies.add(fact.event_id)
        match fact:
            case CallSeen():
                attempt.calls.append(fact)
            case RewardSeen():
                attempt.rewards.append(fact)
            case StartedSeen():
                attempt.started.append(fact)
            case EndedSeen():
                attempt.ended.append(fact)
    return attempts


def _next_start(attempts: dict[int, Attempt], number: int) -> StartedSeen | None:
    """The start of the attempt after this one, which ends this one."""
    return attempts[number + 1].owner if number + 1 in attempts else None


def _audit_attempt(attempt: Attempt, next_start: StartedSeen | None, world: World, report: Report) -> None:
    report.figures["attempts"] += 1
    report.figures["calls"] += len(attempt.calls)
    for what in ("call_id", "response_id"):
        by_id: defaultdict[str | None, list[CallSeen]] = defaultdict(list)
        for call in attempt.calls:
            by_id[getattr(call, what)].append(call)
        for one, calls in by_id.items():
            if one is not None and len(calls) > 1:
                offsets = ", ".join(str(c.offset) for c in calls)
                report.find(Finding.CALL_DOUBLED, f"{attempt.name}: {what} {one} at offsets {offsets} of events")
    _audit_revisions(attempt, report)
    newest = attempt.newest
    if newest is None:
        _audit_unassembled(attempt, next_start, world, report)
    elif not world.events.kept(newest.partition, newest.first_offset):
        report.figures["attempts_beyond_retention"] += 1
    elif not attempt.events:
        report.find(Finding.TRAJECTORY_UNFOUNDED, f"{attempt.name}: revision {newest.revision}")
    else:
        end = attempt.end
        if end is not None and end.n_calls is not None and len(attempt.calls) < end.n_calls:
            report.find(
                Finding.CALL_COUNT_WRONG,
                f"{attempt.name}: {len(attempt.calls)} calls, the gateway counted {end.n_calls}",
            )
        _audit_calls(attempt, newest, world, report)
        _audit_reward(attempt, newest, world, report)


def _audit_revisions(attempt: Attempt, report: Report) -> None:
    contents: dict[int, bytes] = {}
    for trajectory in attempt.trajectories:
        before = contents.setdefault(trajectory.revision, trajectory.content)
        if before != trajectory.content:
            report.find(Finding.REVISION_DIFFERS, f"{attempt.name}: revision {trajectory.revision}")
    report.figures["trajectories"] += len(contents)
    report.figures["trajectory_copies"] += len(attempt.trajectories) - len(contents)


def _audit_unassembled(attempt: Attempt, next_start: StartedSeen | None, world: World, report: Report) -> None:
    if not attempt.calls and not attempt.started:
        # A reward for an attempt that nobody knows makes no trajectory.
        report.figures["attempts_unknown"] += 1
        return
    end = attempt.end or next_start
    if end is None:
        report.pending["open"] += 1
        return
    last = max((*attempt.events, end), key=lambda e: e.offset)
    if world.assembler_passed(last.partition, last.offset, last.ts_ms):
        report.find(Finding.TRAJECTORY_LOST, f"{attempt.name}: ended at offset {end.offset} of events")
    else:
        report.pending["not_assembled"] += 1


def _audit_calls(attempt: Attempt, newest: TrajectorySeen, world: World, report: Report) -> None:
    held = set(newest.calls)
    if len(held) < len(newest.calls):
        report.find(Finding.CALL_DOUBLED, f"{attempt.name}: revision {newest.revision} holds a call twice")
    for unknown in held - {call.event_id for call in attempt.calls}:
        report.find(Finding.CALL_UNFOUNDED, f"{attempt.name}: revision {newest.revision}, event {unknown}")
    for chain in chains(attempt.calls):
        inside = [call for call in chain if call.event_id in held]
        speaker = speaks_for(chain)
        where = f"{attempt.name}: call {speaker.call_id}, offset {speaker.offset} of events"
        if len(inside) > 1:
            report.find(Finding.CALL_DOUBLED, f"{where}, with its retry in revision {newest.revision}")
        elif inside == [speaker]:
            report.figures["calls_in_trajectories"] += len(chain)
        elif speaker.offset > newest.last_offset and not _passed(speaker, world):
            report.pending["late_call"] += 1
        else:
            report.find(Finding.CALL_LOST, f"{where}, revision {newest.revision}")


def _audit_reward(attempt: Attempt, newest: TrajectorySeen, world: World, report: Report) -> None:
    late = [r for r in attempt.rewards if r.offset > newest.last_offset]
    winners: dict[str, RewardSeen] = {}
    for reward in sorted(attempt.rewards, key=lambda r: (r.ts_ms, r.event_id)):
        winners[reward.key] = reward
    whole = [r.value for r in winners.values() if r.call_id is None]
    parts = [r.value for r in winners.values() if r.call_id is not None]
    values = whole if whole else parts
    want = math.fsum(values) if values else None
    same = want == newest.reward or (
        want is not None and newest.reward is not None and math.isclose(want, newest.reward, rel_tol=1e-9, abs_tol=1e-9)
    )
    if same:
        return
    if late and not all(_passed(r, world) for r in late):
        report.pending["late_reward"] += 1
    else:
        report.find(Finding.REWARD_WRONG, f"{attempt.name}: revision {newest.revision} {newest.reward}, events {want}")


def _passed(event: CallSeen | RewardSeen, world: World) -> bool:
    return world.assembler_passed(event.partition, event.offset, event.ts_ms)


def _place_in_group(attempt: Attempt, members: list[MemberSeen], world: World) -> GroupMemberSeen | None:
    newest = attempt.newest
    if newest is None or newest.purpose != "train" or newest.policy != world.policy:
        return None
    return GroupMemberSeen(
        group_id=newest.group_id,
        group_size=newest.group_size,
        rollout_id=newest.rollout_id,
        succeeded=newest.status == "succeeded",
        graded=graded(newest.status, newest.reward),
        batched=any((m.attempt, m.revision) == (newest.attempt, newest.revision) for m in members),
        at_partition=newest.at_partition,
        at_offset=newest.at_offset,
        ts_ms=max((e.ts_ms for e in attempt.events), default=0),
    )
