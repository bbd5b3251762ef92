"""Where a trainer finds its deployment: one that runs in the state folder already, or one that it starts."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ...infra.local import state
from ...infra.local.cache import Say
from ...infra.local.stack import EngineSpec, RoleSpec, RunningStack, StackSpec, role, start
from ...infra.settings import RoleSettings

READY_TIMEOUT_S = 300.0
MAX_RESTARTS = 3


@dataclass(frozen=True, slots=True)
class Deployment:
    """What a session needs of it."""

    settings: RoleSettings
    gateway_url: str
    stack: RunningStack | None
    """The processes started here; None where nothing had to be."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a trainer needs to run."""

    state_dir: Path
    engine: EngineSpec | None
    runner_env: Mapping[str, str]
    n_runners: int
    learner_env: Mapping[str, str] | None
    """None: nothing is trained."""


def open_deployment(wanted: Wanted, say: Say, closing: ExitStack) -> Deployment:
    """Attach to the stack of `state_dir` where one runs, else start one; `closing` ends what was started here.

    An attached stack keeps its own learner and its own runners; runners are started where it has none.
    Services that LEYDEN_* variables name are used. Raises StackError, FetchError, SettingsError.
    """
    found = state.read(wanted.state_dir)
    if found is None or not found.running:
        stack = closing.enter_context(start(_own_spec(wanted), say))
        _wait_ready(stack)
        return Deployment(stack.settings, stack.gateway_url, stack)
    say(f"using the stack that runs in {wanted.state_dir}")
    settings, gateway_url = state.settings_of(found.env), found.env["LEYDEN_GATEWAY_URL"]
    if any(process["name"].startswith("runner") for process in found.processes):
        return Deployment(settings, gateway_url, None)
    spec = StackSpec(
        wanted.state_dir / "trainer",
        settings,
        kafka=False,
        objects=False,
        roles=(_runner(wanted),),
        env={"LEYDEN_GATEWAY_URL": gateway_url},
        apply_topics=False,
    )
    stack = closing.enter_context(start(spec, say))
    _wait_ready(stack)
    return Deployment(settings, gateway_url, stack)


def _wait_ready(stack: RunningStack) -> None:
    """Until all is ready, or something has ended by itself as often as makes waiting useless."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while waiting := [status for status in stack.statuses() if status.reason is not None]:
        failing = [status for status in waiting if status.restarts >= MAX_RESTARTS]
        if failing or time.monotonic() > deadline:
            stack.wait_ready((failing or waiting)[0].name, 0.0)
        time.sleep(0.1)


def _own_spec(wanted: Wanted) -> StackSpec:
    roles = [role("gateway"), role("assemble"), _runner(wanted)]
    if wanted.learner_env is not None:
        roles += [role("group"), role("learner", env=wanted.learner_env), role("promoter"), role("reloader")]
    return StackSpec(wanted.state_dir, RoleSettings.load(), engine=wanted.engine, roles=tuple(roles))


def _runner(wanted: Wanted) -> RoleSpec:
    return role("runner", env=wanted.runner_env, replicas=wanted.n_runners)
