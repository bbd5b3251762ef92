"""What runs in the forked process of one rollout: take on the identity, call the agent, say how it went."""

import asyncio
import inspect
import math
import os
import signal
import sys
import traceback
from typing import Any, NoReturn

import orjson

from ..agents import AgentFunction
from ..http_hooks import wrap_clients
from ..identity import current
from ..ledger import LEDGER, Ledger
from ..llm import LLM
from .processes import die_with_parent
from .wire import Start

MAX_ERROR_CHARS = 4000


def run_rollout(agent: AgentFunction, start: Start, result_fd: int, parent_pid: int) -> NoReturn:
    """Run the agent and write its outcome to `result_fd` as JSON; a process that dies writes nothing."""
    os.setpgid(0, 0)
    die_with_parent(signal.SIGKILL, parent_pid)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.environ.update(start.env)
    _hook_clients(start.base_url)
    if (numpy := sys.modules.get("numpy")) is not None:
        # `random` seeds itself anew after a fork, numpy does not: all rollouts would draw the same numbers.
        numpy.random.seed(int.from_bytes(os.urandom(4), "big"))
    result = call(agent, start.task, LLM(start.base_url, start.api_key, start.model))
    os.write(result_fd, orjson.dumps(result))
    sys.stdout.flush()
    sys.stderr.flush()
    # Without the parent's exit handlers, and without waiting for threads that the agent left behind.
    os._exit(0)


def call(agent: AgentFunction, task: Any, llm: LLM) -> dict[str, Any]:
    """{"value": number or None} or {"error": text}."""
    try:
        value = agent(task, llm)
        if inspect.isawaitable(value):
            value = asyncio.run(_await(value))
        return {"value": reward_of(value)}
    except (Exception, SystemExit, KeyboardInterrupt):  # noqa: BLE001 - whatever the agent raises is its failure
        return {"error": traceback.format_exc()[-MAX_ERROR_CHARS:]}


async def _await(value: Any) -> Any:
    return await value


def reward_of(value: Any) -> float | None:
    """The number that an agent returned. Raises TypeError for what is none, also for NaN and infinity."""
    if value is None:
        return None
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise TypeError(f"an agent returns a number or None, not {type(value).__name__}")
    number = float(value)
    if not math.isfinite(number):
        raise TypeError(f"an agent returns a finite number or None, not {number}")
    return number


def _hook_clients(base_url: str) -> None:
    """Send what clients made before the fork to this attempt's URL, and keep the ledger where one is asked for.

    The agent's module was imported before there was a rollout, so a client made at import has the gateway's bare /v1.
    """
    root, _, prefix = base_url.partition("/rollout/")
    bare, own = f"{root}/v1/", f"/rollout/{prefix.removesuffix('/v1')}/v1/"

    def before(request: Any) -> None:
        if str(request.url).startswith(bare):
            request.url = request.url.copy_with(raw_path=request.url.raw_path.replace(b"/v1/", own.encode(), 1))

    identity, ledger = current(), os.environ.get(LEDGER)
    wrap_clients(before, Ledger(ledger, identity).after_send if ledger and identity else None)
