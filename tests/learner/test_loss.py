"""The token losses by hand, against TRL's implementation, and where numbers are extreme."""

import math
import warnings
from collections import defaultdict
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from leyden.learner.loss import LossSettings, aggregate, k3, ppo_clip, truncated_is

SETTINGS = LossSettings()


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_ppo_clip_by_hand() -> None:
    ratios = t(1.5, 1.5, 0.5, 0.5, 1.1)
    advantages = t(1.0, -1.0, 1.0, -1.0, 2.0)
    token = ppo_clip(ratios.log(), torch.zeros(5, dtype=torch.float64), advantages, SETTINGS)
    assert token.loss_R.tolist() == pytest.approx([-1.2, 1.5, -0.5, 0.8, -2.2])
    assert token.clipped_R.tolist() == [True, False, False, True, False]


def test_the_dual_clip_bounds_the_ratio_of_what_should_become_less_probable() -> None:
    # Loss -r A with A = -2: 2 r up to r = 3, 6 beyond; with A = 2 the plain clip at 1.2 is the bound.
    logp = t(2.5, 5.0, 5.0).log().requires_grad_()
    token = ppo_clip(logp, torch.zeros(3, dtype=torch.float64), t(-2.0, -2.0, 2.0), SETTINGS)
    assert token.loss_R.tolist() == pytest.approx([5.0, 6.0, -2.4])
    assert token.clipped_R.tolist() == [False, True, True]
    token.loss_R.sum().backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([5.0, 0.0, 0.0])


def test_a_clipped_token_has_no_gradient() -> None:
    logp = t(math.log(1.5), math.log(1.1)).requires_grad_()
    ppo_clip(logp, torch.zeros(2, dtype=torch.float64), t(1.0, 1.0), SETTINGS).loss_R.sum().backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([0.0, -1.1])


def test_truncated_is_by_hand() -> None:
    logp = t(-1.0, -1.0).requires_grad_()
    token = truncated_is(logp, t(-1.5, -4.0), t(1.0, -1.0), SETTINGS)
    assert token.loss_R.tolist() == pytest.approx([math.exp(0.5), -2.0])
    assert token.clipped_R.tolist() == [False, True]


def test_k3_is_never_negative_and_zero_where_equal() -> None:
    assert k3(t(-1.0, -2.0), t(-1.0, -1.0)).tolist() == pytest.approx([0.0, math.e - 2])


@pytest.mark.parametrize("loss", [ppo_clip, truncated_is])
@pytest.mark.parametrize("engine", [-1e4, -0.0])
def test_impossible_ratios_stay_finite(loss: Any, engine: float) -> None:
    logp = torch.tensor([-5000.0, -1e-9, -80.0], requires_grad=True)
    token = loss(logp, torch.full((3,), engine), torch.tensor([1.0, -1.0, -1.0]), SETTINGS)
    aggregate(token.loss_R, 3).backward()
    assert logp.grad is not None
    assert torch.isfinite(token.loss_R).all()
    assert torch.isfinite(logp.grad).all()


@pytest.fixture(scope="module")
def trainer_class() -> Any:
    """TRL's trainer; its import says that it knows older engines only, which does not matter here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl.trainer.grpo_trainer import GRPOTrainer
    return GRPOTrainer


rows = st.lists(
    st.tuples(st.floats(-6, -0.01), st.floats(-6, -0.01), st.floats(-2, 2), st.booleans()), min_size=2, max_size=24
)


@given(rows)
def test_the_clipped_loss_is_trls(trainer_class: Any, values: list[tuple[float, float, float, bool]]) -> None:
    logps, engine, advantages, marks = (torch.tensor(c, dtype=torch.float64) for c in zip(*values, strict=True))
    mask = marks.bool()
    if not mask.any():
        return
    ours = aggregate(ppo_clip(logps[mask], engine[mask], advantages[mask], SETTINGS).loss_R, int(mask.sum()))
    assert float(ours) == pytest.approx(trl_loss(trainer_class, logps, engine, advantages, mask.double()), abs=1e-9)


def trl_loss(
    trainer_class: Any, logps: torch.Tensor, engine: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
) -> float:
    """GRPOTrainer's own loss on one row of tokens, its model replaced by given log probabilities."""
    trainer = MagicMock()
    trainer._get_per_token_logps_and_entropies.return_value = (logps[None], torch.zeros_like(logps)[None], None)
    trainer.configure_mock(
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="token",
        beta=0.0,
        loss_type="dapo",
        epsilon_low=0.2,
        epsilon_high=0.2,
        use_vllm=False,
        current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    trainer.args.delta, trainer.args.steps_per_generation = SETTINGS.dual_clip, 1
    trainer.accelerator.num_processes = 1
    trainer.accelerator.reduce.side_effect = lambda tensor, reduction: tensor
    trainer.accelerator.gather.side_effect = lambda tensor: tensor
    ones = torch.ones(1, len(logps), dtype=torch.long)
    inputs = {
        "prompt_ids": ones,
        "prompt_mask": ones,
        "completion_ids": ones,
        "completion_mask": mask[None],
        "advantages": advantages[None],
        "old_per_token_logps": engine[None],
        "num_items_in_batch": mask.sum(),
    }
    return float(trainer_class._compute_loss(trainer, None, inputs))
