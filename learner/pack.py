"""Trees put side by side into packs of bounded size, and packs shared out to processes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from .tree import Tree


@dataclass(frozen=True, slots=True)
class Pack:
    """Trees that go forward together. T tokens, U positions whose logits are needed, R trained rows."""

    ids_1T: torch.Tensor  # int64
    depth_1T: torch.Tensor  # int64: position ids, reset for each sequence
    spans: tuple[tuple[int, int], ...]  # [start, stop) of each tree
    masks: tuple[torch.Tensor | None, ...]  # (t, t) bool a tree; None: plain causal
    logits_at_U: torch.Tensor  # int64
    temperature_U: torch.Tensor  # float32
    row_at_R: torch.Tensor  # int64, into U
    target_R: torch.Tensor  # int64
    logprob_R: torch.Tensor  # float32, the engine's
    advantage_R: torch.Tensor  # float32
    n_plain_tokens: int

    @property
    def n_tokens(self) -> int:
        """Tokens that go forward."""
        return self.ids_1T.shape[1]

    @property
    def n_rows(self) -> int:
        """Trained tokens."""
        return self.target_R.shape[0]


def first_fit_decreasing(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Indices of `sizes` in bins whose sums stay within `capacity`; an item above it gets a bin of its own."""
    bins: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        fit = next((b for b, left in enumerate(room) if left >= sizes[i]), None)
        if fit is None:
            bins.append([i])
            room.append(capacity - sizes[i])
        else:
            bins[fit].append(i)
            room[fit] -= sizes[i]
    return bins


def share_out(costs: Sequence[int], n_processes: int) -> list[list[int]]:
    """Indices of `costs` for each process, the heaviest first to the one with least so far."""
    shares: list[list[int]] = [[] for _ in range(n_processes)]
    load = [0] * n_processes
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        least = load.index(min(load))
        shares[least].append(i)
        load[least] += costs[i]
    return shares


def make_pack(trees: Iterable[Tree], device: torch.device | str = "cpu") -> Pack:
    """Put trees side by side; no tree sees another (see `masks`)."""
    chosen = list(trees)
    starts = np.concatenate([[0], np.cumsum([t.n_tokens for t in chosen])]).astype(np.int64)
    at = np.concatenate([t.row_at + start for t, start in zip(chosen, starts[:-1], strict=True)])
    temperature = np.concatenate([t.row_temperature for t in chosen])
    # Logits once for each position and temperature, however many rows read them.
    keys = np.stack([at.astype(np.float64), temperature.astype(np.float64)], axis=1)
    unique, inverse = np.unique(keys, axis=0, return_inverse=True)

    def tensor(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device=device, dtype=dtype)

    return Pack(
        ids_1T=tensor(np.concatenate([t.ids for t in chosen])[None], torch.int64),
        depth_1T=tensor(np.concatenate([t.depth for t in chosen])[None], torch.int64),
        spans=tuple((int(a), int(b)) for a, b in pairwise(starts)),
        masks=tuple(None if t.is_chain else tensor(_mask(t), torch.bool) for t in chosen),
        logits_at_U=tensor(unique[:, 0], torch.int64),
        temperature_U=tensor(unique[:, 1], torch.float32),
        row_at_R=tensor(inverse.reshape(-1), torch.int64),
        target_R=tensor(np.concatenate([t.row_target for t in chosen]), torch.int64),
        logprob_R=tensor(np.concatenate([t.row_logprob for t in chosen]), torch.float32),
        advantage_R=tensor(np.concatenate([t.row_advantage for t in chosen]), torch.float32),
        n_plain_tokens=sum(t.n_plain_tokens for t in chosen),
    )


def _mask(tree: Tree) -> np.ndarray:
    i = np.arange(tree.n_tokens)
    return (i[None, :] <= i[:, None]) & (i[:, None] < tree.end[None, :])
