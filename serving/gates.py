"""What a candidate must pass before it becomes live; each gate gives the reason why not."""

from collections.abc import Callable
from dataclasses import dataclass

from ..avro import Checkpoint
from ..infra import manifest
from ..infra.lineage import Lineage
from ..infra.manifest import ManifestError
from ..infra.objects import ObjectStore
from .store import missing_objects


@dataclass(frozen=True, slots=True)
class Gate:
    """`check` returns None where the candidate passes; ObjectStoreError means: ask again later."""

    name: str
    check: Callable[[Checkpoint, Lineage, ObjectStore], str | None]


def stored(candidate: Checkpoint, lineage: Lineage, objects: ObjectStore) -> str | None:
    """The manifest is the announced one and all of its serve/ is there."""
    try:
        entry, digest = manifest.load(candidate.policy, candidate.version, objects)
    except ManifestError as error:
        return str(error)
    if digest != candidate.manifest_sha256:
        return "its manifest is not the announced one"
    if gone := missing_objects(entry, objects):
        return f"{len(gone)} files are missing, such as {gone[0]}"
    return None


def not_abandoned(candidate: Checkpoint, lineage: Lineage, objects: ObjectStore) -> str | None:
    """Neither it nor an ancestor was rolled back."""
    return "it descends from a version that was rolled back" if lineage.abandoned(candidate.version) else None


GATES = (Gate("not_abandoned", not_abandoned), Gate("stored", stored))
