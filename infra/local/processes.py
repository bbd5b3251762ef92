"""Starting a process of the stack, knowing it again later, ending it with all that it started."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_BOUND_CHILD = Path(__file__).with_name("bound_child.py")


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process that the supervisor keeps running."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[], str | None] | None = None  # asked from the supervisor's thread; None or "": ready, else why not
    url: str | None = None  # where it is reached, for `leyden status`
    ready_url: str | None = None  # answers 200 once it is ready
    is_service: bool = False  # Kafka, MinIO, the engine: started before the roles, stopped after them
    cwd: Path | None = None  # none: the folder of the logs


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process as it can be found again: numbers are used again, a number with its start time is not."""

    pid: int
    started: float  # seconds since the epoch, as the kernel's clock says

    @classmethod
    def of(cls, pid: int) -> "ProcessId":
        """Of a running process. Raises psutil.NoSuchProcess."""
        return cls(pid, psutil.Process(pid).create_time())

    def alive(self) -> bool:
        """True while it runs; a zombie does not."""
        try:
            process = psutil.Process(self.pid)
            # psutil derives the time from the boot time, which clock adjustments move a little.
            return abs(process.create_time() - self.started) < 2.0 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def bound(argv: Sequence[str]) -> list[str]:
    """The command in a process that gets SIGTERM from the kernel when the thread that starts it dies."""
    return [sys.executable, "-I", "-S", str(_BOUND_CHILD), str(int(signal.SIGTERM)), str(os.getpid()), *argv]


def spawn(spec: ProcessSpec, log: Path) -> subprocess.Popen[bytes]:
    """Start it as the leader of a session of its own, with its output in `log`; it gets SIGTERM when we die.

    "We" is the calling thread (PR_SET_PDEATHSIG), so the caller must be a thread that lives as long as the stack.
    """
    with log.open("ab") as out:
        return subprocess.Popen(
            bound(spec.argv),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=_environment(spec),
            cwd=spec.cwd or log.parent,
            start_new_session=True,
        )


def _environment(spec: ProcessSpec) -> dict[str, str]:
    # Without compiled files beside the sources vLLM takes 24 s to start instead of 14.
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "", **spec.env}


def session_members(leaders: Iterable[ProcessId]) -> list[psutil.Process]:
    """What runs in the sessions that these processes lead or led."""
    by_pid = {leader.pid: leader for leader in leaders}
    found = []
    for process in psutil.process_iter():
        try:
            leader = by_pid.get(os.getsid(process.pid))
            # While a session has members its number is not given out again; where the leader is a younger process
            # than ours, ours and all its session ended before.
            if (
                leader
                and process.create_time() > leader.started - 2.0
                and (leader.alive() or not psutil.pid_exists(leader.pid) or _is_zombie(leader.pid))
            ):
                found.append(process)
        except (psutil.NoSuchProcess, ProcessLookupError, PermissionError):
            continue
    return found


def end_sessions(leaders: Iterable[ProcessId], grace_s: float) -> list[str]:
    """SIGTERM to the leaders, after `grace_s` SIGKILL to what is left of their sessions; returns what was killed."""
    leaders = list(leaders)
    for leader in leaders:
        if leader.alive():
            os.kill(leader.pid, signal.SIGTERM)
    waiting = [psutil.Process(leader.pid) for leader in leaders if leader.alive()]
    psutil.wait_procs(waiting, timeout=grace_s)
    return kill_sessions(leaders)


def kill_sessions(leaders: Iterable[ProcessId]) -> list[str]:
    """SIGKILL to all that is left of these sessions; returns a line for each process."""
    leaders = list(leaders)
    killed: list[str] = []
    for _ in range(3):  # a member may fork while the others are killed
        members = [p for p in session_members(leaders) if not _is_zombie(p.pid)]
        if not members:
            break
        for process in members:
            try:
                killed.append(f"{process.pid} {process.name()}")
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(members, timeout=5.0)
    return killed


def _is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
