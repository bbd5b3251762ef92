"""A session: one deployment with one agent, on which rounds of tasks are run, trained on and validated."""

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...avro import Task, encode
from ...avro.errors import LeydenError
from ...infra import topics
from ...infra.checkpoint_log import read_lineage
from ..prompts import PromptTemplate
from ..publisher import Publisher
from .algorithm import LightningRL
from .deployment import Deployment
from .results import FitResult, Progress, RolloutResult, StepResult, mean_reward
from .tasks import Items, endless, group_of_tasks
from .watch import TrajectoryWatch, wait_for_version

OnProgress = Callable[[Progress], None]
PUBLISH_TIMEOUT_S = 60.0


class NothingToTrainError(LeydenError):
    """A round in which no group has two rollouts that succeeded with a reward; the message has an example."""


class Session:
    """Made by `Trainer.running`."""

    def __init__(
        self,
        deployment: Deployment,
        algorithm: LightningRL,
        prompts: Sequence[PromptTemplate],
        *,
        timeout_s: float,
        max_attempts: int,
        step_timeout_s: float,
        on_progress: OnProgress,
    ) -> None:
        self.deployment = deployment
        self._algorithm, self._prompts = algorithm, {p.name: p.to_json() for p in prompts}
        self._timeout_s, self._max_attempts = timeout_s, max_attempts
        self._step_timeout_s, self._on_progress = step_timeout_s, on_progress
        self._policy = deployment.settings.policy
        self._publisher = Publisher(deployment.settings.kafka, deployment.settings.prefix)
        self._watch = TrajectoryWatch(deployment.settings)

    def close(self) -> None:
        """Leave the deployment."""
        self._watch.close()
        self._publisher.close()

    def fit(
        self, train: Items, n_steps: int, val: Items = (), val_every: int = 0, max_s: float | None = None
    ) -> FitResult:
        """`n_steps` rounds, each: sample groups, wait for their trajectories, wait until the update is served.

        So each rollout is sampled from the version that its update starts from. A round in which all rollouts of each
        group did alike makes no update. `val` is validated before, after, and
        every `val_every` steps. No round begins that would end later than `max_s` from now if it took as long as the
        longest one so far. Raises TrainingStalledError, NothingToTrainError.
        """
        version = self.wait_until_served()
        validation = [(version, mean_reward(self.evaluate(val)))] if val else []
        steps: list[StepResult] = []
        items = endless(train, self._algorithm.seed)
        began = time.monotonic()
        for step in range(1, n_steps + 1):
            longest_s = max((s.rollouts_s + s.training_s for s in steps), default=0.0)
            if max_s is not None and time.monotonic() - began + longest_s > max_s:
                break
            steps.append(
                self._step(step, n_steps, list(itertools.islice(items, self._algorithm.groups_per_step)), version)
            )
            version = steps[-1].version
            if val and val_every and step % val_every == 0:
                validation.append((version, mean_reward(self.evaluate(val))))
        if val and validation[-1][0] != version:
            validation.append((version, mean_reward(self.evaluate(val))))
        return FitResult(steps, validation)

    def evaluate(self, items: Items) -> list[RolloutResult]:
        """One greedy rollout an item, never trained on; results in the order of `items`."""
        tasks = [t for item in items for t in self._tasks(item, 1, "validate", temperature=0.0)]
        return self._run(tasks, lambda results: self._tell("validation", 0, 0, len(tasks), results, -1))

    def sample(self, items: Items) -> list[RolloutResult]:
        """One rollout an item at the agent's own temperature, never trained on."""
        tasks = [t for item in items for t in self._tasks(item, 1, "validate")]
        return self._run(tasks, lambda results: self._tell("rollouts", 0, 0, len(tasks), results, -1))

    def wait_until_served(self) -> int:
        """The served version, once it is the live one or a later one."""
        live = read_lineage(self.deployment.settings).live
        at_least = live.version if live else 0
        return wait_for_version(self.deployment.gateway_url, self._policy, at_least, self._step_timeout_s)

    def _step(self, step: int, n_steps: int, items: Items, version: int) -> StepResult:
        began = time.monotonic()
        tasks = [t for item in items for t in self._tasks(item, self._algorithm.group_size, "train")]

        def tell(phase: str, results: list[RolloutResult], version: int) -> None:
            self._tell(phase, step, n_steps, len(tasks), results, version)

        results = self._run(tasks, lambda results: tell("rollouts", results, version))
        require_trainable(results)
        sampled, newer = time.monotonic(), version
        if teaches(results):
            tell("training", results, version)
            newer = wait_for_version(self.deployment.gateway_url, self._policy, version + 1, self._step_timeout_s)
            tell("served", results, newer)
        else:
            tell("unchanged", results, version)
        n_failed = sum(r.status != "succeeded" for r in results)
        rollouts_s, training_s = sampled - began, time.monotonic() - sampled
        return StepResult(step, mean_reward(results), len(results), n_failed, newer, rollouts_s, training_s)

    def _tasks(self, item: Any, group_size: int, purpose: str, temperature: float | None = None) -> list[Task]:
        return group_of_tasks(
            item,
            group_size,
            policy=self._policy,
            purpose=purpose,
            timeout_s=self._timeout_s,
            max_attempts=self._max_attempts,
            temperature=temperature,
            resources=self._prompts,
        )

    def _run(self, tasks: list[Task], progress: Callable[[list[RolloutResult]], None]) -> list[RolloutResult]:
        sent = [self._publisher.send(topics.TASKS, t.rollout_id.encode(), encode(t)) for t in tasks]
        for future in sent:
            future.result(PUBLISH_TIMEOUT_S)
        patience_s = self._timeout_s * self._max_attempts + self._step_timeout_s
        return self._watch.wait([t.rollout_id for t in tasks], patience_s, progress)

    def _tell(
        self, phase: str, step: int, n_steps: int, total: int, results: list[RolloutResult], version: int
    ) -> None:
        self._on_progress(Progress(phase, step, n_steps, len(results), total, mean_reward(results), version))


def require_trainable(results: Sequence[RolloutResult]) -> None:
    """Raises NothingToTrainError where no group would reach the learner, which would be waited for in vain."""
    if max((len(rewards) for rewards in _rewards_by_group(results)), default=0) < 2:
        statuses = sorted({r.status for r in results})
        raise NothingToTrainError(
            f"in {len(results)} rollouts no group has two that succeeded with a reward (statuses: "
            f"{', '.join(statuses)}; e.g. {results[0].rollout_id}): the runner's log has the errors"
        )


def teaches(results: Sequence[RolloutResult]) -> bool:
    """Whether some group has rewards that differ; without one every advantage is zero, and no version comes of it."""
    return any(max(rewards) - min(rewards) > 0 for rewards in _rewards_by_group(results))


def _rewards_by_group(results: Sequence[RolloutResult]) -> Iterable[list[float]]:
    groups: dict[str, list[float]] = {}
    for result in results:
        if result.status == "succeeded" and result.reward is not None:
            groups.setdefault(result.group_id, []).append(result.reward)
    return groups.values()
