"""stack.json: what runs, for processes that did not start it. Holds credentials: readable by its owner only."""

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..settings import RoleSettings
from .processes import ProcessId
from .supervisor import ProcessStatus, StackError

FILE = "stack.json"


@dataclass(frozen=True, slots=True)
class StackState:
    """What stack.json says."""

    supervisor: ProcessId
    boot_id: str
    env: Mapping[str, str]
    processes: list[dict[str, Any]]

    @property
    def running(self) -> bool:
        """True while the process that supervises it lives."""
        return self.boot_id == _boot_id() and self.supervisor.alive()

    @property
    def sessions(self) -> list[ProcessId]:
        """Leaders of the processes' sessions; none after a reboot, which ended them and gave their numbers away."""
        if self.boot_id != _boot_id():
            return []
        return [ProcessId(**p["id"]) for p in self.processes if p["id"]]


def of(statuses: list[ProcessStatus], env: Mapping[str, str]) -> StackState:
    """The state of a stack that this process supervises."""
    processes = [asdict(status) | {"log": str(status.log)} for status in statuses]
    return StackState(ProcessId.of(os.getpid()), _boot_id(), env, processes)


def write(state_dir: Path, state: StackState) -> None:
    """Replace the file at once."""
    text = json.dumps(asdict(state), indent=2)
    fresh = state_dir / f".{FILE}.new"
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        out.write(text)
    fresh.rename(state_dir / FILE)


def read(state_dir: Path) -> StackState | None:
    """None where no stack was started, or the last one was stopped."""
    try:
        said = json.loads((state_dir / FILE).read_text())
    except FileNotFoundError:
        return None
    return StackState(ProcessId(**said["supervisor"]), said["boot_id"], said["env"], said["processes"])


def exports(state_dir: Path) -> str:
    """`export NAME=VALUE` lines of the stack of this folder. Raises StackError where there is none."""
    found = read(state_dir)
    if found is None:
        raise StackError(f"no stack in {state_dir}: leyden up")
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in sorted(found.env.items()))


def settings_of(env: Mapping[str, str]) -> RoleSettings:
    """The settings that LEYDEN_* variables describe, without setting them for this process."""
    values: dict[str, Any] = {}
    for name, value in env.items():
        path = name.lower().removeprefix("leyden_").split("__")
        if path[0] in RoleSettings.model_fields:
            at = values
            for part in path[:-1]:
                at = at.setdefault(part, {})
            at[path[-1]] = value
    return RoleSettings(**values)


def remove(state_dir: Path) -> None:
    """Nothing of the stack runs any more."""
    (state_dir / FILE).unlink(missing_ok=True)


def refuse_second(state_dir: Path) -> None:
    """Raises StackError where a stack with this folder runs, or left something running."""
    found = read(state_dir)
    if found is None:
        return
    if found.running:
        raise StackError(f"a stack of {state_dir} runs already (pid {found.supervisor.pid}): leyden down")
    if any(leader.alive() for leader in found.sessions):
        raise StackError(f"a stack of {state_dir} was killed and left processes: leyden down")


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
