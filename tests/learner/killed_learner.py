"""A learner that kills itself with SIGKILL at a given point of publishing. Run by `runpy` in a process of its own."""

import os
import signal
from collections.abc import Iterable
from typing import Any

from leyden.infra.checkpoint_log import CheckpointWriter
from leyden.infra.objects import ObjectStore
from leyden.learner import main as role
from leyden.learner.settings import LearnerSettings

settings: LearnerSettings = globals()["settings"]
point: str | None = globals()["point"]
version: int = globals()["version"]
FOLDER = f"/{version:08d}/"


def die_at(here: str, key: str) -> None:
    """The end, where `here` is the chosen point and `key` belongs to the chosen version."""
    if here == point and FOLDER in key:
        os.kill(os.getpid(), signal.SIGKILL)


class MortalStore(ObjectStore):
    """Dies while it writes."""

    def put_chunks(self, key: str, chunks: Iterable[bytes | memoryview], n_bytes: int) -> None:
        super().put_chunks(key, chunks, n_bytes)
        if key.endswith("serve/model.safetensors"):
            die_at("after_serve", key)

    def create(self, key: str, data: bytes) -> None:
        die_at("before_manifest", key)
        super().create(key, data)
        die_at("before_announcement", key)


class MortalWriter(CheckpointWriter):
    """Dies when it has written."""

    def write(self, records: Any, timeout_s: float = 30.0) -> None:
        super().write(records, timeout_s)
        die_at("after_announcement", f"/{records[0].version:08d}/")


for name, mortal in (("ObjectStore", MortalStore), ("CheckpointWriter", MortalWriter)):
    setattr(role, name, mortal)
role.main(settings)
