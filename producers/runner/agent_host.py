"""The agent host: single-threaded, without Kafka; imports the agent once and forks one process a rollout."""

import math
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass

import orjson

from ..agents import AgentFunction, load
from .child import run_rollout
from .processes import kill_group, lead_group
from .warmup import warm_up
from .wire import Kill, Message, Outcome, Ready, Start, Unpacker, pack, receive


@dataclass(slots=True)
class Running:
    """One forked process."""

    key: str
    pid: int
    result_fd: int
    deadline: float
    ended_by: str | None = None  # timeout | cancelled


class AgentHost:
    """Serves one runner over `connection` until it goes away; then everything it forked is killed."""

    def __init__(self, connection: socket.socket, agent: AgentFunction) -> None:
        self._connection, self._agent = connection, agent
        self._running: dict[int, Running] = {}
        self._unpacker = Unpacker()
        self._selector = selectors.DefaultSelector()
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._wake = wake_read
        self._selector.register(connection, selectors.EVENT_READ)
        self._selector.register(wake_read, selectors.EVENT_READ)

    def serve(self) -> None:
        """Until the runner closes its end."""
        try:
            while True:
                for key, _ in self._selector.select(self._until_deadline()):
                    if key.fileobj is self._connection:
                        messages = receive(self._connection, self._unpacker)
                        if messages is None:
                            return
                        for message in messages:
                            self._handle(message)
                    else:
                        os.read(self._wake, 4096)
                self._kill_overdue()
                self._reap()
        finally:
            for running in self._running.values():
                kill_group(running.pid)

    def _handle(self, message: Message) -> None:
        if isinstance(message, Start):
            self._fork(message)
        elif isinstance(message, Kill):
            for running in self._running.values():
                if running.key == message.key:
                    running.ended_by = running.ended_by or "cancelled"
                    kill_group(running.pid)

    def _fork(self, start: Start) -> None:
        read_fd, write_fd = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        host_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            self._connection.close()
            os.close(read_fd)
            run_rollout(self._agent, start, write_fd, host_pid)
        os.close(write_fd)
        os.set_blocking(read_fd, False)
        lead_group(pid)
        self._running[pid] = Running(start.key, pid, read_fd, time.monotonic() + start.timeout_s)

    def _until_deadline(self) -> float | None:
        """Seconds; None where no deadline is open."""
        deadline = min((r.deadline for r in self._running.values()), default=math.inf)
        return None if deadline == math.inf else max(0.0, deadline - time.monotonic())

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        for running in self._running.values():
            if now >= running.deadline:
                running.ended_by = running.ended_by or "timeout"
                running.deadline = math.inf
                kill_group(running.pid)

    def _reap(self) -> None:
        for pid in list(self._running):
            # Looked at before it is collected: while it is a zombie, its group's number cannot be anybody else's.
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                # What the agent started and left behind does not outlive the rollout.
                kill_group(pid)
                _, status = os.waitpid(pid, 0)
                running = self._running.pop(pid)
                outcome = outcome_of(running, _read_rest(running.result_fd), os.waitstatus_to_exitcode(status))
                self._connection.sendall(pack(outcome))


def _read_rest(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 16)
    except BlockingIOError:
        return b""
    finally:
        os.close(fd)


def outcome_of(running: Running, result: bytes, exit_code: int) -> Outcome:
    """A result that was written counts, also of a process that died afterwards; a death without one is a failure."""
    if result:
        said = orjson.loads(result)
        status = "failed" if "error" in said else "succeeded"
        return Outcome(running.key, status, said.get("value"), said.get("error"))
    if running.ended_by is not None:
        return Outcome(running.key, running.ended_by, error=f"the agent was stopped: {running.ended_by}")
    how = f"signal {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exit code {exit_code}"
    return Outcome(running.key, "failed", error=f"the agent's process ended by itself: {how}")


def main() -> None:
    """argv: file descriptor of the socket, the agent's spec."""
    connection, spec = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    connection.set_inheritable(False)
    # Both reach the runner's whole group; the runner decides when its rollouts end, and its end closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        agent = load(spec)
        warm_up()
    except Exception:  # noqa: BLE001 - an agent's import may raise anything; the runner reports it
        connection.sendall(pack(Ready(traceback.format_exc())))
        raise SystemExit(1) from None
    connection.sendall(pack(Ready()))
    AgentHost(connection, agent).serve()


if __name__ == "__main__":
    main()
