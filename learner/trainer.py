"""The learner's loop in process 0: collect messages, train them, publish; follow rollbacks."""

import logging
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Event

from ..infra import manifest as manifests
from ..infra.checkpoint_log import CheckpointLog
from ..infra.kafka import KafkaUnavailableError
from ..infra.lineage import Lineage
from ..infra.manifest import BASE_VERSION, BatchEntry, Manifest
from ..infra.objects import ObjectStore
from .batches import BatchReader
from .checkpoint import TrainedGroups, restore, trained_groups
from .material import Material, MaterialMaker, dropped_entry, void
from .metrics import LearnerMetrics
from .plan import Admitted, Dropped, Message, Standing, judge, plan, staleness_of
from .policy import Policy
from .processes import Crew
from .publisher import Publisher, patiently
from .settings import LearnerSettings
from .trajectories import Found, TrajectoryReader

READ_BACK_S = 60.0
# In the manifest's metrics, so that a version has the baseline that its parent left, whatever of its files is gone.
REWARD_BASELINE = "reward_baseline"
log = logging.getLogger("leyden.learner")


def trunk(lineage: Lineage, versions: list[int]) -> int:
    """The version to train on from: the newest, or after a rollback the live one. `versions`: those with a manifest."""
    standing = [version for version in versions if not lineage.abandoned(version)]
    if versions[-1] in standing:
        return versions[-1]
    if lineage.live is not None and lineage.live.version in standing:
        return lineage.live.version
    return standing[-1] if standing else BASE_VERSION


class Trainer:
    """One a policy. What it holds between steps is in the newest checkpoint, so it may be killed anywhere."""

    def __init__(
        self,
        settings: LearnerSettings,
        policy: Policy,
        crew: Crew,
        checkpoints: CheckpointLog,
        publisher: Publisher,
        objects: ObjectStore,
        trajectories: TrajectoryReader,
        maker: MaterialMaker,
        open_batches: Callable[[int], BatchReader],
        metrics: LearnerMetrics,
    ) -> None:
        self._settings, self._policy, self._crew = settings, policy, crew
        self._checkpoints, self._publisher, self._objects = checkpoints, publisher, objects
        self._trajectories, self._maker, self._open_batches = trajectories, maker, open_batches
        self._metrics = metrics
        self.version = BASE_VERSION
        self.ready = False
        self._newest = BASE_VERSION
        self._consumed_to = 0  # of `batches`, by the newest manifest
        self._trained = TrainedGroups()
        self._reward_baseline: float | None = None
        self._settled: list[BatchEntry] = []  # judged already, for the next manifest

    @property
    def scratch(self) -> Path:
        """Where restored files lie for a moment."""
        return self._settings.state_dir / "learner"

    def run(self, stop: Event) -> None:
        """Until `stop`."""
        try:
            if self._read_announcements(stop):
                self._start()
                self._train(stop)
        finally:
            self._crew.stop()

    def _train(self, stop: Event) -> None:
        batches = self._open_batches(self._consumed_to)
        self.ready = True
        try:
            while (groups := self._collect(batches, stop)) is not None:
                self._step(groups, batches, stop)
        finally:
            batches.close()

    def _read_announcements(self, stop: Event) -> bool:
        """Read `checkpoints` to its end. False: `stop` came first.

        Nothing may follow from a lineage that is known in part: a version that was rolled back would seem to be
        missing there, and to announce it again would undo the rollback.
        """
        while not self._checkpoints.caught_up:
            if stop.is_set():
                return False
            self._checkpoints.poll(0.2)
        return True

    def _start(self) -> None:
        """Take up where the newest manifest ends; the first start ever publishes the base model as version 0."""
        name = self._settings.policy
        if not (versions := manifests.versions(name, self._objects)):
            self._crew.synchronise()
            self._publish(None, [], {}, 0)
            return
        announced = self._publisher.announce_missing(self._checkpoints.lineage, versions)
        self._read_back(announced)
        newest, _ = manifests.load(name, versions[-1], self._objects)
        self._newest, self._consumed_to = newest.version, newest.offset_to
        self._trained = trained_groups(newest, self._objects, lambda: self._manifests(versions))
        self._take_up(trunk(self._checkpoints.lineage, versions))

    def _manifests(self, versions: Iterable[int]) -> Iterable[Manifest]:
        return (manifests.load(self._settings.policy, version, self._objects)[0] for version in versions)

    def _take_up(self, version: int) -> None:
        manifest, _ = manifests.load(self._settings.policy, version, self._objects)
        restore(self._policy, self._crew.stepper, manifest, self._objects, self.scratch)
        self._crew.synchronise()
        self.version = version
        self._reward_baseline = manifest.metrics.get(REWARD_BASELINE)
        self._metrics.version.set(version)
        self._metrics.next_offset.set(self._consumed_to)
        log.info("on version %d; batches from offset %d", version, self._consumed_to)

    def _follow(self) -> None:
        """Take in announcements; leave a version that was rolled back."""
        while self._checkpoints.poll(0.0) is not None:
            pass
        if self._checkpoints.lineage.abandoned(self.version):
            target = trunk(self._checkpoints.lineage, manifests.versions(self._settings.policy, self._objects))
            log.warning("version %d was rolled back, training goes on from version %d", self.version, target)
            self._take_up(target)

    def _read_back(self, announced: Iterable[int]) -> None:
        """Staleness counts along what the topic says, so a version counts once it was read from there."""
        deadline = time.monotonic() + READ_BACK_S
        for version in announced:
            while version not in self._checkpoints.lineage.versions:
                if time.monotonic() > deadline:
                    raise KafkaUnavailableError(f"the announcement of version {version} was not read back")
                self._checkpoints.poll(0.2)

    def _standing(self) -> Standing:
        return Standing(
            self._checkpoints.lineage,
            self.version,
            self._trained.revisions,
            self._settings.max_staleness,
            self._settings.train_on_serve,
        )

    def _collect(self, batches: BatchReader, stop: Event) -> tuple[Admitted, ...] | None:
        """Read on until a step is full, or its first group has waited long enough. None: `stop`.

        Of a message that is dropped only the entry is kept, so what is held is at most about a step.
        """
        since = time.monotonic()
        first_at: float | None = None
        held: list[Message] = []
        n_admitted, changed = 0, False
        while not stop.is_set():
            self._crew.idle()
            before = self.version
            self._follow()
            overdue = first_at is not None and time.monotonic() - first_at > self._settings.step_max_wait_s
            if changed or overdue or self.version != before:
                planned = plan(held, self._standing())
                self._settled += [dropped_entry(d) for d in planned.dropped]
                held = [group.message for group in planned.admitted]
                n_admitted, changed = len(held), False
                if n_admitted >= self._settings.groups_per_step or (overdue and n_admitted):
                    self._metrics.seconds.labels("wait").observe(time.monotonic() - since)
                    return planned.admitted
                first_at = first_at if held else None
            read = batches.poll(0.5)
            if isinstance(read, BatchEntry):
                self._settled.append(read)
            elif read is not None:
                # Judged alone, an upper bound: all are judged together only once they may be enough, or where one is
                # about a group that is held, and may supersede it even though it is not trained itself.
                verdict = judge(read, self._standing())
                is_known = any(read.batch.group_id == message.batch.group_id for message in held)
                if isinstance(verdict, Dropped) and not is_known:
                    self._settled.append(dropped_entry(verdict))
                    continue
                held.append(read)
                n_admitted += isinstance(verdict, Admitted)
                changed = is_known or n_admitted >= self._settings.groups_per_step
                first_at = first_at or time.monotonic()
        return None

    def _step(self, groups: tuple[Admitted, ...], batches: BatchReader, stop: Event) -> None:
        """Train `groups` and publish; without anything to train their entries wait for the next step."""
        began = time.monotonic()
        places = [(m.partition, m.offset) for group in groups for m in group.members]
        found = patiently(lambda: self._trajectories.fetch(places), "trajectories", stop)
        material = [self._make(group, found, batches) for group in groups]
        self._metrics.seconds.labels("fetch").observe(time.monotonic() - began)
        entries = [e for m in material for e in m.entries]
        trees = [tree for m in material for tree in m.trees]
        if not trees:
            self._settled += entries
            return
        result = self._crew.train(trees)
        self._metrics.steps.labels("applied" if result.applied else "void").inc()
        self._metrics.seconds.labels("train").observe(result.metrics["step_s"])
        if not result.applied:
            log.error("the step came out non-finite and is void: %s", result.metrics)
            self._settled += [void(e, "non_finite") if e.outcome == "trained" else e for e in entries]
            for group in groups:
                batches.dead_letter(group.message.offset, "non_finite", str(result.metrics), None)
            return
        figures = result.metrics | self._figures(groups, material)
        settled, self._settled = self._settled, []
        self._publish(self.version, settled + entries, figures, batches.position)

    def _make(self, group: Admitted, found: Found, batches: BatchReader) -> Material:
        made = self._maker.make(group, found, self._reward_baseline)
        self._reward_baseline = made.reward_baseline
        for parameters in made.reshaped:
            for parameter in parameters:
                self._metrics.not_reproducible.labels(parameter).inc()
        for reason, detail in made.faults:
            log.error("group %s: %s: %s", group.message.batch.group_id, reason, detail)
            batches.dead_letter(group.message.offset, reason, detail, None)
        return made

    def _figures(self, groups: tuple[Admitted, ...], material: list[Material]) -> dict[str, float]:
        rewards = [reward for m in material for reward in m.rewards]
        mean, most = staleness_of(groups, self._standing())
        baseline = {} if self._reward_baseline is None else {REWARD_BASELINE: self._reward_baseline}
        return baseline | {
            "reward_mean": statistics.fmean(rewards) if rewards else 0.0,
            "groups": float(len(material)),
            "groups_trained": float(sum(bool(m.trees) for m in material)),
            "rollouts_trained": float(sum(m.n_rollouts for m in material)),
            "calls_not_reproducible": float(sum(len(m.reshaped) for m in material)),
            "staleness_mean": mean,
            "staleness_max": most,
        }

    def _publish(self, parent: int | None, entries: list[BatchEntry], figures: dict[str, float], end: int) -> None:
        began = time.monotonic()
        entries.sort(key=lambda entry: entry.offset)
        self._trained.add((e.group_id, e.revision) for e in entries if e.outcome == "trained")
        manifest = self._publisher.publish(
            self._policy,
            self._crew.stepper,
            self._trained,
            version=BASE_VERSION if parent is None else self._newest + 1,
            parent=parent,
            offsets=(self._consumed_to, end),
            batches=entries,
            metrics=figures,
        )
        self._read_back([manifest.version])
        self.version = self._newest = manifest.version
        self._consumed_to = end
        seconds = time.monotonic() - began
        self._count(manifest, seconds)
        log.info("version %d published in %.1f s: %s", manifest.version, seconds, _summary(figures))

    def _count(self, manifest: Manifest, seconds: float) -> None:
        self._metrics.seconds.labels("publish").observe(seconds)
        self._metrics.version.set(manifest.version)
        self._metrics.next_offset.set(manifest.offset_to)
        for entry in manifest.batches:
            self._metrics.groups.labels(entry.reason or entry.outcome).inc()
            if entry.outcome == "trained":
                self._metrics.rollouts.inc(len(entry.rollouts))
            elif entry.reason == "late_reward":
                self._metrics.late_rewards.labels("skipped").inc()
        for kind in ("trained", "forward", "plain"):
            self._metrics.tokens.labels(kind).inc(manifest.metrics.get(f"{kind}_tokens", 0.0))
        for name, value in manifest.metrics.items():
            self._metrics.values.labels(name).set(value)


def _summary(figures: dict[str, float]) -> str:
    shown = ("reward_mean", "groups", "groups_trained", "staleness_max", "loss", "grad_norm", "mismatch_kl", "step_s")
    return " ".join(f"{name}={figures[name]:.4g}" for name in shown if name in figures)
