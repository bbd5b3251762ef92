"""What the learner computes with: transitions, episodes, groups, and the sequences that are trained."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Transition:
    """One LLM call: what the policy saw, what it said, and how likely the engine found that."""

    call_id: str
    agent: str | None
    prompt_ids: np.ndarray  # (p,) int32
    completion_ids: np.ndarray  # (c,) int32
    logprobs: np.ndarray  # (c,) float32, as the engine reported them, after temperature
    temperature: float


@dataclass(frozen=True, slots=True)
class Episode:
    """One rollout of a group: its reward and its calls in order."""

    rollout_id: str
    attempt: int
    revision: int
    reward: float
    transitions: tuple[Transition, ...]
    reshaped: tuple[tuple[str, ...], ...] = ()  # of each call left out because of how it was sampled: the parameters


@dataclass(frozen=True, slots=True)
class Sequence:
    """Token ids to run through the model once; of them only the marked ones carry loss. All arrays have length n."""

    ids: np.ndarray  # int32
    trained: np.ndarray  # bool; never the first token
    logprobs: np.ndarray  # float32, the engine's; 0 where not trained
    advantages: np.ndarray  # float32; 0 where not trained
    temperatures: np.ndarray  # float32; 1 where not trained

    @property
    def n_trained(self) -> int:
        """Tokens that carry loss."""
        return int(self.trained.sum())
