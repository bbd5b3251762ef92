"""A new version: files, then the manifest, then the announcement; whatever is missing of that is made good at start."""

import logging
import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

import orjson

from ..avro import Checkpoint, new_id, now_ms
from ..infra import manifest as manifests
from ..infra.checkpoint_log import CheckpointWriter
from ..infra.errors import ObjectExistsError, ObjectLostError, ObjectStoreError
from ..infra.kafka import KafkaUnavailableError
from ..infra.lineage import Lineage
from ..infra.manifest import BatchEntry, Manifest
from ..infra.objects import ObjectStore
from .checkpoint import TrainedGroups, upload
from .policy import Policy
from .step import Stepper

# An outage of Kafka or the store is waited out; a longer one ends the process, whose successor repeats the step.
PATIENCE_S = 600.0
PAUSE_S = 2.0
log = logging.getLogger("leyden.learner")
T = TypeVar("T")


def patiently(action: Callable[[], T], what: str, stop: Event) -> T:
    """`action()`, again while Kafka or the object store is away. Raises its error after PATIENCE_S or on `stop`.

    What waiting does not mend is raised at once: ObjectExistsError, ObjectLostError.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return action()
        except (ObjectExistsError, ObjectLostError):
            raise
        except (KafkaUnavailableError, ObjectStoreError) as error:
            if stop.wait(PAUSE_S) or time.monotonic() > deadline:
                raise
            log.warning("%s: again, since %s", what, error)


class Publisher:
    """Writes versions of one policy. One process of one learner owns it."""

    def __init__(self, policy_name: str, objects: ObjectStore, writer: CheckpointWriter, stop: Event) -> None:
        self._name, self._objects, self._writer, self._stop = policy_name, objects, writer, stop
        self.run_id = new_id()

    def publish(
        self,
        policy: Policy,
        stepper: Stepper,
        trained: TrainedGroups,
        version: int,
        parent: int | None,
        offsets: tuple[int, int],
        batches: list[BatchEntry],
        metrics: dict[str, float],
    ) -> Manifest:
        """In this order: `serve/` and `resume/`, the manifest, the announcement.

        Without the manifest the version does not exist, and a restart repeats its step from the same offset; with it
        the step counts and a restart announces it. Raises ObjectExistsError where another learner took the number.
        """
        folder = f"{manifests.version_folder(self._name, version)}{self.run_id}/"
        files, tensors = patiently(
            lambda: upload(policy, stepper, trained, folder, self._objects), f"upload of version {version}", self._stop
        )
        manifest = Manifest(
            policy=self._name,
            version=version,
            run_id=self.run_id,
            parent=parent,
            created_ms=now_ms(),
            offset_from=offsets[0],
            offset_to=offsets[1],
            files=files,
            tensors=tensors,
            batches=batches,
            metrics=metrics,
            adapters=policy.lora is not None,
        )
        digest = patiently(lambda: self._create(manifest), f"manifest of version {version}", self._stop)
        self._announce(manifest, digest)
        return manifest

    def _create(self, manifest: Manifest) -> bytes:
        try:
            return manifests.create(manifest, self._objects)
        except ObjectExistsError:
            # A try whose answer was lost may have been the writer; anything else is another learner.
            present, digest = manifests.load(self._name, manifest.version, self._objects)
            if present != manifest:
                raise
            return digest

    def announce_missing(self, lineage: Lineage, versions: list[int]) -> list[int]:
        """Announce the versions that have a manifest and no record in the topic; returns them."""
        missing = [version for version in versions if version not in lineage.versions]
        for version in missing:
            self._announce(*manifests.load(self._name, version, self._objects))
        return missing

    def _announce(self, manifest: Manifest, digest: bytes) -> None:
        record = Checkpoint(
            policy=self._name,
            version=manifest.version,
            state="candidate",
            parent=manifest.parent,
            run_id=manifest.run_id,
            manifest=manifests.manifest_key(self._name, manifest.version),
            manifest_sha256=digest,
            metrics=orjson.dumps(manifest.metrics).decode(),
            ts_ms=now_ms(),
        )
        patiently(lambda: self._writer.write([record]), f"announcement of version {manifest.version}", self._stop)
