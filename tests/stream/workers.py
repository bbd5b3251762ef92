"""Stream workers as processes, and what they wrote."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from leyden.avro import Record, Trajectory, TransitionBatch, decode_any, encode
from leyden.infra import deployment as deployments
from leyden.infra import kafka, topics
from leyden.infra.settings import RoleSettings

T = TypeVar("T")


class Workers:
    """Assemblers and groupers of one deployment; all are killed in the end."""

    def __init__(self, settings: RoleSettings, logs: Path, **more: object) -> None:
        self.settings = settings
        self._logs = logs
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._ending: list[subprocess.Popen[bytes]] = []
        self._env = os.environ | {
            "LEYDEN_PREFIX": settings.prefix,
            "LEYDEN_KAFKA__BOOTSTRAP": settings.kafka.bootstrap,
            "LEYDEN_KAFKA__PARTITIONS": str(settings.kafka.partitions),
            "LEYDEN_OBJECTS__ENDPOINT": settings.objects.endpoint,
            "LEYDEN_OBJECTS__ACCESS_KEY": settings.objects.access_key,
            "LEYDEN_OBJECTS__SECRET_KEY": settings.objects.secret_key.get_secret_value(),
            "LEYDEN_OBJECTS__BUCKET": settings.objects.bucket,
            "LEYDEN_STATE_DIR": str(settings.state_dir),
            "OMP_NUM_THREADS": "1",
            **{f"LEYDEN_{name.upper()}": str(value) for name, value in more.items()},
        }

    def start(self, *roles: str) -> None:
        """One process a role, beside those that run."""
        for role in roles:
            with (self._logs / f"{role}-{len(self._running) + len(self._ending)}.log").open("wb") as out:
                command = [sys.executable, "-P", "-m", "leyden", role]
                self._running.append((role, subprocess.Popen(command, env=self._env, stdout=out, stderr=out)))

    def kill(self, role: str, how: signal.Signals = signal.SIGKILL) -> subprocess.Popen[bytes]:
        """Signal the oldest worker of a role."""
        place = next(i for i, (name, _) in enumerate(self._running) if name == role)
        _, process = self._running.pop(place)
        process.send_signal(how)
        self._ending.append(process)
        return process

    def alive(self) -> list[str]:
        """Roles of the processes that run."""
        return [role for role, process in self._running if process.poll() is None]

    def stop(self) -> None:
        """Kill all."""
        for process in [*self._ending, *(process for _, process in self._running)]:
            process.kill()
            process.wait(10)


@contextmanager
def workers(settings: RoleSettings, logs: Path, *roles: str, **more: object) -> Iterator[Workers]:
    """A deployment with its topics and these roles started."""
    deployments.apply(settings)
    running = Workers(settings, logs, **more)
    running.start(*roles)
    try:
        yield running
    finally:
        running.stop()


def produce(settings: RoleSettings, topic: str, records: list[tuple[str, Record | bytes]]) -> None:
    """Keyed records, acknowledged when this returns."""
    producer = kafka.producer(settings.kafka)
    for key, record in records:
        value = record if isinstance(record, bytes) else encode(record)
        producer.produce(settings.prefix + topic, value, key.encode())
    assert producer.flush(30) == 0


def read(settings: RoleSettings, topic: str) -> list[Record]:
    """Everything in a topic now."""
    messages = kafka.read_all(settings.kafka, settings.prefix + topic)
    return [decode_any(value) for m in messages if (value := m.value()) is not None]


def trajectories(settings: RoleSettings) -> list[Trajectory]:
    """All trajectories now, copies included."""
    return [t for t in read(settings, topics.TRAJECTORIES) if isinstance(t, Trajectory)]


def batches(settings: RoleSettings) -> list[TransitionBatch]:
    """All batches now, copies included."""
    return [b for b in read(settings, topics.BATCHES) if isinstance(b, TransitionBatch)]


def eventually(look: Callable[[], T], holds: Callable[[T], bool], timeout_s: float = 60.0) -> T:
    """What `look` gives once it holds; fails with the last one."""
    deadline = time.monotonic() + timeout_s
    while True:
        seen = look()
        if holds(seen):
            return seen
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {seen}"
        time.sleep(0.2)
