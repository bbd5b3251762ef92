"""A group becomes trees ready to train, or a reason why it does not."""

from dataclasses import dataclass

from .advantage import Advantage
from .credit import Credit
from .merge import merge
from .tree import Tree, build_trees
from .types import Episode


@dataclass(frozen=True, slots=True)
class Prepared:
    """What to train of a group. `trees` is empty where `reason` says why nothing is."""

    trees: tuple[Tree, ...]
    n_trained: int  # tokens that carry loss
    reason: str | None = None  # zero_variance, empty


def prepare(
    episodes: list[Episode], baseline: list[float], credit: Credit, advantage: Advantage, max_tokens: int
) -> Prepared:
    """Trees of `episodes`. `baseline`: rewards of further episodes of the group that count in its statistics only.

    Raises ValueError where a call is longer than `max_tokens`: the caller leaves such episodes out before.
    """
    values = [credit(episode) for episode in episodes]
    kept = [i for i, calls in enumerate(values) if calls]
    if not kept:
        return Prepared((), 0, "empty")
    result = advantage([values[i] for i in kept] + [[reward] for reward in baseline])
    if result is None:
        return Prepared((), 0, "zero_variance")
    sequences = [s for i, calls in zip(kept, result, strict=False) for s in merge(episodes[i].transitions, calls)]
    if not sequences:
        return Prepared((), 0, "empty")
    return Prepared(tuple(build_trees(sequences, max_tokens)), sum(s.n_trained for s in sequences))
