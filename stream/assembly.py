"""One attempt of one rollout: from its events, in any order, to its trajectory. No Kafka, no clock."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..avro import (
    EventHead,
    LLMCallHead,
    MergedReward,
    NoteHead,
    Reward,
    RolloutEnded,
    RolloutExpired,
    RolloutStarted,
    Trajectory,
)
from .log_state import Item, Late
from .rows import pack_offsets


@dataclass(frozen=True, slots=True)
class Limits:
    """Timeouts of an attempt, milliseconds."""

    idle_ms: int
    absolute_ms: int
    grace_ms: int


@dataclass(frozen=True, slots=True)
class Call:
    """A call and where its record lies."""

    head: LLMCallHead
    offset: int

    @property
    def order(self) -> tuple[int, str]:
        """Calls come in this order, whatever the order of arrival."""
        return self.head.started_us, self.head.call_id


def join_retries(calls: Iterable[Call]) -> tuple[list[Call], list[Call]]:
    """(the calls as the agent meant them, in order; those that a retry replaced).

    Only a request that says it is a retry is one. It joins the latest call before it with an equal digest that nothing
    was joined to yet; of a chain, the last completed answer counts, or the last where none completed.
    """
    ordered = sorted(calls, key=lambda c: c.order)
    if not any(c.head.retry_count for c in ordered):
        return ordered, []
    chains: list[list[Call]] = []
    by_digest: dict[tuple[bytes, str | None], list[list[Call]]] = {}
    for call in ordered:
        same = by_digest.setdefault((call.head.request_digest, call.head.agent), [])
        chain = None
        if call.head.retry_count > 0:
            chain = next((c for c in reversed(same) if c[-1].head.retry_count < call.head.retry_count), None)
        if chain is None:
            chain = []
            chains.append(chain)
            same.append(chain)
        chain.append(call)
    meant, replaced = [], []
    for chain in chains:
        answer = next((c for c in reversed(chain) if c.head.status == "completed"), chain[-1])
        meant.append(answer)
        replaced += [c for c in chain if c is not answer]
    return sorted(meant, key=lambda c: c.order), replaced


def merge_rewards(rewards: Iterable[tuple[str, int, Reward]]) -> list[MergedReward]:
    """(event_id, ts_ms, reward) of an attempt, merged: of each key the greatest (ts_ms, event_id) wins; by key."""
    best: dict[str, tuple[tuple[int, str], Reward]] = {}
    for event_id, ts_ms, reward in rewards:
        rank = (ts_ms, event_id)
        if reward.key not in best or rank > best[reward.key][0]:
            best[reward.key] = (rank, reward)
    return [
        MergedReward(
            event_id=event_id,
            ts_ms=ts_ms,
            value=reward.value,
            source=reward.source,
            key=key,
            call_id=reward.call_id,
            span_start=reward.token_span.start if reward.token_span else None,
            span_end=reward.token_span.end if reward.token_span else None,
        )
        for key, ((ts_ms, event_id), reward) in sorted(best.items())
    ]


def total(rewards: Iterable[MergedReward]) -> float | None:
    """The attempt's reward: the sum of those that name no call, or, where all name one, of all.

    A reward of the whole has the parts in it, so the two kinds are not added. None without any: unrewarded is not 0.
    """
    given = list(rewards)
    values = [r.value for r in given if r.call_id is None] or [r.value for r in given]
    return math.fsum(values) if values else None


@dataclass(slots=True)
class Attempt:
    """The state of one attempt, kept in step with its events; implements log_state.State."""

    rollout_id: str
    attempt: int
    limits: Limits
    started: EventHead | None = None
    ended: EventHead | None = None
    expired: str | None = None
    superseded: bool = False
    calls: dict[str, Call] = field(default_factory=dict)
    rewards: list[tuple[str, int, Reward]] = field(default_factory=list)
    notes: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    first_ms: int = 0
    last_ms: int = 0
    _ends: list[EventHead] = field(default_factory=list)

    def add(self, item: Item) -> bool:
        """Take one event; False where it is void: a second start, a call already seen, an overtaken expiry."""
        head = item.body
        assert isinstance(head, EventHead)
        body = head.body
        if head.attempt != self.attempt:  # the start of the next attempt ends this one
            self.superseded = True
        elif isinstance(body, LLMCallHead):
            if body.call_id in self.calls:
                return False
            self.calls[body.call_id] = Call(body, item.offset)
        elif isinstance(body, Reward):
            self.rewards.append((head.event_id, head.ts_ms, body))
        elif isinstance(body, NoteHead):
            self.notes.append(item.offset)
        elif isinstance(body, RolloutStarted):
            if self.started is not None:
                return False
            self.started = head
            self._elect_end()
        elif isinstance(body, RolloutEnded):
            self._ends.append(head)
            self._elect_end()
        elif isinstance(body, RolloutExpired):
            if not self.offsets or self.offsets[-1] > body.as_of_offset:
                return False
            self.expired = body.reason
        self.offsets.append(item.offset)
        if not isinstance(body, RolloutExpired):
            self.first_ms = min(self.first_ms, head.ts_ms) if self.first_ms else head.ts_ms
            self.last_ms = max(self.last_ms, head.ts_ms)
        return True

    def _elect_end(self) -> None:
        """The earliest end by the claim that owns the attempt; an empty claim speaks for the owner."""
        if self.started is None or not isinstance(self.started.body, RolloutStarted):
            return
        owners = ("", self.started.body.claim_id)
        valid = [e for e in self._ends if isinstance(e.body, RolloutEnded) and e.body.claim_id in owners]
        self.ended = min(valid, key=lambda e: (e.ts_ms, e.event_id), default=None)

    def complete(self) -> bool:
        """An end with all the calls that it counts; or a deadline; or the next attempt began."""
        if self.expired is not None or self.superseded:
            return True
        if self.ended is None:
            return False
        assert isinstance(self.ended.body, RolloutEnded)
        n_calls = self.ended.body.n_calls
        return n_calls is not None and len(self.calls) >= n_calls

    def late(self, item: Item) -> Late:
        """After closing: calls and rewards revise, a first start or end too; notes are kept for the next revision."""
        head = item.body
        assert isinstance(head, EventHead)
        body = head.body
        if head.attempt != self.attempt or isinstance(body, RolloutExpired):
            return Late.IGNORE
        if isinstance(body, LLMCallHead):
            return Late.IGNORE if body.call_id in self.calls else Late.REVISE
        if isinstance(body, Reward):
            return Late.REVISE
        if isinstance(body, RolloutStarted):
            return Late.REVISE if self.started is None else Late.IGNORE
        if isinstance(body, RolloutEnded):
            return Late.REVISE if self.ended is None else Late.IGNORE
        return Late.RECORD

    def deadline_ms(self) -> int:
        """Of the grace after the end, of idling, or of the attempt as a whole, whichever comes first."""
        if self.ended is not None:
            return self.last_ms + self.limits.grace_ms
        absolute = self.limits.absolute_ms
        if self.started is not None and isinstance(self.started.body, RolloutStarted):
            timeout_s = self.started.body.timeout_s
            absolute = min(absolute, int(timeout_s * 1000)) if timeout_s is not None else absolute
        return min(self.last_ms + self.limits.idle_ms, self.first_ms + absolute)

    def expiry_reason(self) -> str:
        """Why the deadline is what it is."""
        if self.ended is not None:
            return "grace"
        return "idle" if self.deadline_ms() == self.last_ms + self.limits.idle_ms else "absolute"

    def kept(self) -> bytes:
        """Where the events lie: they are read again when the attempt is needed again."""
        return pack_offsets(self.offsets)

    def payload_offsets(self) -> list[int]:
        """Offsets of the records that the trajectory contains whole."""
        return sorted([c.offset for c in join_retries(self.calls.values())[0]] + self.notes)

    def trajectory(self, revision: int, partition: int, payloads: Mapping[int, bytes]) -> Trajectory | None:
        """The attempt as it is now; None for one without a start and without calls (a reward for nobody)."""
        calls, _ = join_retries(self.calls.values())
        started = self.started.body if self.started is not None else None
        if not isinstance(started, RolloutStarted):
            if not calls:
                return None
            # Calls that no start announces are kept for the record: their own group, never trained.
            started = RolloutStarted("", "serve", "", self.rollout_id, 1, "", "gateway")
        ended = self.ended.body if self.ended is not None else None
        rewards = merge_rewards(self.rewards)
        answered = [c.head for c in calls if c.head.status == "completed"]
        return Trajectory(
            group_id=started.group_id,
            rollout_id=self.rollout_id,
            attempt=self.attempt,
            revision=revision,
            status=ended.status if isinstance(ended, RolloutEnded) else "expired",
            final=not ended.will_retry if isinstance(ended, RolloutEnded) else not self.superseded,
            purpose=started.purpose,
            policy=started.policy,
            group_size=started.group_size,
            task_digest=started.task_digest,
            reward=total(rewards),
            n_calls=len(calls),
            n_completion_tokens=sum(c.head.n_completion_tokens for c in calls),
            oldest_version=min((h.version_start for h in answered), default=-1),
            newest_version=max((h.version_end for h in answered), default=-1),
            started_ms=self.first_ms,
            ended_ms=self.ended.ts_ms if self.ended is not None else self.last_ms,
            partition=partition,
            first_offset=self.offsets[0],
            last_offset=self.offsets[-1],
            rewards=rewards,
            calls=[payloads[c.offset] for c in calls],
            notes=[payloads[offset] for offset in self.notes],
            task=started.task,
        )
