"""The model being trained: full weights or LoRA, which parameters learn, and what is served of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import AutoModelForCausalLM, AutoTokenizer

from ..infra.errors import SettingsError
from . import forward
from .tensor_file import LazyTensor, live


@dataclass(frozen=True, slots=True)
class Lora:
    """Low-rank adapters on all linear layers; the rest is frozen."""

    rank: int = 16
    alpha: int = 32


class Policy:
    """A causal language model in fp32 with tree attention, and its tokenizer. Dropout is off."""

    def __init__(
        self,
        source: Path,
        device: torch.device,
        lora: Lora | None,
        gradient_checkpointing: bool,
        served_dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        forward.register()
        self.source = source
        self.tokenizer = AutoTokenizer.from_pretrained(source)
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.float32, attn_implementation=forward.TREE_ATTENTION
        )
        windows = getattr(self.model.config, "layer_types", None) or []
        if getattr(self.model.config, "sliding_window", None) and any("sliding" in kind for kind in windows):
            raise SettingsError(f"model {source}: sliding-window attention cannot be trained with shared prefixes yet")
        if gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
            self.model.enable_input_require_grads()
        if lora is not None:
            config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules="all-linear", lora_dropout=0.0)
            self.model = get_peft_model(self.model, config)
        self.model.to(device)
        # Evaluation mode has no dropout, as the engine has none; checkpointing works in training mode only.
        self.model.train(gradient_checkpointing)
        self.lora = lora
        self._served_dtype = served_dtype

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.model.parameters()).device

    def trainable(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that learn, by name."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def served(self) -> dict[str, LazyTensor]:
        """What an engine loads: names of the plain model, floats as `served_dtype`, adapters merged, ties once."""
        return dict(self._served())

    def _served(self) -> Iterator[tuple[str, LazyTensor]]:
        plain = self.model.get_base_model() if self.lora else self.model
        adapted = {name: m for name, m in plain.named_modules() if isinstance(m, LoraLayer)}
        seen: set[int] = set()
        for name, tensor in plain.state_dict(keep_vars=True).items():
            if "lora_" in name or tensor.data_ptr() in seen:
                continue
            seen.add(tensor.data_ptr())
            module = name.removesuffix(".base_layer.weight")
            dtype = self._served_dtype if tensor.is_floating_point() else tensor.dtype
            if module != name and module in adapted:
                yield f"{module}.weight", _merged(adapted[module], tensor, dtype)
            else:
                yield name.replace(".base_layer.", "."), live(tensor, dtype)


def _merged(layer: Any, weight: torch.Tensor, dtype: torch.dtype) -> LazyTensor:
    def make() -> torch.Tensor:
        with torch.no_grad():
            return (weight + layer.get_delta_weight("default")).to(dtype)

    return LazyTensor(dtype, tuple(weight.shape), make)
