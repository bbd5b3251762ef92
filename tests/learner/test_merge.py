"""Merging calls: exact continuation or not at all."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from leyden.learner.merge import merge
from leyden.learner.tree import build_trees
from leyden.learner.types import Transition


def call(prompt: list[int], completion: list[int], temperature: float = 1.0) -> Transition:
    logprobs = -np.arange(1, len(completion) + 1, dtype=np.float32)
    return Transition("c", None, np.array(prompt, np.int32), np.array(completion, np.int32), logprobs, temperature)


def test_a_call_that_continues_another_joins_it_and_the_observation_carries_no_loss() -> None:
    (merged,) = merge((call([1, 2], [3, 4]), call([1, 2, 3, 4, 9, 9], [5])), [0.5, -0.5])
    assert merged.ids.tolist() == [1, 2, 3, 4, 9, 9, 5]
    assert merged.trained.tolist() == [False, False, True, True, False, False, True]
    assert merged.logprobs.tolist() == [0, 0, -1, -2, 0, 0, -1]
    assert merged.advantages.tolist() == [0, 0, 0.5, 0.5, 0, 0, -0.5]


def test_a_call_whose_prefix_differs_stays_apart() -> None:
    assert len(merge((call([1, 2], [3, 4]), call([1, 2, 3, 7], [5])), [1, 1])) == 2


def test_a_prompt_that_cuts_the_answer_short_stays_apart() -> None:
    assert len(merge((call([1, 2], [3, 4]), call([1, 2, 3], [5])), [1, 1])) == 2


def test_interleaved_agents_continue_each_its_own() -> None:
    calls = (call([1], [2]), call([7], [8]), call([1, 2, 3], [4]), call([7, 8, 9], [6]))
    assert [s.ids.tolist() for s in merge(calls, [1.0] * 4)] == [[1, 2, 3, 4], [7, 8, 9, 6]]


def test_a_second_answer_to_the_same_prompt_is_a_sequence_of_its_own() -> None:
    assert len(merge((call([1, 2], [3]), call([1, 2], [4])), [1, 1])) == 2


def test_empty_completions_are_left_out() -> None:
    assert merge((call([1], []),), [1.0]) == []


def test_greedy_calls_count_at_temperature_one() -> None:
    (sequence,) = merge((call([1], [2, 3], temperature=0.0),), [1.0])
    assert sequence.temperatures.tolist() == [1, 1, 1]


@given(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), min_size=1, max_size=5))
def test_merged_and_unmerged_train_the_same_tokens_of_the_same_tree(turns: list[list[int]]) -> None:
    calls, context = [], [1]
    for turn in turns:
        calls.append(call(context, turn))
        context = [*context, *turn, 9]
    advantages = [float(i) for i in range(len(calls))]
    merged = merge(tuple(calls), advantages)
    apart = [s for c, a in zip(calls, advantages, strict=True) for s in merge((c,), [a])]
    assert len(merged) == 1
    (one,), (other,) = build_trees(merged, 1000), build_trees(apart, 1000)
    assert one.ids.tolist() == other.ids.tolist()

    def rows(tree) -> list:
        columns = (tree.row_at, tree.row_target, tree.row_logprob, tree.row_advantage)
        return sorted(zip(*(c.tolist() for c in columns), strict=True))

    assert rows(one) == rows(other)
