"""Settings of `leyden learner`."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from ..infra.bf16 import native_bf16
from ..infra.settings import RoleSettings, Section
from .loss import LossSettings
from .policy import Lora
from .step import StepSettings


class LoraSettings(Section):
    """Low-rank adapters instead of full weights."""

    rank: int = 16
    """Of the adapters on every linear layer."""
    alpha: int = 32
    """Scale: alpha / rank."""


class LearnerSettings(RoleSettings):
    """Of `leyden learner`, one a policy; several processes of one are started by `accelerate launch`."""

    model: Path = Path("model")
    """Folder of the base model as `transformers` saves it: version 0."""
    lora: LoraSettings | None = None
    """Train adapters; none: full weights."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, a third more time."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Of the forward and backward pass; master weights and optimizer are always fp32. auto: bf16 where the machine has
    instructions for it."""
    threads: int | None = None
    """Of torch on CPU. Fewer than there are cores is faster where the engine shares them."""

    groups_per_step: int = 16
    """Groups that a step takes. Those in which all episodes did alike count as well, so that a round is a step."""
    step_max_wait_s: float = 60.0
    """A smaller step is taken when its first group has waited this long."""
    max_staleness: int = 8
    """Versions between the oldest token of a call and the trainer; an older rollout is dropped (prime-rl's value)."""
    max_sequence_tokens: int = 2048
    """A rollout with a longer call is dropped."""
    pack_tokens: int = 2048
    """Tokens that go forward together, at least max_sequence_tokens. Bounds the memory of a step."""
    train_on_serve: bool = False
    """Whether rewarded production traffic (purpose `serve`) is trained; the stream has a setting of that name."""
    agents: list[str] | None = None
    """Roles of a multi-agent rollout that are trained; none: all."""

    credit: Literal["identical"] = "identical"
    """How the reward of an episode becomes values of its calls."""
    advantage: Literal["grpo", "dr_grpo", "rloo"] = "grpo"
    """How values of a group become advantages. A group of one, as production traffic is, has no siblings: there it is
    the value minus the moving average of the earlier rewards (`ema_baseline`)."""
    loss: Literal["ppo_clip", "truncated_is"] = "ppo_clip"
    """Of trained tokens, against the engine's logprobs."""
    clip_low: float = 0.2
    """ppo_clip: the ratio counts down to 1 - clip_low."""
    clip_high: float = 0.2
    """ppo_clip: the ratio counts up to 1 + clip_high."""
    dual_clip: float = Field(default=3.0, gt=1)
    """ppo_clip: the ratio counts up to this where the advantage is negative; above 1 + clip_high."""
    truncate: float = 2.0
    """truncated_is: cap of the importance weight."""
    kl_coef: float = 0.0
    """Weight of KL to the model without its adapters (k3); needs `lora`."""

    learning_rate: float = Field(default=2e-5, gt=0)
    """AdamW, betas 0.9 and 0.95."""
    warmup_steps: int = 2
    """Steps of linear warm-up."""
    weight_decay: float = 0.0
    """AdamW."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    seed: int = 0
    """Of torch; full training draws nothing, adapters draw their start."""

    def step_settings(self) -> StepSettings:
        """What the stepper takes of these."""
        return StepSettings(
            learning_rate=self.learning_rate,
            warmup_steps=self.warmup_steps,
            weight_decay=self.weight_decay,
            max_grad_norm=self.max_grad_norm,
            pack_tokens=max(self.pack_tokens, self.max_sequence_tokens),
            loss=self.loss,
            loss_settings=LossSettings(self.clip_low, self.clip_high, self.dual_clip, self.truncate, self.kl_coef),
            autocast=self.computes_in_bf16(),
        )

    def computes_in_bf16(self) -> bool:
        """What `precision` comes to on this machine."""
        return self.precision == "bf16" or (self.precision == "auto" and native_bf16())

    def adapters(self) -> Lora | None:
        """What the policy takes of these."""
        return Lora(self.lora.rank, self.lora.alpha) if self.lora else None
