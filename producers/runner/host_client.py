"""The runner's side of the agent host: start it, have it run agents, notice its end."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future

from ...avro.errors import LeydenError
from ..agents import AgentError
from .wire import Kill, Outcome, Ready, Start, Unpacker, pack, receive

# Agents get no credentials of the log, the object store or the engine.
SECRET_PREFIXES = ("LEYDEN_KAFKA__", "LEYDEN_OBJECTS__", "LEYDEN_ENGINE__")


class HostLostError(LeydenError):
    """The agent host ended although the runner still needed it."""


class HostClient:
    """Starts the host at once and waits until the agent is imported. Thread-safe from then on.

    Raises AgentError where the import fails, with what it said, or takes longer than `import_timeout_s`.
    """

    def __init__(self, agent: str, gateway_url: str, api_key: str, import_timeout_s: float) -> None:
        self._connection, theirs = socket.socketpair()
        env = {k: v for k, v in os.environ.items() if not k.startswith(SECRET_PREFIXES)}
        # For clients that the agent's module makes at import; in a rollout their calls go to the attempt's own URL.
        env |= {"OPENAI_BASE_URL": f"{gateway_url.rstrip('/')}/v1", "OPENAI_API_KEY": api_key}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "leyden.producers.runner.agent_host", str(theirs.fileno()), agent],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=env,
            )
        self._lock = threading.Lock()
        self._waiting: dict[str, Future[Outcome]] = {}
        self._lost = False
        self._unpacker = Unpacker()
        try:
            self._await_import(agent, import_timeout_s)
        except AgentError:
            self._connection.close()
            self._process.wait(10)
            raise
        self._reader = threading.Thread(target=self._read, name="agent-host", daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        """False from the host's end on."""
        return not self._lost

    def run(self, start: Start) -> Outcome:
        """Run the agent; returns when its process is gone. Raises HostLostError."""
        future: Future[Outcome] = Future()
        with self._lock:
            if self._lost:
                raise HostLostError("the agent host has ended")
            self._waiting[start.key] = future
            self._connection.sendall(pack(start))
        return future.result()

    def kill(self, key: str) -> None:
        """End one run; it comes out as `cancelled` unless it had ended already."""
        with self._lock:
            if not self._lost:
                self._connection.sendall(pack(Kill(key)))

    def close(self) -> None:
        """End the host and whatever still runs."""
        with contextlib.suppress(OSError):  # the host may have closed its end
            self._connection.shutdown(socket.SHUT_RDWR)
        self._process.wait(10)
        self._reader.join()
        self._connection.close()

    def _await_import(self, agent: str, timeout_s: float) -> None:
        self._connection.settimeout(timeout_s)
        try:
            messages = receive(self._connection, self._unpacker)
            while messages == []:
                messages = receive(self._connection, self._unpacker)
        except TimeoutError as error:
            self._process.kill()
            raise AgentError(f"importing the agent {agent} took longer than {timeout_s} s") from error
        finally:
            self._connection.settimeout(None)
        ready = messages[0] if messages else Ready("its process ended")
        if not isinstance(ready, Ready) or ready.error is not None:
            reason = ready.error if isinstance(ready, Ready) else ready
            raise AgentError(f"the agent {agent} cannot be imported: {reason}")

    def _read(self) -> None:
        while True:
            try:
                messages = receive(self._connection, self._unpacker)
            except OSError:
                messages = None
            if messages is None:
                break
            for message in messages:
                if isinstance(message, Outcome):
                    with self._lock:
                        future = self._waiting.pop(message.key)
                    future.set_result(message)
        with self._lock:
            self._lost = True
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(HostLostError("the agent host ended in the middle of a rollout"))
