"""`leyden up` and `leyden down`: the stack in the foreground until a signal, and the end of one from outside."""

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

import psutil

from . import state
from .cache import Say, say_on_stderr
from .processes import end_sessions
from .settings import UpSettings
from .stack import RoleSpec, StackSpec, role, start
from .supervisor import StackError

# What a supervisor may take to end everything, and a little more.
DOWN_TIMEOUT_S = 32.0


def spec_of(settings: UpSettings, say: Say) -> StackSpec:
    """What `leyden up` starts."""
    names = [*settings.roles, *(["runner"] if settings.agent and "runner" not in settings.roles else [])]
    roles: list[RoleSpec] = [role(name, replicas=settings.runners if name == "runner" else 1) for name in names]
    return StackSpec(
        settings.state_dir,
        settings,
        engine=settings.engine_spec(say),
        roles=tuple(roles),
        partitions=settings.kafka.partitions if "partitions" in settings.kafka.model_fields_set else 4,
        kafka_port=settings.kafka_port,
        minio_port=settings.minio_port,
        gateway_port=settings.gateway_port,
    )


def up(settings: UpSettings, say: Say = say_on_stderr) -> None:
    """Start everything, say where it is, and keep it running until SIGTERM, SIGINT or SIGHUP."""
    ended = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        ended.set()

    with start(spec_of(settings, say), say) as stack:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, on_signal)
        say(f"logs in {stack.run_dir}")
        while not ended.is_set() and any(s.reason for s in stack.statuses()):
            waiting = [f"{s.name} ({s.reason})" for s in stack.statuses() if s.reason]
            say(f"waiting for {', '.join(waiting)}")
            ended.wait(5.0)
        if not ended.is_set():
            for name, url in endpoints(stack.env).items():
                say(f"{name:8} {url}")
            say("ready. Ctrl-C or `leyden down` ends it")
        while not ended.wait(0.2):
            pass
        say("ending")


def endpoints(env: Mapping[str, str]) -> dict[str, str]:
    """Name -> address of what other programs talk to."""
    where = {
        "gateway": "LEYDEN_GATEWAY_URL",
        "engine": "LEYDEN_ENGINE__URL",
        "kafka": "LEYDEN_KAFKA__BOOTSTRAP",
        "objects": "LEYDEN_OBJECTS__ENDPOINT",
    }
    return {name: env[key] for name, key in where.items() if key in env}


def down(state_dir: Path, say: Say = say_on_stderr, grace_s: float = 10.0) -> bool:
    """End the stack of `state_dir`, also one whose supervisor was killed. False where there was none."""
    found = state.read(state_dir)
    if found is None:
        say(f"no stack in {state_dir}")
        return False
    if found.running:
        os.kill(found.supervisor.pid, signal.SIGTERM)
        psutil.wait_procs([psutil.Process(found.supervisor.pid)] if found.running else [], timeout=DOWN_TIMEOUT_S)
    # The supervisor may have restarted something since the file was read.
    latest = state.read(state_dir) or found
    for killed in end_sessions([*found.sessions, *latest.sessions], grace_s):
        say(f"had to kill {killed}")
    if found.running:
        raise StackError(f"the supervisor (pid {found.supervisor.pid}) does not end")
    state.remove(state_dir)
    say("the stack is down")
    return True
