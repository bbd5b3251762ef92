"""What the worker checks before it lets a checkpoint near the model."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from leyden.serving.vllm_plugin.checkpoint_files import mismatch
from leyden.serving.vllm_plugin.worker import not_finite

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn]


@given(
    dtype=st.sampled_from(DTYPES),
    value=st.sampled_from([float("nan"), float("inf"), float("-inf")]),
    size=st.integers(1, 600),
    data=st.data(),
)
def test_one_value_that_is_not_finite_is_found_wherever_it_stands(
    dtype: torch.dtype, value: float, size: int, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, size - 1))
    tensor = torch.randn(size)
    good = {"empty": torch.zeros(0), "ids": torch.arange(4), "w": tensor.to(dtype)}
    assert not_finite(good) is None
    tensor[at] = value
    bad = tensor.to(dtype)
    if not torch.isfinite(bad.float()).all():  # float8_e4m3fn has no infinity
        assert not_finite(good | {"w": bad}) == "w"


def test_large_finite_values_are_finite() -> None:
    assert not_finite({"w": torch.full((1000,), 3e38)}) is None
    assert not_finite({"w": torch.full((1000,), -3e38, dtype=torch.bfloat16)}) is None


@pytest.mark.parametrize(("tied", "fits"), [(True, True), (False, False)])
def test_a_tied_output_layer_may_be_in_one_checkpoint_and_not_in_the_other(tied: bool, fits: bool) -> None:
    with_head = {"model.embed_tokens.weight": (8, 4), "lm_head.weight": (8, 4)}
    without = {"model.embed_tokens.weight": (8, 4)}
    assert (mismatch(with_head, without, tied) is None) == fits
    assert (mismatch(without, with_head, tied) is None) == fits
