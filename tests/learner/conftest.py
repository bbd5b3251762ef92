"""Small models and sequences for the learner's tests."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import settings
from leyden.learner import forward
from leyden.learner.types import Sequence
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 64
# The machine is shared: how long an example takes says nothing.
settings.register_profile("learner", deadline=None)
settings.load_profile("learner")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tiny tensors: threads only cost."""
    torch.set_num_threads(1)


def build_model(attention: str, seed: int = 0) -> LlamaForCausalLM:
    """Two layers in fp32, grouped-query attention, tied embeddings; weights large enough that tokens matter."""
    forward.register()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    config._attn_implementation = attention
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def make_model() -> Callable[..., LlamaForCausalLM]:
    """`build_model` for the tests."""
    return build_model


@pytest.fixture
def make_group() -> Callable[..., list[Sequence]]:
    """Sequences with a shared prompt; some share more, one carries an observation in its middle."""

    def make(seed: int, n: int = 5, n_prompt: int = 7, advantages: float = 1.0) -> list[Sequence]:
        rng = np.random.default_rng(seed)
        prompt = rng.integers(1, VOCABULARY, n_prompt)
        opening = rng.integers(1, VOCABULARY, 3)
        out = []
        for i in range(n):
            own = rng.integers(1, VOCABULARY, int(rng.integers(2, 9)))
            completion = np.concatenate([opening, own]) if i % 2 else own
            ids = np.concatenate([prompt, completion]).astype(np.int32)
            trained = np.arange(len(ids)) >= n_prompt
            if i == 1:
                trained[n_prompt + 1 : n_prompt + 3] = False
            out.append(
                Sequence(
                    ids=ids,
                    trained=trained,
                    logprobs=np.where(trained, -rng.exponential(1.5, len(ids)), 0).astype(np.float32),
                    advantages=np.where(trained, rng.normal() * advantages, 0).astype(np.float32),
                    temperatures=np.where(trained, 0.8 if i == 2 else 1.0, 1).astype(np.float32),
                )
            )
        return out

    return make
