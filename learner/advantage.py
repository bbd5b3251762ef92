"""Advantage: the values of a group's calls against the group's baseline (LightningRL, second level)."""

import statistics
from collections.abc import Callable, Sequence

Values = Sequence[Sequence[float]]
"""One list an episode, one value a call."""
Advantage = Callable[[Values], list[list[float]] | None]
"""Advantages in the shape of the values, or None where the group teaches nothing (all episodes alike)."""

EPSILON = 1e-4
"""Added to the deviation, as in TRL."""
ALIKE = 1e-9
"""Values that differ by less teach nothing."""
DECAY = 0.95
"""Of the moving average: about the last twenty rewards count (the value of SPIRAL, arXiv 2506.24119)."""


def _episode_values(values: Values) -> list[float]:
    # Over episodes, not calls: an episode of many calls must not weigh more in the baseline.
    return [statistics.fmean(calls) for calls in values]


def _teaches_nothing(means: list[float]) -> bool:
    return len(means) < 2 or max(means) - min(means) < ALIKE


def grpo(values: Values) -> list[list[float]] | None:
    """(value - mean) / (std + EPSILON), sample deviation over episodes (DeepSeekMath, arXiv 2402.03300, 4.1.2)."""
    means = _episode_values(values)
    if _teaches_nothing(means):
        return None
    mean, scale = statistics.fmean(means), statistics.stdev(means) + EPSILON
    return [[(value - mean) / scale for value in calls] for calls in values]


def dr_grpo(values: Values) -> list[list[float]] | None:
    """value - mean: no division, so that easy and hard groups weigh alike (arXiv 2503.20783)."""
    means = _episode_values(values)
    if _teaches_nothing(means):
        return None
    mean = statistics.fmean(means)
    return [[value - mean for value in calls] for calls in values]


def rloo(values: Values) -> list[list[float]] | None:
    """value - mean of the other episodes (REINFORCE leave-one-out, arXiv 2402.14740)."""
    means = _episode_values(values)
    if _teaches_nothing(means):
        return None
    total, n = sum(means), len(means)
    return [[value - (total - own) / (n - 1) for value in calls] for calls, own in zip(values, means, strict=True)]


def ema_baseline(baseline: float | None) -> Advantage:
    """value - `baseline`, the moving average of the earlier rewards: for groups of one, which have no siblings.

    Production traffic is such. None where there was no earlier reward: the first one only starts the average.
    """

    def against_earlier(values: Values) -> list[list[float]] | None:
        if baseline is None or all(abs(value - baseline) < ALIKE for calls in values for value in calls):
            return None
        return [[value - baseline for value in calls] for calls in values]

    return against_earlier


def moved(baseline: float | None, reward: float) -> float:
    """The moving average after one more reward."""
    return reward if baseline is None else DECAY * baseline + (1 - DECAY) * reward


ADVANTAGES: dict[str, Advantage] = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo}
"""By the name used in the settings, for groups of several."""
