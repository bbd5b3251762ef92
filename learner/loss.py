"""The loss of trained tokens: trainer against the engine's own logprobs, never against recomputed ones."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

MAX_LOG_RATIO = 20.0
"""exp is infinite in fp32 from 88.7 on, and infinity times the zero gradient of a clipped token is NaN, which voids the
step. A ratio of e^20 is clipped or truncated long before, and sums of its like over a step are still finite."""


@dataclass(frozen=True, slots=True)
class LossSettings:
    """Parameters of the losses."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 3.0  # bound of the ratio where the advantage is negative
    truncate: float = 2.0  # cap of the importance weight in `truncated_is`
    kl_coef: float = 0.0  # of the k3 estimate against the reference model


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """What a loss says of each trained token (R,)."""

    loss_R: torch.Tensor
    clipped_R: torch.Tensor  # bool: this token gives no gradient, or a truncated one


Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, LossSettings], TokenLoss]
"""(trainer logprobs, engine logprobs, advantages, settings) -> TokenLoss; all tensors (R,) float32."""


def log_ratio(logp_R: torch.Tensor, engine_R: torch.Tensor) -> torch.Tensor:
    """log(pi / mu), bounded so that its exp stays finite."""
    return (logp_R - engine_R).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def ppo_clip(
    logp_R: torch.Tensor, engine_R: torch.Tensor, advantage_R: torch.Tensor, settings: LossSettings
) -> TokenLoss:
    """-min(min(r, dual_clip) A, clip(r, 1 - low, 1 + high) A) with r = pi / mu (PPO, arXiv 1707.06347).

    Where A is negative the plain objective has no bound in r, and one token that the engine found improbable can
    outweigh a step: the dual clip (arXiv 1912.09729; 3 as there and in verl) is that bound.
    """
    ratio_R = log_ratio(logp_R, engine_R).exp()
    bounded_R = ratio_R.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    plain_R, clipped_R = ratio_R.clamp(max=settings.dual_clip) * advantage_R, bounded_R * advantage_R
    without_gradient_R = (clipped_R < plain_R) | (ratio_R > settings.dual_clip)
    return TokenLoss(-torch.minimum(plain_R, clipped_R), without_gradient_R)


def truncated_is(
    logp_R: torch.Tensor, engine_R: torch.Tensor, advantage_R: torch.Tensor, settings: LossSettings
) -> TokenLoss:
    """-min(r, cap) A log pi, the weight without gradient: a policy gradient corrected for where it was sampled."""
    ratio_R = log_ratio(logp_R.detach(), engine_R).exp()
    return TokenLoss(-ratio_R.clamp(max=settings.truncate) * advantage_R * logp_R, ratio_R > settings.truncate)


LOSSES: dict[str, Loss] = {"ppo_clip": ppo_clip, "truncated_is": truncated_is}
"""By the name used in the settings."""


def k3(logp_R: torch.Tensor, reference_R: torch.Tensor) -> torch.Tensor:
    """Low-variance estimate of KL(pi, reference) a token: r - log r - 1 with r = reference / pi."""
    gap_R = log_ratio(reference_R, logp_R)
    return gap_R.exp() - gap_R - 1


def aggregate(loss_R: torch.Tensor, n_trained_in_step: int) -> torch.Tensor:
    """Sum over the pack divided by the trained tokens of the whole step, of all packs and processes (DAPO).

    So the gradient of a step does not depend on how it was cut.
    """
    return loss_R.sum() / n_trained_in_step
