"""Trainer: from a function and a list of tasks to a better model, on this machine."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from ...infra.local.cache import Say, say_on_stderr
from ...infra.local.stack import EngineSpec
from ..agents import AgentFunction, import_root, rollout, spec_of
from ..prompts import PromptTemplate
from .algorithm import LightningRL, algorithm_of, environment
from .deployment import Wanted, open_deployment
from .results import FitResult, Progress, RolloutResult
from .session import OnProgress, Session
from .tasks import Items


def _silent(_progress: Progress) -> None:
    """For callers that asked for no progress."""


def _runner_env(agent: AgentFunction, slots: int) -> dict[str, str]:
    env = {"LEYDEN_AGENT": spec_of(rollout(agent)), "LEYDEN_SLOTS": str(slots)}
    root = import_root(agent)
    if root is not None:
        env["PYTHONPATH"] = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    return env


class Trainer:
    """Trains the model behind an agent. Everything runs as in production: gateway, Kafka, learner, checkpoints, vLLM.

    A stack that runs in `state_dir` is used, else one is started and ended with the call. Services that LEYDEN_*
    variables name are used instead of started; then `model` must be what they serve.
    """

    def __init__(
        self,
        *,
        model: str | Path,
        algorithm: LightningRL | str = "grpo",
        n_runners: int = 1,
        slots: int = 16,
        n_steps: int = 20,
        val_every: int = 0,
        timeout_s: float = 120.0,
        max_attempts: int = 2,
        step_timeout_s: float = 600.0,
        prompts: Sequence[PromptTemplate] = (),
        engine: EngineSpec | None = None,
        env: Mapping[str, str] | None = None,
        state_dir: str | Path = ".leyden",
        on_progress: OnProgress = _silent,
        say: Say = say_on_stderr,
    ) -> None:
        """`model`: a folder as `transformers` saves it. `slots`: rollouts at a time in each of `n_runners` runners.

        `timeout_s`, `max_attempts`: of a rollout. `step_timeout_s`: how long a round may be without any news.
        `prompts`: published ones that the agent gets by `PromptTemplate.live`. `env`: LEYDEN_* variables for the runner
        and the learner, e.g. {"LEYDEN_THREADS": "2"}. `on_progress`: told whenever something moved.
        """
        self._model, self._algorithm = Path(model).resolve(), algorithm_of(algorithm)
        self._n_runners, self._slots = n_runners, slots
        self._n_steps, self._val_every = n_steps, val_every
        self._timeout_s, self._max_attempts, self._step_timeout_s = timeout_s, max_attempts, step_timeout_s
        self._prompts, self._engine, self._env = prompts, engine, dict(env or {})
        self._state_dir, self._on_progress, self._say = Path(state_dir), on_progress, say

    def fit(self, agent: AgentFunction, train: Items, val: Items = ()) -> FitResult:
        """Train for `n_steps` rounds. Raises LeydenError of many kinds; what was published by then stays."""
        with self.running(agent) as session:
            return session.fit(train, self._n_steps, val, self._val_every)

    def dev(self, agent: AgentFunction, tasks: Items) -> list[RolloutResult]:
        """Run each task once, train nothing, print what was captured."""
        console = Console()
        with self.running(agent, train=False) as session:
            results = session.sample(tasks)
        for result in results:
            console.rule(f"{result.rollout_id}  {result.status}  reward {result.reward}  {result.n_calls} calls")
            console.print(result.task)
            for number, reply in enumerate(result.replies(), 1):
                console.print(f"  {number}. ", reply, markup=False)
        return results

    @contextmanager
    def running(self, agent: AgentFunction, train: bool = True) -> Iterator[Session]:
        """The session on which `fit` and `dev` work, for several of them on one stack."""
        wanted = Wanted(
            state_dir=self._state_dir,
            engine=self._engine or EngineSpec(self._model),
            runner_env=_runner_env(agent, self._slots) | self._env,
            n_runners=self._n_runners,
            learner_env={"LEYDEN_MODEL": str(self._model), **environment(self._algorithm), **self._env}
            if train
            else None,
        )
        with ExitStack() as closing:
            deployment = open_deployment(wanted, self._say, closing)
            session = Session(
                deployment,
                self._algorithm,
                self._prompts,
                timeout_s=self._timeout_s,
                max_attempts=self._max_attempts,
                step_timeout_s=self._step_timeout_s,
                on_progress=self._on_progress,
            )
            closing.callback(session.close)
            yield session
