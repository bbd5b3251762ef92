"""What a checkpoint folder holds, and whether it fits a model; what does not fit is refused with the reason."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open

from ...infra.errors import LeydenError

# A tied output layer has no values of its own: Transformers drops it when saving, some publishers keep it.
TIED_NAME = "lm_head.weight"

T = TypeVar("T")
Shapes = dict[str, tuple[int, ...]]


class BadCheckpointError(LeydenError):
    """A checkpoint folder that must not be loaded; the message names the file or tensor and what is wrong with it."""


def read_shapes(folder: Path) -> Shapes:
    """Tensor name -> shape of all *.safetensors in `folder`, from the headers alone. Raises BadCheckpointError."""
    return dict(each_tensor(folder, "np", lambda file, name: tuple(file.get_slice(name).get_shape())))


def each_tensor(folder: Path, framework: str, read: Callable[[Any, str], T]) -> Iterator[tuple[str, T]]:
    """(name, read(file, name)) of every tensor; `framework` as safetensors names it. Raises BadCheckpointError."""
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise BadCheckpointError(f"{folder}: no *.safetensors file")
    seen: set[str] = set()
    for path in paths:
        try:
            # Opening checks the length of the file against its header: a truncated file fails here.
            with safe_open(path, framework=framework, device="cpu") as file:
                for name in file.keys():  # noqa: SIM118 - not a dict
                    if name in seen:
                        raise BadCheckpointError(f"{path.name}: tensor {name} stands in two files")
                    seen.add(name)
                    yield name, read(file, name)
        except (SafetensorError, OSError) as error:
            raise BadCheckpointError(f"{path.name}: {error}") from error


def is_tied(folder: Path) -> bool:
    """True where config.json says that the output layer is the embedding."""
    path = folder / "config.json"
    return path.exists() and bool(json.loads(path.read_text()).get("tie_word_embeddings", False))


def mismatch(want: Shapes, got: Shapes, tied: bool) -> str | None:
    """Why `got` does not fit a model of `want`, naming up to three tensors; None where it fits."""
    skip = {TIED_NAME} if tied else set()
    missing, extra = want.keys() - got.keys() - skip, got.keys() - want.keys() - skip
    differ = sorted(n for n in want.keys() & got.keys() if want[n] != got[n])
    shapes = [f"{name} is {list(got[name])}, not {list(want[name])}" for name in differ]
    parts = [
        (f"{len(names)} {what}: {', '.join(sorted(names)[:3])}")
        for what, names in (("tensors missing", missing), ("tensors unknown", extra), ("shapes differ", shapes))
        if names
    ]
    return "; ".join(parts) or None
