"""LightningRL: the algorithm that the learner runs, as settings of its role."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningRL:
    """How a round is sampled and how its trajectories become an update (arXiv 2508.03680)."""

    credit: str = "identical"
    """Rewards of a trajectory to a value for each call."""
    advantage: str = "grpo"
    """Values of a group to an advantage for each call: grpo, dr_grpo, rloo."""
    loss: str = "ppo_clip"
    """Of trained tokens: ppo_clip, truncated_is."""
    groups_per_step: int = 16
    """Tasks in a round."""
    group_size: int = 8
    """Rollouts of each task; a group of one has no advantage under these three."""
    learning_rate: float = 2e-5
    """Peak rate of AdamW."""
    warmup_steps: int = 2
    """Updates until the rate is reached."""
    max_staleness: int = 8
    """Versions between sampling and training beyond which a rollout is dropped."""
    lora_rank: int = 0
    """0: all weights."""
    seed: int = 0
    """Of the learner, and of the order of the tasks."""


def algorithm_of(given: LightningRL | str) -> LightningRL:
    """The algorithm itself, or LightningRL with the advantage of that name."""
    return given if isinstance(given, LightningRL) else LightningRL(advantage=given)


def environment(algorithm: LightningRL) -> dict[str, str]:
    """The LEYDEN_* variables of the learner; it checks the values at its start."""
    names = (
        *("credit", "advantage", "loss", "groups_per_step"),
        *("learning_rate", "warmup_steps", "max_staleness", "seed"),
    )
    env = {f"LEYDEN_{name.upper()}": str(getattr(algorithm, name)) for name in names}
    if algorithm.lora_rank:
        env |= {"LEYDEN_LORA__RANK": str(algorithm.lora_rank), "LEYDEN_LORA__ALPHA": str(2 * algorithm.lora_rank)}
    return env
