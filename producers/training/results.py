"""What came of rollouts, read from their trajectories."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

from ...avro import Event, LLMCall, Trajectory, decode


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """One rollout in its final attempt."""

    rollout_id: str
    group_id: str
    status: str  # succeeded | failed | timeout | cancelled | expired
    reward: float | None
    task: Any
    n_calls: int
    oldest_version: int
    newest_version: int
    calls: tuple[bytes, ...] = field(default=(), repr=False)  # encoded events

    def replies(self) -> list[str]:
        """What the model answered, call by call (text only); empty where the trajectory lies in the object store."""
        return [_reply(decode(call, Event)) for call in self.calls]


def result_of(trajectory: Trajectory) -> RolloutResult:
    """The result that a final trajectory stands for."""
    return RolloutResult(
        trajectory.rollout_id,
        trajectory.group_id,
        trajectory.status,
        trajectory.reward,
        orjson.loads(trajectory.task) if trajectory.task else None,
        trajectory.n_calls,
        trajectory.oldest_version,
        trajectory.newest_version,
        tuple(trajectory.calls),
    )


def mean_reward(results: Iterable[RolloutResult]) -> float | None:
    """Over those that have one; None where none has."""
    rewards = [r.reward for r in results if r.reward is not None]
    return sum(rewards) / len(rewards) if rewards else None


def _reply(event: Event) -> str:
    if not isinstance(event.body, LLMCall) or not event.body.response:
        return ""
    choices = orjson.loads(event.body.response).get("choices") or [{}]
    return (choices[0].get("message") or {}).get("content") or ""


@dataclass(frozen=True, slots=True)
class StepResult:
    """One round of training: what was sampled, and the version that came of it."""

    step: int  # from 1
    reward: float | None
    n_rollouts: int
    n_failed: int
    version: int  # served after it; the one before where every group did alike
    rollouts_s: float
    training_s: float


@dataclass(frozen=True, slots=True)
class FitResult:
    """What `Trainer.fit` did."""

    steps: list[StepResult]
    validation: list[tuple[int, float | None]]  # (version, mean reward), greedy


@dataclass(frozen=True, slots=True)
class Progress:
    """Told to `Trainer(on_progress=…)` whenever something moved."""

    phase: str  # rollouts | training | served | unchanged | validation
    step: int
    n_steps: int
    done: int
    total: int
    reward: float | None
    version: int
