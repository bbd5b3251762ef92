"""LightningRL: the algorithm that the learner runs, as settings of its role."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningRL:
    """How trajectories become updates (arXiv 2508.03680), and how a round is sampled."""

    credit: str = "identical"
    """Rewards of a trajectory to a value for each call."""
    advantage: str = "grpo"
    """Values of a group to an advantage for each call."""
    groups_per_step: int = 16
    """Tasks in a round."""
    group_size: int = 8
    """Rollouts of each task."""
    learning_rate: float = 2e-5
    """Peak rate of AdamW."""
    warmup_steps: int = 2
    """Updates until the rate is reached."""
    max_staleness: int = 4
    """Versions between sampling and training beyond which a transition is dropped."""
    lora_rank: int = 0
    """0: all weights."""
    seed: int = 0
    """Of the learner."""


def algorithm_of(given: LightningRL | str) -> LightningRL:
    """The algorithm itself, or LightningRL with the advantage of that name."""
    return given if isinstance(given, LightningRL) else LightningRL(advantage=given)


def environment(algorithm: LightningRL) -> dict[str, str]:
    """The LEYDEN_* variables of the learner."""
    return {
        f"LEYDEN_{f.name.upper()}": str(getattr(algorithm, f.name)) for f in fields(algorithm) if f.name != "group_size"
    }
