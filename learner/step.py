"""One optimisation step over prepared trees, on one process or several: the same update however it is cut."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from .forward import row_logprobs
from .loss import LOSSES, LossSettings, aggregate, k3, log_ratio
from .pack import Pack, first_fit_decreasing, make_pack, share_out
from .tree import Tree

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class StepSettings:
    """How a step optimises."""

    learning_rate: float = 2e-5
    warmup_steps: int = 2
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    pack_tokens: int = 2048
    loss: str = "ppo_clip"
    loss_settings: LossSettings = field(default_factory=LossSettings)
    autocast: bool = True


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did. `applied` is False where a non-finite loss or gradient made it void."""

    applied: bool
    metrics: dict[str, float]


class Stepper:
    """Owns the optimizer. Every process of the learner has one and calls `step` with the same trees."""

    def __init__(self, model: Any, parameters: dict[str, torch.nn.Parameter], settings: StepSettings) -> None:
        self.model = model
        self.parameters = parameters
        self.settings = settings
        self.n_steps = 0
        self.device = next(iter(parameters.values())).device
        self.optimizer = torch.optim.AdamW(
            list(parameters.values()),
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self._loss = LOSSES[settings.loss]
        self._distributed = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.rank, self.n_processes = (dist.get_rank(), dist.get_world_size()) if self._distributed else (0, 1)

    def learning_rate(self) -> float:
        """Of the next step: linear warm-up, then constant."""
        warmup = max(1, self.settings.warmup_steps)
        return self.settings.learning_rate * min(1.0, (self.n_steps + 1) / warmup)

    def step(self, trees: Sequence[Tree]) -> StepResult:
        """Forward, backward and update over `trees`. They must hold at least one trained token."""
        began = time.perf_counter()
        n_trained = sum(len(tree.row_at) for tree in trees)
        bins = first_fit_decreasing([t.n_tokens for t in trees], self.settings.pack_tokens)
        mine = share_out([sum(trees[i].n_tokens for i in b) for b in bins], self.n_processes)[self.rank]
        sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=self.device)
        for i in mine:
            sums += self._accumulate(make_pack([trees[j] for j in bins[i]], self.device), n_trained)
        self._reduce(sums)
        totals = dict(zip(_SUMS, sums.tolist(), strict=True))
        grad_norm = float(torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.settings.max_grad_norm))
        applied = math.isfinite(totals["loss"]) and math.isfinite(grad_norm)
        learning_rate = self.learning_rate()
        if applied:
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            self.optimizer.step()
            self.n_steps += 1
        self.optimizer.zero_grad(set_to_none=True)
        seconds = time.perf_counter() - began
        plain = sum(tree.n_plain_tokens for tree in trees)
        return StepResult(applied, _metrics(totals, n_trained, plain, grad_norm, learning_rate, seconds))

    def moments(self) -> dict[str, dict[str, torch.Tensor]]:
        """First and second moments of AdamW by parameter name; empty before the first step."""
        moments: dict[str, dict[str, torch.Tensor]] = {}
        for name, parameter in self.parameters.items():
            for key in MOMENTS:
                if key in (state := self.optimizer.state.get(parameter, {})):
                    moments.setdefault(key, {})[name] = state[key]
        return moments

    def reset(self, n_steps: int = 0) -> None:
        """An optimizer without memory, or with zero moments to be filled by `moments` where steps were made."""
        self.n_steps = n_steps
        self.optimizer.state.clear()
        if n_steps:
            for parameter in self.parameters.values():
                self.optimizer.state[parameter] = {
                    "step": torch.tensor(float(n_steps), device=self.device),
                    **{key: torch.zeros_like(parameter) for key in MOMENTS},
                }

    def synchronise(self) -> None:
        """All processes take over parameters and optimizer of process 0."""
        if not self._distributed:
            return
        steps = torch.tensor(self.n_steps, device=self.device)
        dist.broadcast(steps, 0)
        if self.rank:
            self.reset(int(steps))
        for parameter in self.parameters.values():
            dist.broadcast(parameter.data, 0)
        for by_name in self.moments().values():
            for moment in by_name.values():
                dist.broadcast(moment, 0)

    def _accumulate(self, pack: Pack, n_trained: int) -> torch.Tensor:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.settings.autocast):
            logp_R = row_logprobs(self.model, pack)
        token = self._loss(logp_R, pack.logprob_R, pack.advantage_R, self.settings.loss_settings)
        loss_R, kl_R = token.loss_R, torch.zeros_like(logp_R)
        if (coefficient := self.settings.loss_settings.kl_coef) > 0:
            kl_R = k3(logp_R, self._reference(pack))
            loss_R = loss_R + coefficient * kl_R
        loss = aggregate(loss_R, n_trained)
        loss.backward()
        with torch.no_grad():
            gap_R = log_ratio(logp_R, pack.logprob_R)
            mismatch_R = gap_R.exp() - gap_R - 1
            parts = (loss, token.clipped_R.sum(), gap_R.abs().sum(), mismatch_R.sum(), -logp_R.sum(), kl_R.sum())
            tokens = torch.tensor(float(pack.n_tokens), device=self.device)
            return torch.stack([part.double() for part in (*parts, tokens)])

    def _reference(self, pack: Pack) -> torch.Tensor:
        # Only adapters have a reference at no cost: the model without them.
        with (
            torch.no_grad(),
            self.model.disable_adapter(),
            torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.settings.autocast),
        ):
            return row_logprobs(self.model, pack)

    def _reduce(self, sums: torch.Tensor) -> None:
        """Sum gradients and statistics over the processes. One without a pack takes part with zeros."""
        for parameter in self.parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self._distributed:
            for parameter in self.parameters.values():
                dist.all_reduce(parameter.grad)
            dist.all_reduce(sums)


_SUMS: tuple[str, ...] = ("loss", "clipped", "gap", "mismatch_kl", "surprise", "kl", "tokens")


def _metrics(
    totals: dict[str, float], n_trained: int, n_plain: int, grad_norm: float, learning_rate: float, seconds: float
) -> dict[str, float]:
    return {
        "loss": totals["loss"],
        "grad_norm": grad_norm,
        "learning_rate": learning_rate,
        "clip_fraction": totals["clipped"] / n_trained,
        "logprob_gap": totals["gap"] / n_trained,
        "mismatch_kl": totals["mismatch_kl"] / n_trained,
        "sampled_entropy": totals["surprise"] / n_trained,
        "reference_kl": totals["kl"] / n_trained,
        "trained_tokens": float(n_trained),
        "forward_tokens": totals["tokens"],
        "plain_tokens": float(n_plain),
        "step_s": seconds,
        "tokens_per_s": totals["tokens"] / seconds,
    }
