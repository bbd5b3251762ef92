"""The one-machine stack: which services and roles run, on which ports, and the handle to them."""

import atexit
import os
import secrets
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import BaseModel, SecretStr

from .. import deployment
from ..settings import EngineSettings, RoleSettings
from . import state
from .cache import Say, cache_dir, say_on_stderr
from .ports import free_port
from .processes import ProcessId, ProcessSpec
from .services import EngineSpec, engine_process, http_ready, kafka_process, minio_process
from .supervisor import ProcessStatus, StackError, Supervisor

__all__ = ["EngineSpec", "RoleSpec", "RunningStack", "StackError", "StackSpec", "role", "start"]

SERVICE_TIMEOUT_S = 60.0
PORT = "{port}"


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """A role: any command. `{port}` in arguments, environment and `ready_url` becomes a free port of the replica."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    ready_url: str | None = None
    replicas: int = 1
    cwd: Path | None = None
    """None: the folder in which the stack was started."""


def role(name: str, *, command: str | None = None, env: Mapping[str, str] | None = None, replicas: int = 1) -> RoleSpec:
    """The role of `leyden COMMAND` (default: `leyden NAME`), ready when its /readyz says so."""
    # -P: a module of the working folder must not shadow an installed one.
    argv = (sys.executable, "-P", "-m", "leyden", command or name, "--metrics-port", PORT)
    return RoleSpec(name, argv, env or {}, f"http://127.0.0.1:{PORT}/readyz", replicas)


@dataclass(frozen=True, slots=True)
class StackSpec:
    """What runs. A service that `settings` names an address for is used as it is and not started."""

    state_dir: Path
    """Data of the services, folders of the roles, logs (run/) and stack.json."""
    settings: RoleSettings = field(default_factory=RoleSettings.load)
    """Prefix, policy, and addresses of services that run already."""
    kafka: bool = True
    objects: bool = True
    engine: EngineSpec | None = None
    roles: tuple[RoleSpec, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """For every role."""
    partitions: int = 4
    """Of events and trajectories, where Kafka is started here."""
    apply_topics: bool = True
    """Create topics, bucket and schemas before the roles start."""
    kafka_port: int | None = None
    minio_port: int | None = None
    gateway_port: int | None = None


class RunningStack:
    """Handle to a stack that this process supervises. Use as a context manager, or call `stop`."""

    def __init__(self, spec: StackSpec, settings: RoleSettings, gateway_url: str, say: Say) -> None:
        self.state_dir, self.run_dir = spec.state_dir, spec.state_dir / "run"
        self.settings, self.gateway_url = settings, gateway_url
        model = {"LEYDEN_MODEL": str(spec.engine.model)} if spec.engine else {}
        self._shared_env = model | dict(spec.env)
        self.supervisor = Supervisor(self.run_dir, say, self._write_state)
        self._write_state()
        # A program that ends without `stop` must not leave that to the kernel's signal: it gives no time to anyone.
        atexit.register(self.stop)

    @property
    def kafka_bootstrap(self) -> str:
        """host:port of Kafka."""
        return self.settings.kafka.bootstrap

    @property
    def engine_url(self) -> str:
        """Root of vLLM's server, without /v1."""
        return self.settings.engine.url

    @property
    def env(self) -> dict[str, str]:
        """LEYDEN_* variables with which any process becomes a part of this deployment."""
        return settings_env(self.settings) | {"LEYDEN_GATEWAY_URL": self.gateway_url} | self._shared_env

    def add_role(self, spec: RoleSpec) -> None:
        """Start a role beside those that run."""
        for process in role_processes(spec, self.env, self.state_dir):
            self.supervisor.add(process)

    def statuses(self) -> list[ProcessStatus]:
        """All processes."""
        return self.supervisor.statuses()

    def status(self, name: str) -> ProcessStatus:
        """One process: phase, pid, restarts, log."""
        return self.supervisor.status(name)

    def wait_ready(self, name: str | None = None, timeout_s: float = SERVICE_TIMEOUT_S) -> None:
        """Until that process (None: each) is ready. Raises StackError with the end of its log."""
        for one in [name] if name else [status.name for status in self.statuses()]:
            self.supervisor.wait_ready(one, timeout_s)

    def kill(self, name: str, with_signal: signal.Signals = signal.SIGKILL) -> ProcessId:
        """Send a signal to a process; what ends is started again."""
        return self.supervisor.kill(name, with_signal)

    def restart(self, name: str) -> None:
        """End it cleanly and start it again; returns when the new one runs. `wait_ready` waits until it answers."""
        self.supervisor.restart(name)

    def stop_process(self, name: str, grace_s: float = 30.0) -> None:
        """An outage: end it and leave it so until `resume`."""
        self.supervisor.stop([name], grace_s)

    def resume(self, name: str) -> None:
        """End of the outage."""
        self.supervisor.resume(name)

    def stop(self) -> None:
        """End all processes, at most 30 s, and forget the state file. Repeating it is harmless."""
        self.supervisor.close()
        state.remove(self.state_dir)
        atexit.unregister(self.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _write_state(self) -> None:
        state.write(self.state_dir, state.of(self.statuses(), self.env))


def start(spec: StackSpec, say: Say = say_on_stderr) -> RunningStack:
    """Start the services, wait until Kafka and the object store answer, create the topics, start the roles.

    The engine and the roles may not be ready yet: `wait_ready`. Raises StackError, FetchError; nothing runs on then.
    """
    spec.state_dir.mkdir(parents=True, exist_ok=True)
    spec = replace(spec, state_dir=spec.state_dir.resolve())
    state.refuse_second(spec.state_dir)
    settings = _resolved(spec)
    gateway_url = os.environ.get("LEYDEN_GATEWAY_URL", f"http://127.0.0.1:{spec.gateway_port or free_port()}")
    stack = RunningStack(spec, settings, gateway_url, say)
    try:
        _start_services(stack, spec, say)
        if spec.apply_topics:
            deployment.apply(settings)
        for one in spec.roles:
            stack.add_role(one)
    except BaseException:
        stack.stop()
        raise
    return stack


def _start_services(stack: RunningStack, spec: StackSpec, say: Say) -> None:
    settings, given = stack.settings, spec.settings
    engine = spec.engine
    if engine is not None and not _is_set(given, "engine", "url"):
        port = int(settings.engine.url.rsplit(":", 1)[1])
        token = settings.engine.reload_token.get_secret_value()
        stack.supervisor.add(engine_process(replace(engine, reload_token=token), port, cache_dir()))
    if spec.objects and not _is_set(given, "objects", "endpoint"):
        port = int(settings.objects.endpoint.rsplit(":", 1)[1])
        stack.supervisor.add(minio_process(spec.state_dir / "minio", port, settings.objects, say))
    if spec.kafka and not _is_set(given, "kafka", "bootstrap"):
        port = int(settings.kafka.bootstrap.rsplit(":", 1)[1])
        stack.supervisor.add(kafka_process(spec.state_dir / "kafka", port, free_port(), say))
    for status in stack.statuses():
        if status.name != "engine":
            stack.wait_ready(status.name)


def _resolved(spec: StackSpec) -> RoleSettings:
    """The settings with the addresses of what is about to be started."""
    given, update = spec.settings, {}
    if spec.kafka and not _is_set(given, "kafka", "bootstrap"):
        bootstrap = f"127.0.0.1:{spec.kafka_port or free_port()}"
        update["kafka"] = given.kafka.model_copy(update={"bootstrap": bootstrap, "partitions": spec.partitions})
    if spec.objects and not _is_set(given, "objects", "endpoint"):
        changes: dict[str, Any] = {"endpoint": f"127.0.0.1:{spec.minio_port or free_port()}"}
        if not _is_set(given, "objects", "secret_key"):
            changes["secret_key"] = SecretStr(secrets.token_hex(16))
        update["objects"] = given.objects.model_copy(update=changes)
    if spec.engine is not None and not _is_set(given, "engine", "url"):
        token = given.engine.reload_token.get_secret_value() or spec.engine.reload_token or secrets.token_hex(16)
        update["engine"] = EngineSettings(
            url=f"http://127.0.0.1:{spec.engine.port or free_port()}",
            model=spec.engine.served_name,
            reload_token=SecretStr(token),
        )
    return given.model_copy(update=update)


def role_processes(spec: RoleSpec, env: Mapping[str, str], state_dir: Path) -> list[ProcessSpec]:
    """One process a replica, each with a port and a folder of its own."""
    made = []
    for i in range(spec.replicas):
        name = spec.name if spec.replicas == 1 else f"{spec.name}-{i + 1}"
        port = str(free_port())
        ready_url = spec.ready_url.replace(PORT, port) if spec.ready_url else None
        own = {"LEYDEN_STATE_DIR": str(state_dir / name), "PYTHONUNBUFFERED": "1"}
        made.append(
            ProcessSpec(
                name,
                tuple(argument.replace(PORT, port) for argument in spec.argv),
                {**own, **env, **{key: value.replace(PORT, port) for key, value in spec.env.items()}},
                http_ready(ready_url) if ready_url else None,
                ready_url.removesuffix("/readyz") if ready_url else None,
                ready_url,
                cwd=spec.cwd or Path.cwd(),
            )
        )
    return made


def settings_env(settings: RoleSettings) -> dict[str, str]:
    """The LEYDEN_* variables that say what `settings` says where it differs from the defaults."""
    env = {"LEYDEN_PREFIX": settings.prefix, "LEYDEN_POLICY": settings.policy}
    for section in ("kafka", "objects", "engine"):
        values: BaseModel = getattr(settings, section)
        for key in type(values).model_fields:
            value = getattr(values, key)
            if value != type(values).model_fields[key].default:
                text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
                env[f"LEYDEN_{section}__{key}".upper()] = text
    return env


def _is_set(settings: RoleSettings, section: str, key: str) -> bool:
    return section in settings.model_fields_set and key in getattr(settings, section).model_fields_set
