"""Keeps processes running: a crash is shown, swept up after and restarted with back-off."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ..errors import LeydenError
from .cache import Say
from .processes import ProcessId, ProcessSpec, end_sessions, kill_sessions, spawn

TICK_S = 0.05
PROBE_STARTING_S, PROBE_READY_S = 0.15, 2.0
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 15.0
# A process that ran this long before it ended starts again with the first back-off.
STEADY_AFTER_S = 30.0


class StackError(LeydenError):
    """A process of the stack is unknown, did not become ready or cannot be started; the message ends with its log."""


class Phase(StrEnum):
    """Where a supervised process stands."""

    STARTING = "starting"  # runs, has not answered its readiness probe
    READY = "ready"
    BACKING_OFF = "backing off"  # ended by itself, will be started again
    STOPPED = "stopped"  # because somebody asked


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One process as it is now."""

    name: str
    phase: Phase
    id: ProcessId | None
    restarts: int  # how often it ended by itself or was killed, and was started again
    reason: str | None  # why it is not ready
    log: Path
    url: str | None
    is_service: bool


def backoff_s(n_quick_ends: int) -> float:
    """Seconds to wait before the next start."""
    return min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** max(0, n_quick_ends - 1))


class _Managed:
    """What the supervisor knows of one process. Touched under the supervisor's lock."""

    def __init__(self, spec: ProcessSpec, log: Path) -> None:
        self.spec, self.log = spec, log
        self.wanted = True
        self.process: subprocess.Popen[bytes] | None = None
        self.id: ProcessId | None = None
        self.restarts = 0
        self.quick_ends = 0
        self.started_at = self.start_not_before = self.probe_at = 0.0
        self.ready = False
        self.reason: str | None = "not started"

    def status(self) -> ProcessStatus:
        phase = Phase.READY if self.ready else Phase.STARTING
        if self.process is None:
            phase = Phase.BACKING_OFF if self.wanted else Phase.STOPPED
        s = self.spec
        return ProcessStatus(s.name, phase, self.id, self.restarts, self.reason, self.log, s.url, s.is_service)


class Supervisor:
    """Two threads: one starts, watches and restarts; one asks whether processes are ready.

    The first is the parent of all processes: when it dies in whatever way, they get SIGTERM from the kernel.
    `on_change` is called after each change of a status, before who waits for it is told.
    """

    def __init__(self, run_dir: Path, say: Say, on_change: Callable[[], None] = lambda: None) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self._run_dir, self._say, self._on_change = run_dir, say, on_change
        self._managed: dict[str, _Managed] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._owner = os.getpid()
        self._threads = [
            threading.Thread(target=self._run, daemon=True, name="supervisor"),
            threading.Thread(target=self._probe, daemon=True, name="supervisor-probes"),
        ]
        for thread in self._threads:
            thread.start()

    def add(self, spec: ProcessSpec) -> None:
        """Start a process and keep it running."""
        with self._changed:
            if spec.name in self._managed:
                raise StackError(f"there is a process {spec.name} already")
            self._managed[spec.name] = _Managed(spec, self._run_dir / f"{spec.name}.log")

    def statuses(self) -> list[ProcessStatus]:
        """All processes in the order in which they were added."""
        with self._changed:
            return [managed.status() for managed in self._managed.values()]

    def status(self, name: str) -> ProcessStatus:
        """One process. Raises StackError when there is none of that name."""
        with self._changed:
            return self._get(name).status()

    def wait_ready(self, name: str, timeout_s: float) -> None:
        """Until it is ready. Raises StackError with the end of its log."""
        with self._changed:
            managed = self._get(name)
            if not self._changed.wait_for(lambda: managed.ready or self._closing, timeout_s) or self._closing:
                raise StackError(
                    f"{name} is not ready after {timeout_s:.0f} s: {managed.reason}. {log_tail(managed.log)}"
                )

    def kill(self, name: str, with_signal: signal.Signals = signal.SIGKILL) -> ProcessId:
        """Send a signal to it; when that ends it, it is restarted. Returns whom the signal reached."""
        with self._changed:
            managed = self._get(name)
            if managed.process is None or managed.id is None or managed.process.poll() is not None:
                raise StackError(f"{name} is not running: {managed.reason}")
            managed.process.send_signal(with_signal)
            if with_signal == signal.SIGKILL:
                managed.ready, managed.reason = False, "killed"
            return managed.id

    def restart(self, name: str, grace_s: float = 30.0) -> None:
        """End it cleanly and start it again; returns when the new one runs (not: is ready)."""
        self.stop([name], grace_s)
        self.resume(name)

    def stop(self, names: list[str], grace_s: float = 30.0) -> None:
        """SIGTERM, after `grace_s` SIGKILL, with all they started; they stay stopped until `resume`."""
        with self._changed:
            managed = [self._get(name) for name in names]
            for one in managed:
                one.wanted, one.ready, one.reason = False, False, "stopped on request"
            ids = [one.id for one in managed if one.id is not None]
        for killed in end_sessions(ids, grace_s):
            self._say(f"had to kill {killed}")
        with self._changed:
            self._changed.wait_for(lambda: all(one.process is None for one in managed), 10.0)

    def resume(self, name: str) -> None:
        """Start again what was stopped; returns when it runs."""
        with self._changed:
            managed = self._get(name)
            managed.wanted, managed.start_not_before, managed.quick_ends = True, 0.0, 0
            if not self._changed.wait_for(lambda: managed.process is not None or self._closing, 10.0):
                raise StackError(f"{name} did not start: {managed.reason}")

    def close(self, grace_s: float = 25.0) -> None:
        """End everything: roles first, then the services that they write to. Repeating it is harmless."""
        if self._closing or os.getpid() != self._owner:
            return
        began = time.monotonic()
        for services in (False, True):
            left = max(3.0, grace_s - 8.0 - (time.monotonic() - began) if not services else 8.0)
            self.stop([s.name for s in self.statuses() if s.is_service == services], left)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(5.0)

    def _get(self, name: str) -> _Managed:
        if name not in self._managed:
            raise StackError(f"no process {name}; there are {', '.join(self._managed) or 'none'}")
        return self._managed[name]

    def _run(self) -> None:
        try:
            while not self._closing:
                with self._changed:
                    changed = [self._step(managed) for managed in self._managed.values()]
                    if any(changed):
                        self._on_change()
                        self._changed.notify_all()
                time.sleep(TICK_S)
        except BaseException as error:
            # A stack that nobody watches must not look alive: with this thread the kernel ends its processes.
            self._say(f"the supervisor failed, the stack ends: {error}")
            with self._changed:
                self._closing = True
                self._changed.notify_all()
            raise

    def _step(self, managed: _Managed) -> bool:
        """Look after one process; True when its status changed."""
        if managed.process is None:
            if managed.wanted and time.monotonic() >= managed.start_not_before:
                self._start(managed)
                return True
            return False
        if managed.process.poll() is None:
            return False
        self._ended(managed, managed.process.returncode)
        return True

    def _start(self, managed: _Managed) -> None:
        managed.process = spawn(managed.spec, managed.log)
        managed.id = ProcessId.of(managed.process.pid)
        managed.started_at = time.monotonic()
        managed.probe_at, managed.reason = 0.0, "starting"
        managed.ready = managed.spec.ready is None

    def _ended(self, managed: _Managed, code: int) -> None:
        if managed.id is not None:
            kill_sessions([managed.id])
        managed.process, managed.ready = None, False
        if not managed.wanted:
            managed.reason = "stopped on request"
            return
        ran_s = time.monotonic() - managed.started_at
        managed.quick_ends = 1 if ran_s > STEADY_AFTER_S else managed.quick_ends + 1
        managed.restarts += 1
        wait_s = backoff_s(managed.quick_ends)
        managed.start_not_before = time.monotonic() + wait_s
        managed.reason = f"ended with {_named(code)}"
        self._say(
            f"{managed.spec.name} ended with {_named(code)} after {ran_s:.1f} s, starts again in {wait_s:.1f} s. "
            + log_tail(managed.log, 8)
        )

    def _probe(self) -> None:
        while not self._closing:
            now = time.monotonic()
            with self._changed:
                due = [m for m in self._managed.values() if m.process is not None and m.probe_at <= now]
                due = [(m, m.spec.ready, m.id) for m in due if m.spec.ready is not None and m.wanted]
            for managed, ready, asked in due:
                reason = ready()
                with self._changed:
                    if managed.id != asked or managed.process is None or not managed.wanted:
                        continue
                    changed = managed.ready != (not reason)
                    managed.ready, managed.reason = not reason, reason or None
                    managed.probe_at = time.monotonic() + (PROBE_STARTING_S if reason else PROBE_READY_S)
                    if changed:
                        self._on_change()
                    self._changed.notify_all()
            time.sleep(TICK_S)


def log_tail(log: Path, n_lines: int = 20) -> str:
    """The last lines of a log with its path, for a message."""
    lines = log.read_text(errors="replace").splitlines()[-n_lines:] if log.exists() else []
    return f"{log}:\n" + "\n".join(f"  | {line}" for line in lines)


def _named(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
