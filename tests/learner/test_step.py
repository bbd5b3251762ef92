"""The forward pass and the step: exact sharing, no leakage, and a gradient that does not depend on the cut."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from leyden.learner.forward import TREE_ATTENTION, row_logprobs
from leyden.learner.loss import LossSettings, aggregate, ppo_clip
from leyden.learner.pack import make_pack
from leyden.learner.step import Stepper, StepSettings
from leyden.learner.tree import build_trees
from leyden.learner.types import Sequence

MakeModel = Callable[..., Any]
MakeGroup = Callable[..., list[Sequence]]
same_fixtures = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


def plain_logprobs(model: Any, sequence: Sequence) -> torch.Tensor:
    """Of the trained tokens of one sequence, the ordinary way: alone, with the library's attention."""
    ids = torch.from_numpy(sequence.ids.astype(np.int64))[None]
    temperatures = torch.from_numpy(sequence.temperatures[1:])[:, None]
    logp = torch.log_softmax(model(input_ids=ids).logits[0, :-1].float() / temperatures, -1)
    chosen = logp.gather(1, ids[0, 1:, None])[:, 0]
    return chosen[torch.from_numpy(sequence.trained[1:])]


def gradient(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], tolerance: float = 1e-5) -> None:
    """Equal but for rounding: of each tensor, relative to the largest entry of all."""
    assert a.keys() == b.keys()
    largest = max(float(g.abs().max()) for g in b.values())
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=tolerance, atol=tolerance * max(1.0, largest))


def test_shared_prefix_forward_is_the_plain_forward(make_model: MakeModel, make_group: MakeGroup) -> None:
    ours, plain = make_model(TREE_ATTENTION), make_model("eager")
    groups = [make_group(1), make_group(2, n=3, n_prompt=4)]
    trees = [tree for group in groups for tree in build_trees(group, 1000)]
    pack = make_pack(trees)
    assert pack.n_tokens < pack.n_plain_tokens
    expected = [plain_logprobs(plain, s) for group in groups for s in sorted(group, key=lambda s: _order(s))]
    torch.testing.assert_close(row_logprobs(ours, pack), torch.cat(expected), rtol=1e-5, atol=1e-5)


def _order(sequence: Sequence) -> bytes:
    return sequence.ids[:-1].astype(">i4").tobytes()


def test_the_gradient_of_a_pack_is_that_of_its_sequences_alone(make_model: MakeModel, make_group: MakeGroup) -> None:
    ours, plain = make_model(TREE_ATTENTION), make_model("eager")
    group = make_group(3)
    n = sum(s.n_trained for s in group)
    pack = make_pack(build_trees(group, 1000))
    loss = ppo_clip(row_logprobs(ours, pack), pack.logprob_R, pack.advantage_R, LossSettings())
    aggregate(loss.loss_R, n).backward()
    for s in group:
        engine, advantages = torch.from_numpy(s.logprobs[s.trained]), torch.from_numpy(s.advantages[s.trained])
        aggregate(ppo_clip(plain_logprobs(plain, s), engine, advantages, LossSettings()).loss_R, n).backward()
    assert_close(gradient(ours), gradient(plain))


@same_fixtures
@given(st.integers(0, 50), st.integers(0, 4), st.integers(1, 63))
def test_no_sequence_sees_another_of_its_pack(
    make_model: MakeModel, make_group: MakeGroup, seed: int, which: int, token: int
) -> None:
    model, group, neighbour = make_model(TREE_ATTENTION), make_group(seed), make_group(seed + 1000)

    def logprobs(sequences: list[Sequence]) -> list[list[float]]:
        pack = make_pack([*build_trees(sequences, 1000), *build_trees(neighbour, 1000)])
        values = row_logprobs(model, pack).tolist()
        out = []
        for s in [*sorted(sequences, key=_order), *sorted(neighbour, key=_order)]:
            out.append((s.ids.tobytes(), values[: s.n_trained]))
            values = values[s.n_trained :]
        return [v for _, v in sorted(out, key=lambda pair: pair[0])]

    changed = group[which].ids.copy()
    changed[-1] = token
    changed[-2] = (token * 7) % 63 + 1
    altered = [*group]
    s = group[which]
    altered[which] = Sequence(changed, s.trained, s.logprobs, s.advantages, s.temperatures)
    keep = {g.ids.tobytes() for i, g in enumerate(group) if i != which} | {g.ids.tobytes() for g in neighbour}
    before = dict(zip(sorted(g.ids.tobytes() for g in [*group, *neighbour]), logprobs(group), strict=True))
    after = dict(zip(sorted(g.ids.tobytes() for g in [*altered, *neighbour]), logprobs(altered), strict=True))
    for ids in keep:
        torch.testing.assert_close(torch.tensor(before[ids]), torch.tensor(after[ids]), rtol=1e-5, atol=1e-5)


@same_fixtures
@given(st.integers(0, 50), st.integers(20, 80), st.integers(20, 200))
def test_the_gradient_does_not_depend_on_how_a_step_is_cut(
    make_model: MakeModel, make_group: MakeGroup, seed: int, tree_tokens: int, pack_tokens: int
) -> None:
    groups = [make_group(seed), make_group(seed + 1, n=7, n_prompt=3)]
    gradients = []
    for tree_limit, pack_limit in ((1000, 10_000), (tree_tokens, pack_tokens)):
        model = make_model(TREE_ATTENTION)
        stepper = Stepper(model, dict(model.named_parameters()), fp32(pack_limit))
        trees = [tree for group in groups for tree in build_trees(group, tree_limit)]
        gradients.append(gradient_of_step(stepper, trees))
    assert_close(*gradients)


def fp32(pack_tokens: int = 10_000) -> StepSettings:
    return StepSettings(pack_tokens=pack_tokens, autocast=False, max_grad_norm=1e9, learning_rate=1e-3, warmup_steps=1)


def gradient_of_step(stepper: Stepper, trees: list) -> dict[str, torch.Tensor]:
    """The gradient as the optimizer gets it."""
    seen: dict[str, torch.Tensor] = {}

    def look(*_: Any) -> None:
        seen.update(gradient(stepper.model))

    handle = stepper.optimizer.register_step_pre_hook(look)
    assert stepper.step(trees).applied
    handle.remove()
    return seen


def on_policy(model: Any, s: Sequence, advantage: float) -> Sequence:
    """The sequence as if the model itself had sampled it."""
    engine = s.logprobs.copy()
    engine[s.trained] = plain_logprobs(model, s).detach().numpy()
    return Sequence(s.ids, s.trained, engine, np.where(s.trained, advantage, 0).astype(np.float32), s.temperatures)


@torch.no_grad()
def total_logprob(model: Any, sequence: Sequence) -> float:
    return float(plain_logprobs(model, sequence).sum())


def test_steps_raise_the_probability_of_what_was_better(make_model: MakeModel, make_group: MakeGroup) -> None:
    model, group = make_model(TREE_ATTENTION), make_group(5, n=2)
    good, bad = (on_policy(model, s, a) for s, a in zip(group, (1.0, -1.0), strict=True))
    before = total_logprob(model, good), total_logprob(model, bad)
    stepper = Stepper(model, dict(model.named_parameters()), fp32())
    for _ in range(3):
        stepper.step(build_trees([good, bad], 1000))
    assert total_logprob(model, good) > before[0]
    assert total_logprob(model, bad) < before[1]


def test_a_non_finite_step_changes_nothing(make_model: MakeModel, make_group: MakeGroup) -> None:
    model = make_model(TREE_ATTENTION)
    stepper = Stepper(model, dict(model.named_parameters()), fp32())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    s = make_group(6)[0]
    broken = Sequence(s.ids, s.trained, s.logprobs, np.where(s.trained, np.nan, 0).astype(np.float32), s.temperatures)
    assert not stepper.step(build_trees([broken], 1000)).applied
    assert stepper.n_steps == 0
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
    assert stepper.step(build_trees(make_group(6), 1000)).applied


@pytest.mark.parametrize(("step", "expected"), [(0, 0.5), (1, 1.0), (7, 1.0)])
def test_the_learning_rate_warms_up(make_model: MakeModel, step: int, expected: float) -> None:
    model = make_model(TREE_ATTENTION)
    stepper = Stepper(model, dict(model.named_parameters()), StepSettings(learning_rate=1.0, warmup_steps=2))
    stepper.n_steps = step
    assert stepper.learning_rate() == expected


def test_gradient_checkpointing_and_bf16_run(make_model: MakeModel, make_group: MakeGroup) -> None:
    model = make_model(TREE_ATTENTION)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.enable_input_require_grads()
    model.train()
    stepper = Stepper(model, dict(model.named_parameters()), StepSettings(autocast=True))
    assert stepper.step(build_trees(make_group(7), 1000)).applied
