"""Credit: the reward of an episode becomes one value for each of its calls (LightningRL, first level)."""

from collections.abc import Callable

from .types import Episode

Credit = Callable[[Episode], list[float]]
"""One value a transition of the episode, in order."""


def identical(episode: Episode) -> list[float]:
    """Every call gets the reward of the whole episode (the paper's choice)."""
    return [episode.reward] * len(episode.transitions)


CREDITS: dict[str, Credit] = {"identical": identical}
"""By the name used in the settings."""
