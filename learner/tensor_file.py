"""Safetensors files written as a stream of pieces straight from live tensors, without a copy in memory or on disk."""

import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

PIECE_BYTES = 4 << 20
_NAMES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """A tensor that exists when it is asked for; dtype and shape are known before."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    make: Callable[[], torch.Tensor]

    @property
    def n_bytes(self) -> int:
        """Size of its values."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    @property
    def dtype_name(self) -> str:
        """As safetensors spells it."""
        return _NAMES[self.dtype]


def live(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> LazyTensor:
    """The values that `tensor` has when it is written, converted to `dtype`."""
    return LazyTensor(dtype or tensor.dtype, tuple(tensor.shape), lambda: tensor.detach().to(dtype or tensor.dtype))


class TensorFile:
    """One safetensors file (format 0.x: header length, JSON header, values in the order of the header)."""

    def __init__(self, tensors: dict[str, LazyTensor]) -> None:
        self.tensors = tensors
        entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
        offset = 0
        for name, tensor in tensors.items():
            end = offset + tensor.n_bytes
            entries[name] = {"dtype": tensor.dtype_name, "shape": list(tensor.shape), "data_offsets": [offset, end]}
            offset = end
        header = json.dumps(entries, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)
        self._head = struct.pack("<Q", len(header)) + header
        self.n_bytes = len(self._head) + offset

    def pieces(self, digest: "hashlib._Hash") -> Iterator[bytes | memoryview]:
        """The file in pieces of at most PIECE_BYTES; `digest` has seen all of them at the end."""
        digest.update(self._head)
        yield self._head
        for tensor in self.tensors.values():
            if tensor.n_bytes == 0:
                continue
            values = tensor.make().cpu().contiguous().reshape(-1).view(torch.uint8)
            view = memoryview(values.numpy().data)
            for start in range(0, len(view), PIECE_BYTES):
                piece = view[start : start + PIECE_BYTES]
                digest.update(piece)
                yield piece
