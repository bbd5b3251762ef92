"""One round: the load, every fault in the middle of it, and what must hold when everything has come to rest."""

import random
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import TopicPartition
from leyden.infra import kafka, topics
from leyden.infra.local.stack import EngineSpec, RunningStack, StackSpec, role
from leyden.infra.settings import RoleSettings
from leyden.stream.audit.main import run as audit
from leyden.stream.audit.report import Report

from .load import AGENT, GROUP_SIZE, OpenRollout, Progress, publish, tasks

FAULTS = ("gateway", "runner", "assemble", "learner", "reloader", "engine", "kafka", "group", "promoter")
READY_S = 120.0


def stack_spec(
    folder: Path, model: Path, max_replay_events: int, groups_per_step: int, step_max_wait_s: float
) -> StackSpec:
    """Everything that `leyden up` runs, with a tiny model and the load's agent."""
    learner = {
        "LEYDEN_MODEL": str(model),
        "LEYDEN_GROUPS_PER_STEP": str(groups_per_step),
        "LEYDEN_STEP_MAX_WAIT_S": str(step_max_wait_s),
        "LEYDEN_MAX_STALENESS": "8",
        "LEYDEN_PRECISION": "fp32",
        "LEYDEN_THREADS": "1",
    }
    # A member that was killed is out of its group after the session timeout; six seconds is Kafka's lower limit.
    stream = {"LEYDEN_MAX_REPLAY_EVENTS": str(max_replay_events), "LEYDEN_SESSION_TIMEOUT_S": "6"}
    runner = {"LEYDEN_AGENT": AGENT, "LEYDEN_SLOTS": "12", "LEYDEN_LEDGER": str(ledger_of(folder))}
    return StackSpec(
        folder,
        RoleSettings(),
        engine=EngineSpec(model, dtype="float32", kv_cache_bytes=64 << 20),
        roles=(
            role("gateway"),
            role("assemble", env=stream),
            role("group", env=stream),
            role("learner", env=learner),
            role("promoter"),
            role("reloader"),
            role("runner", env=runner),
        ),
    )


def ledger_of(folder: Path) -> Path:
    """Where all agents of the load note what they received."""
    return folder / "ledger.jsonl"


@dataclass
class Round:
    """What a round did and found."""

    seed: int
    n_rollouts: int
    seconds: float = 0.0
    versions: tuple[int, int] = (-1, -1)  # before and after
    versions_after_learner: int = 0  # published after the learner's restart
    reread: dict[int, int] = field(default_factory=dict)  # partition of events -> events read again
    report: Report = field(default_factory=Report)
    log: list[str] = field(default_factory=list)


class Bench:
    """A running stack under load; counts the kills, so that any other restart shows."""

    def __init__(self, stack: RunningStack, progress: Progress, max_replay_events: int) -> None:
        self.stack, self.progress, self.max_replay_events = stack, progress, max_replay_events
        self.kills: Counter[str] = Counter()
        self.ledger = ledger_of(stack.state_dir)

    def round(self, seed: int, n_rollouts: int, faults: tuple[str, ...] = FAULTS) -> Round:
        """Run it; the asserts are the caller's."""
        began, made = time.monotonic(), Round(seed, n_rollouts)
        order = random.Random(seed).sample(faults, len(faults))
        load = list(tasks(n_rollouts, seed))
        names = {task.rollout_id for task in load}
        first = self.progress.newest_version
        opened = OpenRollout(self.stack.gateway_url, self.stack.settings.engine.model, self.ledger)
        opened.call()
        publish(self.stack.settings, load)
        at_learner = first
        for n, fault in enumerate(order, 1):
            goal = n * n_rollouts // (len(order) + 1)
            self.stack.wait_ready(fault, READY_S)
            self.wait(lambda goal=goal: self._n_final(names) >= goal, f"{goal} rollouts before the fault of {fault}")
            made.log.append(f"{time.monotonic() - began:.0f} s: {self._n_final(names)} rollouts, {fault} killed")
            if fault == "assemble":
                made.reread = self._behind()
            self.strike(fault)
            if fault == "learner":
                at_learner = self.progress.newest_version
            opened.call()
        self.wait(lambda: self._n_final(names) == n_rollouts, f"all {n_rollouts} rollouts")
        opened.close()
        self.wait(lambda: opened.rollout_id in self.progress.finals, "the open rollout's trajectory")
        self.stack.wait_ready(timeout_s=READY_S)
        made.report = self.rest()
        made.versions = (first, self.progress.newest_version)
        made.versions_after_learner = self.progress.newest_version - at_learner
        made.seconds = time.monotonic() - began
        return made

    def strike(self, name: str) -> None:
        """kill -9. The load goes on, and the next fault may come before its successor is ready.

        But for Kafka: a role that starts without it ends again, which would look like a healthy one that was restarted.
        """
        if name == "kafka":
            self.stack.wait_ready(timeout_s=READY_S)
        self.kills[name] += 1
        self.stack.kill(name)
        if name == "kafka":
            self.stack.wait_ready(timeout_s=READY_S)

    def rest(self) -> Report:
        """The audit once nothing is under way any more, or as it is after a timeout.

        What was dropped is recorded with the next step that trains something; one more group makes that step.
        """
        if self._audited({"not_consumed"}).pending:
            publish(self.stack.settings, list(tasks(GROUP_SIZE, seed=-1)))
        return self._audited(set())

    def _audited(self, may_pend: set[str], timeout_s: float = 60.0) -> Report:
        deadline = time.monotonic() + timeout_s
        while True:
            report = audit(self.stack.settings, [self.ledger], grace_s=10.0)
            if report.settled(may_pend) or time.monotonic() > deadline:
                return report
            time.sleep(1.0)

    def restarts(self) -> dict[str, tuple[int, int]]:
        """Process -> (restarts, of which we caused): where the two differ, a healthy worker was restarted."""
        return {s.name: (s.restarts, self.kills[s.name]) for s in self.stack.statuses()}

    def _n_final(self, names: set[str]) -> int:
        return len(names & self.progress.finals.keys())

    def wait(self, reached: Callable[[], bool], what: str) -> None:
        """Until `reached`; gives up when no rollout has become final for a while."""
        n_before, since = len(self.progress.finals), time.monotonic()
        while not reached():
            n = len(self.progress.finals)
            if n > n_before:
                n_before, since = n, time.monotonic()
            states = ", ".join(f"{s.name} {s.phase}" for s in self.stack.statuses() if s.phase != "ready")
            stuck = f"no progress to {what}: {n} final in all; {states or 'all ready'}"
            assert time.monotonic() - since < READY_S, stuck
            time.sleep(0.1)

    def _behind(self) -> dict[int, int]:
        """Events that the assembler has read and that its successor will read again, by partition."""
        settings = self.stack.settings
        topic, group = settings.prefix + topics.EVENTS, f"{settings.prefix}assemble"
        lag = self._lag()
        reader = kafka.consumer(settings.kafka, group)
        try:
            ends = kafka.end_offsets(reader, topic)
            committed = reader.committed([TopicPartition(topic, p) for p in ends], timeout=10.0)
            read_to = {p: end - lag.get(p, 0) for p, (_, end) in ends.items()}
            return {tp.partition: read_to[tp.partition] - max(tp.offset, 0) for tp in committed}
        finally:
            reader.close()

    def _lag(self) -> dict[int, int]:
        url = self.stack.status("assemble").url
        with urllib.request.urlopen(f"{url}/metrics", timeout=10.0) as response:
            text = response.read().decode()
        found = re.findall(r'^leyden_assemble_lag_records\{partition="(\d+)"\} ([\d.e+]+)', text, re.M)
        return {int(partition): int(float(n)) for partition, n in found}
