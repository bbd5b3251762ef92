"""Made-up deployments for the tests of the audit: whole, clean logs as facts, drawn from a seed."""

import random
from dataclasses import dataclass, field
from itertools import count

from leyden.infra.manifest import BatchEntry
from leyden.stream.audit.batches import BatchSeen, account, audit_ranges
from leyden.stream.audit.core import audit
from leyden.stream.audit.facts import (
    CallSeen,
    EndedSeen,
    GroupExpiredSeen,
    LedgerLine,
    MemberSeen,
    Outcome,
    RewardSeen,
    RolloutFact,
    StartedSeen,
    TrainedSeen,
    TrajectorySeen,
)
from leyden.stream.audit.report import Report
from leyden.stream.audit.world import Extent, VersionSeen, World

NOW_MS = 1_000_000_000


@dataclass
class Logs:
    """Facts of a deployment and the world around them."""

    facts: list[RolloutFact | GroupExpiredSeen] = field(default_factory=list)
    batches: list[tuple[BatchSeen, list[tuple[int, list[BatchEntry]]]]] = field(default_factory=list)
    world: World = field(default_factory=lambda: World("policy", NOW_MS, 60_000))

    def audit(self) -> Report:
        """As `leyden audit` does it, without the reading."""
        report = Report()
        audit_ranges(self.world, report)
        for batch, said in self.batches:
            account(batch, said, self.world, report)
        report.add(audit(self.facts, self.world))
        return report

    def of(self, kind: type) -> list:
        """The facts of a kind."""
        return [fact for fact in self.facts if isinstance(fact, kind)]


class Maker:
    """Draws a clean log: groups of rollouts, retries, late rewards, failed attempts, copies, open ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.logs = Logs()
        self.offsets = count()
        self.trajectory_offsets = count()
        self._finals: list[list[TrajectorySeen]] = []  # by offset of batches

    def make(self, n_groups: int = 6, n_versions: int = 3) -> Logs:
        """The log, everything in it settled but for one open rollout."""
        for number in range(n_groups):
            finals = self.group(number)
            if finals is not None:
                members = tuple(((t.rollout_id, t.attempt, t.revision), t.status == "succeeded") for t in finals)
                self.logs.batches.append((BatchSeen(f"g{number}", 0, len(self.logs.batches), members), []))
                self._finals.append(finals)
        world = self.logs.world
        world.events = Extent({0: 0}, {0: next(self.offsets)})
        world.trajectories = Extent({0: 0}, {0: next(self.trajectory_offsets)})
        world.batches = Extent({0: 0}, {0: len(self.logs.batches)})
        world.assembled_to, world.grouped_to = {0: NOW_MS}, {0: NOW_MS}
        self.versions(n_versions)
        self.open_rollout()
        return self.logs

    def group(self, number: int) -> list[TrajectorySeen] | None:
        """Its rollouts' final trajectories, None where it is not trained."""
        purpose = "validate" if self.random.random() < 0.15 else "train"
        size = self.random.choice([1, 2, 4])
        finals = [self.rollout(f"g{number}", size, f"g{number}r{i}", purpose) for i in range(size)]
        good = [t for t in finals if t.status == "succeeded"]
        return finals if purpose == "train" and len(good) >= min(2, size) else None

    def rollout(self, group: str, size: int, name: str, purpose: str) -> TrajectorySeen:
        attempts = 2 if self.random.random() < 0.2 else 1
        for attempt in range(1, attempts):
            self.attempt(group, size, name, attempt, purpose, "failed", final=False)
        status = "failed" if self.random.random() < 0.1 else "succeeded"
        return self.attempt(group, size, name, attempts, purpose, status, final=True)

    def attempt(
        self, group: str, size: int, name: str, attempt: int, purpose: str, status: str, final: bool
    ) -> TrajectorySeen:
        add, at, who = self.logs.facts.append, f"{name}a{attempt}", (name, attempt)
        first = next(self.offsets)
        add(StartedSeen(*who, f"{at}s", f"claim{at}", purpose, group, size, 0, first, 0))
        if self.random.random() < 0.2:
            add(StartedSeen(*who, f"{at}s2", f"other{at}", purpose, group, size, 0, next(self.offsets), 0))
        held: list[str] = []
        for n in range(self.random.randint(1, 4)):
            held.append(self.call(who, f"{at}c{n}", n))
        n_calls = len({c.event_id for c in self.logs.of(CallSeen) if (c.rollout_id, c.attempt) == who})
        rewards: list[float] = []
        if status == "succeeded":
            value = self.random.choice([0.0, 1.0])
            rewards = [value]
            add(RewardSeen(*who, f"{at}w0", 5, 9.0, "main", None, 0, next(self.offsets)))
            add(RewardSeen(*who, f"{at}w1", 6, value, "main", None, 0, next(self.offsets)))
        add(EndedSeen(*who, f"{at}e", f"claim{at}", status, n_calls, not final, 0, last := next(self.offsets), 9))
        trajectory = self.trajectory(group, size, who, 0, status, final, purpose, sum(rewards), first, last, held)
        if self.random.random() < 0.2:
            add(trajectory)
        if status == "succeeded" and self.random.random() < 0.2:
            late = RewardSeen(*who, f"{at}w2", 7, 0.5, "late", None, 0, last := next(self.offsets))
            add(late)
            rewards.append(0.5)
            trajectory = self.trajectory(group, size, who, 1, status, final, purpose, sum(rewards), first, last, held)
        return trajectory

    def trajectory(
        self,
        group: str,
        size: int,
        who: tuple[str, int],
        revision: int,
        status: str,
        final: bool,
        purpose: str,
        reward: float,
        first: int,
        last: int,
        held: list[str],
    ) -> TrajectorySeen:
        made = TrajectorySeen(
            *(*who, revision, f"{who}{revision}".encode(), status, final, purpose, "policy", group, size),
            *(reward if status == "succeeded" else None, 0, first, last, tuple(held)),
            *(0, next(self.trajectory_offsets)),
        )
        self.logs.facts.append(made)
        return made

    def call(self, who: tuple[str, int], at: str, n: int) -> str:
        """One call, sometimes with a retry, sometimes twice in the log; returns the event that speaks for it."""
        add, digest = self.logs.facts.append, bytes([n % 2])
        failed = self.random.random() < 0.2
        status = "failed" if failed else "completed"
        response = None if failed else f"r-{at}"
        call = CallSeen(*who, at, at, response, None, digest, 0, status, n * 10, 0, next(self.offsets), 3)
        add(call)
        if self.random.random() < 0.2:
            add(call)
        if not failed:
            if self.random.random() < 0.9:
                add(LedgerLine(*who, f"r-{at}", 3))
            return at
        again, late_us = f"{at}x", n * 10 + 1
        response, offset = f"r-{again}", next(self.offsets)
        add(CallSeen(*who, again, again, response, None, digest, 1, "completed", late_us, 0, offset, 4))
        add(LedgerLine(*who, response, 4))
        return again

    def versions(self, n_versions: int) -> None:
        """A base and versions that each consume a range; what lies behind the last is not consumed yet."""
        world, n = self.logs.world, len(self.logs.batches)
        bounds = sorted(self.random.randint(0, n) for _ in range(n_versions))
        world.versions[0] = VersionSeen(0, None, 0, 0)
        outcomes: list[tuple] = [() for _ in range(n)]
        for version, (lo, hi) in enumerate(zip([0, *bounds], bounds, strict=False), 1):
            world.versions[version] = VersionSeen(version, version - 1, lo, hi)
            for offset in range(lo, hi):
                batch, said = self.logs.batches[offset]
                trained = self.random.random() < 0.8
                names = [(t.rollout_id, t.attempt, t.revision) for t in self._finals[offset] if t.status == "succeeded"]
                outcome, reason = ("trained", None) if trained else ("dropped", "zero_variance")
                said.append((version, [BatchEntry(offset, batch.group_id, 0, outcome, reason, names)]))
                outcomes[offset] = (Outcome(version, outcome, reason),)
                if trained:
                    self.logs.facts += [TrainedSeen(*one, version, batch.group_id, 0, offset) for one in names]
        for offset, (batch, _) in enumerate(self.logs.batches):
            for t in self._finals[offset]:
                self.logs.facts.append(
                    MemberSeen(
                        *(t.rollout_id, t.attempt, t.revision, batch.group_id, 0, offset),
                        *(t.at_partition, t.at_offset, outcomes[offset]),
                    )
                )

    def open_rollout(self) -> None:
        """One that has not ended."""
        self.logs.facts.append(StartedSeen("open", 1, "os", "claim", "train", "gopen", 1, 0, 10**6, 0))
        self.call(("open", 1), "openc", 0)
