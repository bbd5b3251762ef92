"""The tree layout against the definition: every sequence is a path, and sees its path alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leyden.learner.tree import build_trees
from leyden.learner.types import Sequence


def sequence(ids: list[int], advantage: float = 1.0) -> Sequence:
    n = len(ids)
    trained = np.arange(n) > 0
    return Sequence(
        np.array(ids, np.int32),
        trained,
        np.where(trained, -np.arange(n) / 10, 0).astype(np.float32),
        np.where(trained, advantage, 0).astype(np.float32),
        np.ones(n, np.float32),
    )


few_tokens = st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=8), min_size=1, max_size=8)


def paths(tree) -> list[list[int]]:
    """For each row, the tokens that its position sees, in order."""
    positions = np.arange(tree.n_tokens)
    return [
        [*tree.ids[(positions <= at) & (at < tree.end)].tolist(), int(target)]
        for at, target in zip(tree.row_at, tree.row_target, strict=True)
    ]


@given(few_tokens)
def test_every_trained_token_sees_exactly_what_stands_before_it(ids: list[list[int]]) -> None:
    trees = build_trees([sequence(i) for i in ids], 1000)
    expected = sorted(i[: k + 1] for i in ids for k in range(1, len(i)))
    assert sorted(path for tree in trees for path in paths(tree)) == expected


@given(few_tokens)
def test_shared_tokens_stand_once(ids: list[list[int]]) -> None:
    (tree,) = build_trees([sequence(i) for i in ids], 1000)
    prefixes = {tuple(i[:k]) for i in ids for k in range(1, len(i))}
    assert tree.n_tokens == len(prefixes)
    assert tree.n_plain_tokens == sum(len(i) - 1 for i in ids)


@given(few_tokens)
def test_depth_is_the_position_in_the_sequence(ids: list[list[int]]) -> None:
    (tree,) = build_trees([sequence(i) for i in ids], 1000)
    for at, path in zip(tree.row_at, paths(tree), strict=True):
        assert tree.depth[at] == len(path) - 2


@given(few_tokens, st.integers(7, 20))
def test_small_trees_hold_the_same_rows(ids: list[list[int]], max_tokens: int) -> None:
    sequences = [sequence(i, advantage=k) for k, i in enumerate(ids)]
    small = build_trees(sequences, max_tokens)
    assert all(tree.n_tokens <= max_tokens for tree in small)
    (whole,) = build_trees(sequences, 1000)

    def rows(trees) -> list:
        return sorted(
            (path, float(a), float(lp))
            for tree in trees
            for path, a, lp in zip(paths(tree), tree.row_advantage, tree.row_logprob, strict=True)
        )

    assert rows(small) == rows([whole])


def test_one_sequence_is_a_chain() -> None:
    (tree,) = build_trees([sequence([5, 6, 7, 8])], 10)
    assert tree.is_chain
    (branching,) = build_trees([sequence([5, 6, 7, 8]), sequence([5, 9, 7, 8])], 10)
    assert not branching.is_chain


def test_a_sequence_above_the_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        build_trees([sequence(list(range(12)))], 10)
