"""`leyden rollback POLICY [VERSION]`: abandon what came after a version and make that one live again."""

from dataclasses import dataclass, replace

from ..avro import Checkpoint, now_ms
from ..infra import manifest
from ..infra.checkpoint_log import CheckpointWriter, read_lineage
from ..infra.errors import LeydenError
from ..infra.lineage import Lineage
from ..infra.manifest import Manifest
from ..infra.objects import ObjectStore
from ..infra.settings import RoleSettings
from .store import missing_objects

RESUME = "resume/"


class RollbackError(LeydenError):
    """The rollback cannot be done; the message says why and what can."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """`target` becomes live; every version that is neither it nor an ancestor of it is abandoned for good."""

    target: Checkpoint
    abandoned: list[Checkpoint]  # the newest first

    def records(self, ts_ms: int) -> list[Checkpoint]:
        """What to write, in this order: a live announcement that a rollback overtakes must find itself void."""
        gone = [replace(record, state="rolled_back", ts_ms=ts_ms) for record in self.abandoned]
        return [*gone, replace(self.target, state="live", ts_ms=ts_ms)]


def plan(lineage: Lineage, version: int | None) -> Rollback:
    """What a rollback to `version` does; None: to the parent of live. Raises RollbackError."""
    if version is None:
        version = _parent_of_live(lineage)
    if version not in lineage.versions:
        known = ", ".join(str(v) for v in sorted(lineage.versions)) or "none"
        raise RollbackError(f"policy {lineage.policy} has no version {version}; known: {known}")
    if lineage.abandoned(version):
        raise RollbackError(f"version {version} or an ancestor of it was rolled back: numbers are never used again")
    kept = set(lineage.ancestors(version)) | lineage.rolled_back
    gone = [lineage.versions[v] for v in sorted(lineage.versions, reverse=True) if v not in kept]
    return Rollback(lineage.versions[version], gone)


def _parent_of_live(lineage: Lineage) -> int:
    if lineage.live is None:
        raise RollbackError(f"no version of policy {lineage.policy} is live: name the version to roll back to")
    parent = lineage.parents.get(lineage.live.version)
    if parent is None:
        raise RollbackError(f"version {lineage.live.version} is live and has no parent to roll back to")
    return parent


def cannot_be_trained_on(entry: Manifest, objects: ObjectStore) -> str | None:
    """Why the learner cannot go on from this version; None where it can.

    Of full weights it needs resume/ whole or not at all: without it training goes on from serve/ with a new optimizer.
    """
    if not (gone := missing_objects(entry, objects, RESUME)):
        return None
    if entry.adapters:
        return f"it trained adapters, and {gone[0]} is gone"
    kept = sum(file.name.startswith(RESUME) for file in entry.files) - len(gone)
    return f"of its resume/ {gone[0]} is gone and {kept} other files are there" if kept else None


def main(settings: RoleSettings, version: int | None) -> Rollback:
    """Roll `settings.policy` back and return what was done. Repeating it after a crash ends what was begun.

    The target's files are checked first: it must be fit to be served and to be trained on.
    Raises RollbackError, ObjectStoreError, KafkaUnavailableError.
    """
    chosen = plan(read_lineage(settings), version)
    objects = ObjectStore(settings.objects)
    entry, digest = manifest.load(settings.policy, chosen.target.version, objects)
    if digest != chosen.target.manifest_sha256:
        raise RollbackError(f"the manifest of version {chosen.target.version} is not the announced one")
    if gone := missing_objects(entry, objects):
        raise RollbackError(
            f"version {chosen.target.version} cannot be served any more: {len(gone)} files are gone, such as {gone[0]}"
        )
    if why := cannot_be_trained_on(entry, objects):
        raise RollbackError(
            f"version {chosen.target.version} could be served, but the learner could not go on from it: {why}; "
            "choose a version whose resume/ is whole (leyden gc keeps it of live and its nearest parents)"
        )
    CheckpointWriter(settings).write(chosen.records(now_ms()))
    return chosen
