"""Sequences of a group laid out as a tree: what several of them share stands there once and goes forward once."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from .types import Sequence


@dataclass(frozen=True, slots=True)
class Tree:
    """A trie of sequences in depth-first order, and the trained tokens as rows that point into it.

    Token j is an ancestor of token i, or i itself, exactly where `j <= i < end[j]`: that is the whole attention mask.
    Several rows may point to one token: the same continuation sampled twice, or different ones of a shared prefix.
    """

    ids: np.ndarray  # (t,) int32
    depth: np.ndarray  # (t,) int32, position in the sequence
    end: np.ndarray  # (t,) int32, one behind the last descendant
    row_at: np.ndarray  # (r,) int32: the token whose output predicts the row's target
    row_target: np.ndarray  # (r,) int32
    row_logprob: np.ndarray  # (r,) float32, the engine's
    row_advantage: np.ndarray  # (r,) float32
    row_temperature: np.ndarray  # (r,) float32
    n_plain_tokens: int  # what the sequences would take without sharing

    @property
    def n_tokens(self) -> int:
        """Tokens that go forward."""
        return len(self.ids)

    @property
    def is_chain(self) -> bool:
        """True where nothing branches, so that the mask is the plain causal one."""
        return bool((self.end == len(self.ids)).all())


def build_trees(sequences: Iterable[Sequence], max_tokens: int) -> list[Tree]:
    """Trees of at most `max_tokens` tokens that hold all sequences. The last token of each only is a target.

    A tree that would grow too large is closed and the rest begins another: less is shared, the result is the same.
    Raises ValueError for a sequence that alone exceeds `max_tokens`.
    """
    return [_layout(chunk) for chunk in _chunks(sorted(sequences, key=_order), max_tokens)]


def _order(sequence: Sequence) -> bytes:
    return sequence.ids[:-1].astype(">i4").tobytes()


def _chunks(ordered: list[Sequence], max_tokens: int) -> Iterator[list[Sequence]]:
    chunk: list[Sequence] = []
    total = 0
    for sequence in ordered:
        n = len(sequence.ids) - 1
        if n > max_tokens:
            raise ValueError(f"a sequence of {n} tokens does not fit into {max_tokens}")
        new = n - (shared_prefix(chunk[-1].ids[:-1], sequence.ids[:-1]) if chunk else 0)
        if total + new > max_tokens:
            yield chunk
            chunk, total, new = [], 0, n
        chunk.append(sequence)
        total += new
    if chunk:
        yield chunk


def shared_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """How many leading tokens are equal."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    return int(differs.argmax()) if differs.any() else n


def _layout(ordered: list[Sequence]) -> Tree:
    ids: list[np.ndarray] = []
    depth: list[np.ndarray] = []
    rows: list[tuple[np.ndarray, Sequence]] = []
    end = np.zeros(sum(len(s.ids) - 1 for s in ordered), np.int32)
    path, before, total = np.zeros(0, np.int32), np.zeros(0, np.int32), 0
    # Sorted order: whatever a sequence shares with any earlier one, it shares with the one just before it.
    for sequence in ordered:
        inputs = sequence.ids[:-1]
        shared = shared_prefix(before, inputs)
        end[path[shared:]] = total
        new = len(inputs) - shared
        ids.append(inputs[shared:])
        depth.append(np.arange(shared, len(inputs), dtype=np.int32))
        path = np.concatenate([path[:shared], np.arange(total, total + new, dtype=np.int32)])
        rows.append((path[np.flatnonzero(sequence.trained) - 1], sequence))
        before, total = inputs, total + new
    end[path] = total
    trained = [s.trained for _, s in rows]
    return Tree(
        ids=np.concatenate(ids),
        depth=np.concatenate(depth),
        end=end[:total],
        row_at=np.concatenate([at for at, _ in rows]),
        row_target=np.concatenate([s.ids[t] for (_, s), t in zip(rows, trained, strict=True)]),
        row_logprob=np.concatenate([s.logprobs[t] for (_, s), t in zip(rows, trained, strict=True)]),
        row_advantage=np.concatenate([s.advantages[t] for (_, s), t in zip(rows, trained, strict=True)]),
        row_temperature=np.concatenate([s.temperatures[t] for (_, s), t in zip(rows, trained, strict=True)]),
        n_plain_tokens=sum(len(s.ids) - 1 for s in ordered),
    )
