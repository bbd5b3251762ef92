"""The learner's whole step against a bare forward and backward pass of the same model on the same packed batch."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from leyden.infra.bf16 import native_bf16
from leyden.infra.local.models import smollm2_model
from leyden.learner.forward import row_logprobs
from leyden.learner.pack import Pack, first_fit_decreasing, make_pack
from leyden.learner.policy import Policy
from leyden.learner.step import Stepper, StepSettings
from leyden.learner.tree import Tree, build_trees
from leyden.learner.types import Sequence
from torch.nn import functional
from transformers import AutoModelForCausalLM

MIN_BARE_RATIO = 0.85
ROUNDS = 3
# The demo's shape: a shared prompt, a tool call, its result as observation, the answer.
N_GROUPS, PER_GROUP, PROMPT, CALL, OBSERVATION, ANSWER = 4, 8, 170, 12, 12, 10
PACK_TOKENS = 2048
AUTOCAST = native_bf16()


def groups() -> list[list[Sequence]]:
    """Random tokens: a worst case, since nothing but the prompt is shared."""
    rng = np.random.default_rng(0)
    return [_group(rng) for _ in range(N_GROUPS)]


def _group(rng: np.random.Generator) -> list[Sequence]:
    prompt = rng.integers(10, 40_000, PROMPT)
    out = []
    for i in range(PER_GROUP):
        call, answer = CALL + int(rng.integers(-4, 5)), ANSWER + int(rng.integers(-4, 5))
        n = call + OBSERVATION + answer
        trained = np.zeros(PROMPT + n, bool)
        trained[PROMPT : PROMPT + call] = True
        trained[-answer:] = True
        out.append(
            Sequence(
                ids=np.concatenate([prompt, rng.integers(10, 40_000, n)]).astype(np.int32),
                trained=trained,
                logprobs=np.where(trained, -11.0, 0.0).astype(np.float32),
                advantages=np.where(trained, 1.0 if i % 2 else -1.0, 0.0).astype(np.float32),
                temperatures=np.ones(PROMPT + n, np.float32),
            )
        )
    return out


def bare(model: Any, packs: list[Pack]) -> None:
    """Forward and backward of the learner's model: same attention, same logits, mean log probability as loss."""
    for pack in packs:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=AUTOCAST):
            logp_R = row_logprobs(model, pack)
        (-logp_R.mean()).backward()
    model.zero_grad(set_to_none=True)


def stock(model: Any, packs: list[Pack]) -> None:
    """The same with the library's own attention and cross entropy: one block mask over the pack."""
    for pack in packs:
        mask = torch.block_diag(*(_mask(b - a, m) for (a, b), m in zip(pack.spans, pack.masks, strict=True))).bool()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=AUTOCAST):
            hidden = model.model(
                input_ids=pack.ids_1T, position_ids=pack.depth_1T, attention_mask=mask[None, None], use_cache=False
            ).last_hidden_state
            logits = model.lm_head(hidden[0, pack.logits_at_U])
        functional.cross_entropy(logits.float()[pack.row_at_R], pack.target_R).backward()
    model.zero_grad(set_to_none=True)


def _mask(n: int, mask: torch.Tensor | None) -> torch.Tensor:
    return mask if mask is not None else torch.ones(n, n, dtype=torch.bool).tril()


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def packs_of(trees: list[Tree]) -> list[Pack]:
    bins = first_fit_decreasing([tree.n_tokens for tree in trees], PACK_TOKENS)
    return [make_pack(trees[i] for i in b) for b in bins]


def main() -> None:
    """Alternate the three, so that what else the machine does meets all of them."""
    source = smollm2_model()
    policy = Policy(source, torch.device("cpu"), None, gradient_checkpointing=False)
    library_model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="sdpa").eval()
    stepper = Stepper(
        policy.model, policy.trainable(), StepSettings(learning_rate=1e-7, pack_tokens=PACK_TOKENS, autocast=AUTOCAST)
    )
    trees = [tree for group in groups() for tree in build_trees(group, PACK_TOKENS)]
    packs = packs_of(trees)
    runs: dict[str, Callable[[], object]] = {
        "learner": lambda: stepper.step(trees),
        "bare": lambda: bare(policy.model, packs),
        "stock": lambda: stock(library_model, packs),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for round_ in range(ROUNDS + 1):
        for name, run in runs.items():
            took = seconds(run)
            if round_:  # The first round warms up.
                times[name].append(took)
    n_tokens = sum(pack.n_tokens for pack in packs)
    rates = {name: n_tokens / statistics.median(values) for name, values in times.items()}
    ratio = rates["learner"] / max(rates["bare"], rates["stock"])
    figures = {
        **{f"{name}_tokens_per_s": round(rate, 1) for name, rate in rates.items()},
        "tokens": n_tokens,
        "tokens_without_sharing": sum(pack.n_plain_tokens for pack in packs),
        "trained_tokens": sum(pack.n_rows for pack in packs),
        "step_s": round(statistics.median(times["learner"]), 2),
    }
    bar = {"value": round(ratio, 3), "at_least": MIN_BARE_RATIO, "holds": ratio >= MIN_BARE_RATIO}
    machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
    print(json.dumps({"name": "learner", "machine": machine, "figures": figures, "bars": {"bare_ratio": bar}}))


if __name__ == "__main__":
    main()
