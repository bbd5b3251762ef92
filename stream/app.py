"""The composition root of the stream roles: one Faust app a stage, both on the same operator."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from ..infra import kafka, topics
from ..infra.errors import SettingsError
from ..infra.logs import setup_logging
from ..infra.objects import ObjectStore
from ..infra.schema_exchange import learning_store
from .assemble_stage import AssembleStage
from .assembly import Limits
from .credentials import faust_credentials
from .group_stage import GroupStage
from .settings import StreamSettings
from .worker import StageSpec, run

_LOCK = "lock"


def assemble(settings: StreamSettings) -> None:
    """Run an assembler: events to trajectories. Returns when told to stop; exits non-zero after a crash or a stall."""
    objects = ObjectStore(settings.objects)
    limits = Limits(
        idle_ms=int(settings.idle_timeout_s * 1000),
        absolute_ms=int(settings.absolute_timeout_s * 1000),
        grace_ms=int(settings.close_grace_s * 1000),
    )
    spec = StageSpec(
        role="assemble",
        stage=AssembleStage(limits, learning_store(objects)),
        source=settings.prefix + topics.EVENTS,
        output=settings.prefix + topics.TRAJECTORIES,
        table="rollouts",
    )
    _start(spec, settings, objects)


def group(settings: StreamSettings) -> None:
    """Run a grouper: trajectories to batches. Returns when told to stop; exits non-zero after a crash or a stall."""
    objects = ObjectStore(settings.objects)
    stage = GroupStage(
        int(settings.group_timeout_s * 1000), settings.min_group, settings.train_on_serve, learning_store(objects)
    )
    spec = StageSpec(
        role="group",
        stage=stage,
        source=settings.prefix + topics.TRAJECTORIES,
        output=settings.prefix + topics.BATCHES,
        table="groups",
    )
    _start(spec, settings, objects)


def _start(spec: StageSpec, settings: StreamSettings, objects: ObjectStore) -> None:
    setup_logging(spec.role)
    refuse_long_timeouts(settings)
    # Before anything connects: the other client's errors about the same settings are less clear.
    faust_credentials(settings.kafka)
    topics.require(kafka.admin(settings.kafka), settings.prefix, settings.kafka)
    with own_datadir(settings.state_dir / spec.role) as datadir:
        run(spec, settings, objects, datadir)


def refuse_long_timeouts(settings: StreamSettings) -> None:
    """Raises SettingsError where a key could be open longer than its events are kept."""
    kept_ms = min(int(s.config["retention.ms"]) for s in topics.SPECS if s.name in (topics.EVENTS, topics.TRAJECTORIES))
    for name in ("idle_timeout_s", "absolute_timeout_s", "group_timeout_s"):
        if getattr(settings, name) * 1000 >= kept_ms:
            raise SettingsError(f"{name} must be shorter than the topics' retention of {kept_ms // topics.DAY_MS} days")


@contextmanager
def own_datadir(folder: Path) -> Iterator[Path]:
    """A folder for this process's table files; those of processes that are gone are removed: the changelog has all.

    A locked file says who lives, not a process id: containers that share the folder see each other's locks only.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Held while folders are looked through and made, so that none is seen before its lock is.
    with folder.with_name(f"{folder.name}.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        for other in folder.iterdir():
            _remove_if_left_behind(other)
        mine = Path(mkdtemp(dir=folder))
        lock = (mine / _LOCK).open("w")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield mine
    finally:
        shutil.rmtree(mine, ignore_errors=True)
        lock.close()


def _remove_if_left_behind(folder: Path) -> None:
    if not (folder / _LOCK).exists():
        shutil.rmtree(folder, ignore_errors=True)
        return
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        shutil.rmtree(folder, ignore_errors=True)
