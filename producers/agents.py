"""Agents: the @rollout decorator, and how a runner finds the function that another process named."""

import importlib
import importlib.util
import inspect
import sys
import sysconfig
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from ..avro.errors import LeydenError

AgentFunction = Callable[..., float | Awaitable[float | None] | None]
# A script is imported under this name, so that its `if __name__ == "__main__"` part does not run in the runner.
SCRIPT_MODULE = "__leyden_agent__"


class AgentError(LeydenError):
    """The agent cannot be found or cannot be run; the message says what was looked for."""


def rollout(function: AgentFunction) -> AgentFunction:
    """Mark `def agent(task, llm) -> float | None` (or async) as an agent; it stays an ordinary function.

    `task` is one item of the dataset (JSON values), `llm` an LLM. The number returned is the rollout's reward; None:
    the rewards were emitted, or come later. An exception is a failed attempt, never a reward of 0. Raises AgentError at
    once for a function that does not take these two.
    """
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        shown = f"{getattr(function, '__name__', function)}{inspect.signature(function)}"
        raise AgentError(f"an agent takes (task, llm); {shown} does not: {error}") from error
    return function


def spec_of(agent: AgentFunction) -> str:
    """MODULE:NAME or FILE.py:NAME, by which another process finds the function. Raises AgentError where none can."""
    name, module = getattr(agent, "__qualname__", ""), sys.modules.get(getattr(agent, "__module__", ""))
    if not name or "<" in name or module is None:
        raise AgentError(f"{agent!r} must be a function at the top of a module: the runners import it by its name")
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__" or importlib.util.find_spec(module.__name__) is None:
        if file is None:
            raise AgentError(f"{name} was typed into a shell: put it into a file, the runners import it from there")
        return f"{Path(file).resolve()}:{name}"
    return f"{module.__name__}:{name}"


def import_root(agent: AgentFunction) -> Path | None:
    """The folder from which another process can import the agent's module; None where it is installed."""
    module = sys.modules[agent.__module__]
    file, depth = getattr(module, "__file__", None), module.__name__.count(".")
    if file is None or module.__name__ == "__main__":
        return None
    path = Path(file).resolve()
    root = path.parents[depth + 1 if path.name == "__init__.py" else depth]
    installed = [Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib")]
    # An editable install of a package that is mapped to another folder has no such root.
    found = root.joinpath(*module.__name__.split("."))
    is_there = found.with_suffix(".py").is_file() or found.joinpath("__init__.py").is_file()
    return root if is_there and root not in installed else None


def load(spec: str) -> AgentFunction:
    """The function that `spec` names. Raises AgentError."""
    where, _, name = spec.rpartition(":")
    if not where:
        raise AgentError(f"{spec!r} names no agent: MODULE:NAME or FILE.py:NAME")
    module = _load_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise AgentError(f"{where} has no function {name}")
    return rollout(cast(AgentFunction, found))


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise AgentError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(SCRIPT_MODULE, path)
    if spec is None or spec.loader is None:
        raise AgentError(f"{path} is no Python file")
    # As for a script: what lies beside it can be imported.
    sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[SCRIPT_MODULE] = module
    spec.loader.exec_module(module)
    return module
