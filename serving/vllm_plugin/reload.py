"""Which weights the engine runs, and the one procedure that changes them while requests stay open."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

from ...infra.errors import LeydenError
from .checkpoint_files import BadCheckpointError

# How often the workers are asked whether they have read the checkpoint; reading takes tenths of a second and more.
STAGE_POLL_S = 0.01


class ReloadInProgressError(LeydenError):
    """Another reload is running; ask again when it has ended."""


class BrokenEngineError(LeydenError):
    """Loading failed after the model was touched: the process ends, to be started again."""


@dataclass(frozen=True, slots=True)
class ReloadTimes:
    """Seconds: reading and checking beside serving, and how long generation stood still."""

    stage_s: float
    pause_s: float


def end_process() -> None:
    """Ask vLLM to shut down; whoever supervises it starts it again, with the base model."""
    os.kill(os.getpid(), signal.SIGTERM)


class EngineVersion:
    """The version that the engine behind this server runs. One API server process an engine.

    Order of a reload: workers read and check the checkpoint while serving goes on; generation is paused with requests
    kept and every cached key and value dropped; the workers load; only then does `version` change; generation resumes.
    So a call's versions at its start and end enclose all that produced its tokens.
    """

    def __init__(self, on_broken: Callable[[], None] = end_process) -> None:
        self.version = 0  # of the weights in use; 0: the model that the engine started with
        self.loading: int | None = None
        self.error: str | None = None  # of the last reload
        self.broken = False
        self.replica = uuid4().hex  # a new one each start: it tells a restarted engine from one that was never loaded
        self._on_broken = on_broken

    def status(self) -> dict[str, Any]:
        """What GET /leyden/version answers."""
        return {"version": self.version, "loading": self.loading, "error": self.error, "replica": self.replica}

    async def reload(self, engine: Any, version: int, path: str) -> ReloadTimes:
        """Run `version` from the checkpoint folder `path`; `engine` is vLLM's AsyncLLM.

        Raises BadCheckpointError (nothing was touched), ReloadInProgressError, BrokenEngineError.
        """
        if self.loading is not None:
            raise ReloadInProgressError(f"version {self.loading} is being loaded")
        self.loading, self.error = version, None
        try:
            start = time.perf_counter()
            await _stage(engine, path)
            staged = time.perf_counter()
            await self._swap(engine, version)
            return ReloadTimes(staged - start, time.perf_counter() - staged)
        except Exception as error:
            self.error = f"version {version}: {error}"
            raise
        finally:
            self.loading = None

    async def _swap(self, engine: Any, version: int) -> None:
        try:
            # clear_cache also preempts the running requests: they compute their keys and values again, by new weights.
            await engine.pause_generation(mode="keep", clear_cache=True)
        except BaseException:
            await engine.resume_generation()
            raise
        try:
            await engine.collective_rpc("leyden_apply")
        except BaseException as error:
            # Never resumed: what half-loaded weights generate must not end an open answer. The process's end cuts them.
            self.broken = True
            self._on_broken()
            if not isinstance(error, Exception):
                raise
            raise BrokenEngineError(f"the model is half loaded, the engine restarts: {error}") from error
        self.version = version
        await engine.resume_generation()


async def _stage(engine: Any, path: str) -> None:
    await engine.collective_rpc("leyden_stage", args=(path,))
    while None in (outcomes := await engine.collective_rpc("leyden_staged")):  # noqa: ASYNC110 - another process
        await asyncio.sleep(STAGE_POLL_S)
    if refused := [outcome for outcome in outcomes if outcome]:
        await engine.collective_rpc("leyden_discard")
        raise BadCheckpointError(refused[0])


def times_as_dict(times: ReloadTimes) -> dict[str, float]:
    """For the answer of the reload route."""
    return {name: round(value, 4) for name, value in asdict(times).items()}
