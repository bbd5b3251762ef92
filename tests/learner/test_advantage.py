"""Credit and advantages by hand, by property, and against TRL's own statistics."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from leyden.learner.advantage import ADVANTAGES, EPSILON, dr_grpo, ema_baseline, grpo, moved, rloo
from leyden.learner.credit import identical
from leyden.learner.types import Episode, Transition
from trl.trainer.utils import nanstd

rewards = st.lists(st.floats(-5, 5, allow_nan=False, width=32), min_size=2, max_size=12)


def transition() -> Transition:
    one = np.array([1], np.int32)
    return Transition("call", None, one, one, np.array([-1.0], np.float32), 1.0)


def test_identical_credit_gives_every_call_the_reward() -> None:
    assert identical(Episode("r", 1, 0, 0.5, (transition(),) * 3)) == [0.5, 0.5, 0.5]


def test_grpo_by_hand() -> None:
    # Rewards 1, 0, 0, 1: mean 1/2, sample deviation sqrt(4 * 1/4 / 3).
    scale = math.sqrt(1 / 3) + EPSILON
    assert grpo([[1.0, 1.0], [0.0], [0.0, 0.0, 0.0], [1.0]]) == [
        pytest.approx([0.5 / scale] * 2),
        pytest.approx([-0.5 / scale]),
        pytest.approx([-0.5 / scale] * 3),
        pytest.approx([0.5 / scale]),
    ]


def test_dr_grpo_and_rloo_by_hand() -> None:
    assert dr_grpo([[1.0], [0.0], [0.0]]) == [[pytest.approx(2 / 3)], [pytest.approx(-1 / 3)], [pytest.approx(-1 / 3)]]
    assert rloo([[1.0], [0.0], [0.0]]) == [[1.0], [-0.5], [-0.5]]


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_alike_episodes_teach_nothing(name: str) -> None:
    assert ADVANTAGES[name]([[0.7], [0.7, 0.7]]) is None
    assert ADVANTAGES[name]([[0.7]]) is None


@given(rewards)
def test_grpo_is_trls(values: list[float]) -> None:
    result = grpo([[v] for v in values])
    if result is None:
        return
    row = torch.tensor(values, dtype=torch.float64)
    expected = (row - row.mean()) / (nanstd(row.view(1, -1), dim=1) + 1e-4)
    assert [calls[0] for calls in result] == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-9)


@given(rewards, st.lists(st.integers(1, 6), min_size=12, max_size=12))
def test_an_episode_of_many_calls_weighs_like_one_of_few(values: list[float], counts: list[int]) -> None:
    few = grpo([[v] for v in values])
    many = grpo([[v] * n for v, n in zip(values, counts, strict=False)])
    if few is None or many is None:
        assert few == many
        return
    assert [calls[0] for calls in many] == pytest.approx([calls[0] for calls in few], abs=1e-6)


@given(rewards)
def test_advantages_of_a_group_sum_to_zero(values: list[float]) -> None:
    for name, advantage in ADVANTAGES.items():
        if (result := advantage([[v] for v in values])) is not None:
            assert sum(calls[0] for calls in result) == pytest.approx(0, abs=1e-5), name


def test_a_group_of_one_is_held_against_the_moving_average_of_earlier_rewards() -> None:
    assert ema_baseline(None)([[1.0]]) is None  # nothing to be held against: it only starts the average
    baseline = moved(None, 1.0)
    assert ema_baseline(baseline)([[0.0, 0.0]]) == [[-1.0, -1.0]]
    baseline = moved(baseline, 0.0)
    assert baseline == pytest.approx(0.95)
    assert ema_baseline(baseline)([[1.0]]) == [[pytest.approx(0.05)]]
    assert ema_baseline(baseline)([[baseline]]) is None


@given(rewards)
def test_the_moving_average_stays_among_the_rewards(values: list[float]) -> None:
    baseline = None
    for value in values:
        baseline = moved(baseline, value)
    assert baseline is not None
    assert min(values) - 1e-9 <= baseline <= max(values) + 1e-9
