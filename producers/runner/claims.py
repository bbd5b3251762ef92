"""Who has begun which attempt of a rollout, read from the log; what a task that is delivered again does about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...avro import EventHead, RolloutEnded, RolloutStarted, Task

LOST = "the runner was lost"
"""Error text of an attempt that a later runner ended."""


@dataclass(slots=True)
class Claim:
    """One attempt, owned by the RolloutStarted that is first in the log."""

    attempt: int
    claim_id: str
    end: RolloutEnded | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The rollout has its final end; there is nothing to run."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Run the agent as `attempt`, after ending the `lost` attempts, whose runner is gone."""

    attempt: int
    lost: tuple[Claim, ...] = ()
    n_failures: int = 0


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Runners were lost too often over this rollout: end its last attempt as failed."""

    lost: tuple[Claim, ...]


Decision = Done | Begin | GiveUp


@dataclass(slots=True)
class ClaimLog:
    """The fold of RolloutStarted and RolloutEnded in the order of the log."""

    rollouts: dict[str, dict[int, Claim]] = field(default_factory=dict)

    def see(self, head: EventHead) -> None:
        """One more event."""
        attempts = self.rollouts.setdefault(head.rollout_id, {})
        if isinstance(head.body, RolloutStarted):
            attempts.setdefault(head.attempt, Claim(head.attempt, head.body.claim_id))
        elif isinstance(head.body, RolloutEnded):
            claim = attempts.get(head.attempt)
            if claim is not None and claim.end is None and head.body.claim_id == claim.claim_id:
                claim.end = head.body

    def of(self, rollout_id: str) -> Mapping[int, Claim]:
        """Attempt number to claim."""
        return self.rollouts.get(rollout_id, {})


def decide(task: Task, claims: Mapping[int, Claim], max_redeliveries: int) -> Decision:
    """What a runner does with a task, given what the log says of its rollout.

    Attempts that failed count against the task's `max_attempts`; those whose runner was lost or told to stop do not,
    but past `max_redeliveries` lost ones the rollout is given up: it may be what takes the runners down.
    """
    if any(c.end is not None and not c.end.will_retry for c in claims.values()):
        return Done()
    lost = tuple(c for c in claims.values() if c.end is None)
    n_lost = len(lost) + sum(1 for c in claims.values() if c.end is not None and c.end.error == LOST)
    if lost and n_lost > max_redeliveries:
        return GiveUp(lost)
    n_failures = sum(
        1 for c in claims.values() if c.end is not None and c.end.status != "cancelled" and c.end.error != LOST
    )
    return Begin(max([task.attempt - 1, *claims]) + 1, lost, n_failures)
