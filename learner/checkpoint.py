"""Checkpoints in the object store: files first, the manifest last and only once; back again at start."""

import base64
import hashlib
import logging
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import torch
from safetensors.torch import load_file

from ..infra.errors import LeydenError
from ..infra.manifest import FileEntry, Manifest
from ..infra.objects import ObjectStore
from .policy import Policy
from .step import Stepper
from .tensor_file import LazyTensor, TensorFile, live

SERVED_WEIGHTS = "serve/model.safetensors"
STATE = "resume/state.json"
PARAMETERS = "resume/parameters.safetensors"
# What an engine or `transformers` needs beside the weights, copied from the base model's folder.
SIDE_FILES = ("*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
# Groups that are remembered as trained: a copy of a message comes within seconds, a late reward within days.
REMEMBERED_GROUPS = 100_000
log = logging.getLogger("leyden.learner")


class CheckpointError(LeydenError):
    """A checkpoint cannot be restored; the message names version, file and reason."""


@dataclass(slots=True)
class TrainedGroups:
    """The highest revision of each group that some version trained."""

    revisions: dict[str, int] = field(default_factory=dict)

    def add(self, groups: Iterable[tuple[str, int]]) -> None:
        """Remember; beyond REMEMBERED_GROUPS the oldest are forgotten."""
        for group, revision in groups:
            self.revisions.pop(group, None)
            self.revisions[group] = revision
        for group in list(self.revisions)[: max(0, len(self.revisions) - REMEMBERED_GROUPS)]:
            del self.revisions[group]


def upload(
    policy: Policy, stepper: Stepper, trained: TrainedGroups, folder: str, objects: ObjectStore
) -> tuple[list[FileEntry], dict[str, tuple[str, list[int]]]]:
    """Write `serve/` and `resume/` under `folder`; returns the files and the served tensors for the manifest.

    Tensors stream from memory as they are, so nothing may train meanwhile. Raises ObjectStoreError.
    """
    served = policy.served()
    files = {SERVED_WEIGHTS: TensorFile(served)}
    files[PARAMETERS] = TensorFile({name: live(p) for name, p in stepper.parameters.items()})
    for key, moments in stepper.moments().items():
        files[f"resume/{key}.safetensors"] = TensorFile({name: live(m) for name, m in moments.items()})
    small = {f"serve/{path.name}": path.read_bytes() for path in _side_files(policy.source)}
    small[STATE] = _state(stepper, trained)

    def put_large(item: tuple[str, TensorFile]) -> FileEntry:
        name, file = item
        digest = hashlib.sha256()
        objects.put_chunks(folder + name, file.pieces(digest), file.n_bytes)
        return FileEntry(name, file.n_bytes, digest.hexdigest())

    def put_small(item: tuple[str, bytes]) -> FileEntry:
        name, data = item
        objects.put(folder + name, data)
        return FileEntry(name, len(data), hashlib.sha256(data).hexdigest())

    # Hashing and the store's writing overlap: measured 620 MB/s with four at a time on two cores, 250 MB/s one by one.
    with ThreadPoolExecutor(4, thread_name_prefix="upload") as pool:
        entries = [*pool.map(put_large, files.items()), *pool.map(put_small, small.items())]
    return entries, _shapes(served)


def _shapes(served: dict[str, LazyTensor]) -> dict[str, tuple[str, list[int]]]:
    return {name: (tensor.dtype_name, list(tensor.shape)) for name, tensor in served.items()}


def _side_files(source: Path) -> list[Path]:
    found = {path for pattern in SIDE_FILES for path in source.glob(pattern)}
    return sorted(path for path in found if not path.name.endswith(".safetensors.index.json"))


def _state(stepper: Stepper, trained: TrainedGroups) -> bytes:
    rng = base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode()
    return orjson.dumps({"n_steps": stepper.n_steps, "rng": rng, "trained": trained.revisions})


def restore(policy: Policy, stepper: Stepper, manifest: Manifest, objects: ObjectStore, scratch: Path) -> None:
    """Parameters, optimizer, schedule and RNG as they were when `manifest` was written.

    Where `resume/` was collected already: the served weights with a fresh optimizer. Raises CheckpointError.
    """
    state = objects.get_or_none(manifest.folder + STATE)
    if state is None:
        _restore_served(policy, stepper, manifest, objects, scratch)
        return
    raw = orjson.loads(state)
    stepper.reset(raw["n_steps"])
    targets = {PARAMETERS: {name: p.data for name, p in stepper.parameters.items()}}
    targets |= {f"resume/{key}.safetensors": moments for key, moments in stepper.moments().items()}
    for name, tensors in targets.items():
        _load_into(tensors, name, manifest, objects, scratch)
    torch.set_rng_state(torch.frombuffer(bytearray(base64.b64decode(raw["rng"])), dtype=torch.uint8))
    log.info("version %d restored, %d steps made", manifest.version, stepper.n_steps)


def _restore_served(policy: Policy, stepper: Stepper, manifest: Manifest, objects: ObjectStore, scratch: Path) -> None:
    if policy.lora is not None:
        raise CheckpointError(f"version {manifest.version}: resume/ is gone and adapters cannot be read from serve/")
    log.warning("version %d: resume/ is gone, going on from the served weights", manifest.version)
    stepper.reset()
    parameters = {name: p.data for name, p in stepper.parameters.items()}
    _load_into(
        {name: parameters[name] for name in manifest.tensors if name in parameters},
        SERVED_WEIGHTS,
        manifest,
        objects,
        scratch,
    )


def _load_into(
    tensors: dict[str, torch.Tensor], name: str, manifest: Manifest, objects: ObjectStore, scratch: Path
) -> None:
    entry = next((e for e in manifest.files if e.name == name), None)
    if entry is None:
        raise CheckpointError(f"version {manifest.version}: the manifest does not name {name}")
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        path = Path(folder) / "file"
        n_bytes, digest = objects.download(manifest.folder + name, path)
        if (n_bytes, digest.hex()) != (entry.n_bytes, entry.sha256):
            raise CheckpointError(f"version {manifest.version}: {name} is not what the manifest says")
        loaded = load_file(path)
        if missing := tensors.keys() - loaded.keys():
            raise CheckpointError(f"version {manifest.version}: {name} lacks {sorted(missing)[:3]}")
        for key, target in tensors.items():
            target.copy_(loaded[key])


def trained_groups(manifest: Manifest, objects: ObjectStore, older: Callable[[], Iterable[Manifest]]) -> TrainedGroups:
    """What was trained up to `manifest`: from its `resume/`, else from all manifests (`older`, oldest first)."""
    state = objects.get_or_none(manifest.folder + STATE)
    if state is not None:
        return TrainedGroups(orjson.loads(state)["trained"])
    trained = TrainedGroups()
    for one in older():
        trained.add((b.group_id, b.revision) for b in one.batches if b.outcome == "trained")
    return trained
