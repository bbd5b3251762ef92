"""The manifest of a checkpoint: written last, so that a checkpoint without one does not exist."""

import hashlib
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from .errors import LeydenError, ObjectStoreError
from .objects import ObjectStore

BASE_VERSION = 0


class ManifestError(LeydenError):
    """A manifest is missing or unreadable; the message names policy and version."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of the checkpoint, relative to its folder, e.g. serve/model.safetensors."""

    name: str
    n_bytes: int
    sha256: str  # hex


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """What became of one message of `batches`: the version that lists it has consumed it."""

    offset: int
    group_id: str
    revision: int
    outcome: str  # trained | dropped
    reason: str | None = None  # of a drop: stale, zero_variance, superseded, duplicate, rolled_back, ...
    rollouts: list[tuple[str, int, int]] = field(default_factory=list)  # (rollout_id, attempt, revision)


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of one policy."""

    policy: str
    version: int
    run_id: str
    parent: int | None  # None: the base model
    created_ms: int
    offset_from: int  # of `batches`: this version consumed [offset_from, offset_to)
    offset_to: int
    files: list[FileEntry]
    tensors: dict[str, tuple[str, list[int]]]  # of serve/: name -> (dtype, shape)
    batches: list[BatchEntry]
    metrics: dict[str, float]
    adapters: bool = False  # adapters were trained: serve/ holds them merged, so only resume/ can be trained on

    @property
    def folder(self) -> str:
        """Object prefix of the files, with the slash."""
        return f"{version_folder(self.policy, self.version)}{self.run_id}/"


def version_folder(policy: str, version: int) -> str:
    """Object prefix of all that belongs to a version, with the slash."""
    return f"checkpoints/{policy}/{version:08d}/"


def manifest_key(policy: str, version: int) -> str:
    """Object key of a version's manifest."""
    return f"{version_folder(policy, version)}manifest.json"


def to_bytes(manifest: Manifest) -> bytes:
    """JSON with sorted keys: equal manifests are equal bytes."""
    return orjson.dumps(asdict(manifest), option=orjson.OPT_SORT_KEYS)


def from_bytes(data: bytes) -> Manifest:
    """Raises ManifestError when the bytes are no manifest."""
    try:
        raw: dict[str, Any] = orjson.loads(data)
        raw["files"] = [FileEntry(**f) for f in raw["files"]]
        raw["batches"] = [BatchEntry(**{**b, "rollouts": [tuple(r) for r in b["rollouts"]]}) for b in raw["batches"]]
        raw["tensors"] = {name: (dtype, list(shape)) for name, (dtype, shape) in raw["tensors"].items()}
        return Manifest(**raw)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise ManifestError(f"not a manifest: {type(error).__name__}: {error}") from error


def create(manifest: Manifest, objects: ObjectStore) -> bytes:
    """Write it if the version has none; returns its sha256. Raises ObjectExistsError when another writer was first."""
    data = to_bytes(manifest)
    objects.create(manifest_key(manifest.policy, manifest.version), data)
    return hashlib.sha256(data).digest()


def load(policy: str, version: int, objects: ObjectStore) -> tuple[Manifest, bytes]:
    """(manifest, its sha256). Raises ManifestError where the version has none."""
    data = objects.get_or_none(manifest_key(policy, version))
    if data is None:
        raise ManifestError(f"policy {policy} has no version {version}")
    return from_bytes(data), hashlib.sha256(data).digest()


def versions(policy: str, objects: ObjectStore) -> list[int]:
    """All versions that have a manifest, ascending."""
    root = f"checkpoints/{policy}/"
    try:
        return sorted(
            int(k[len(root) :].split("/")[0]) for k in objects.list_keys(root) if k.endswith("/manifest.json")
        )
    except ValueError as error:
        raise ObjectStoreError(f"a foreign object under {root}: {error}") from error
