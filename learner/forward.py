"""A pack through a causal language model of `transformers`: exact tree attention, logits only where trained."""

from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface

from .pack import Pack

TREE_ATTENTION = "leyden_tree"
"""Load a model with `attn_implementation=TREE_ATTENTION` after `register()`."""


def register() -> None:
    """Make TREE_ATTENTION known to `transformers`; doing so again changes nothing."""
    AttentionInterface.register(TREE_ATTENTION, tree_attention)


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    pack: Pack | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention within each tree of the pack, along its branches. Tensors are (1, heads, T, head size).

    Every tree is a call of its own: no token of another one can take part, not even with weight zero, and the cost is
    that of the trees, not of the square of the pack. Without a pack: plain causal attention, for a single sequence.
    """
    if (groups := query.shape[1] // key.shape[1]) > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    spans = pack.spans if pack is not None else ((0, query.shape[2]),)
    masks = pack.masks if pack is not None else (None,)
    outs = [
        functional.scaled_dot_product_attention(
            query[:, :, a:b],
            key[:, :, a:b],
            value[:, :, a:b],
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=mask is None,
            scale=scaling,
        )
        for (a, b), mask in zip(spans, masks, strict=True)
    ]
    return torch.cat(outs, dim=2).transpose(1, 2).contiguous(), None


def row_logprobs(model: Any, pack: Pack) -> torch.Tensor:
    """(R,) float32: log probability of each trained token, after temperature as the engine reports it.

    Only temperature is applied: calls whose sampling was reshaped by anything else do not come here (see `sampling`).
    `model` is a causal language model, or a `peft` model around one, loaded with TREE_ATTENTION.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    hidden_1TD = inner.base_model(
        input_ids=pack.ids_1T, position_ids=pack.depth_1T, use_cache=False, pack=pack
    ).last_hidden_state
    logits_UV = inner.get_output_embeddings()(hidden_1TD[0, pack.logits_at_U]).float()
    logits_UV = logits_UV / pack.temperature_U[:, None]
    log_norm_U = torch.logsumexp(logits_UV, dim=-1)
    return logits_UV[pack.row_at_R, pack.target_R] - log_norm_U[pack.row_at_R]
