"""Rewards that come three published versions after their calls: as production feedback does."""

import os
from collections.abc import Iterable

import pytest
from leyden.infra import manifest
from leyden.infra.objects import ObjectStore

from .load import GROUP_SIZE, publish, reward, tasks
from .rounds import Bench

pytestmark = [pytest.mark.faults, pytest.mark.kafka, pytest.mark.minio, pytest.mark.engine]
N_WAVES = int(os.environ.get("LEYDEN_FAULT_WAVES", "3"))
GROUPS_A_WAVE = 2
VERSIONS_LATE = 3


class Waves:
    """Unrewarded groups, a few at a time, each rewarded three versions after its calls: that makes the next version."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._due: list[tuple[int, list[str]]] = []  # (version from which on it is rewarded, rollouts)
        self.rewarded: list[str] = []

    def begin(self, seed: int) -> None:
        """Run a wave; wait until its trajectories are there, without a reward."""
        names = self._run(seed, GROUPS_A_WAVE, rewarded=False)
        finals = self._bench.progress.finals
        assert all(finals[name].reward is None for name in names)
        self._due.append((max(finals[name].newest_version for name in names) + VERSIONS_LATE, names))

    def advance(self, seed: int) -> None:
        """Make one more version: of a wave that is due, or, where none is yet, of a group with a reward at once."""
        before = self._bench.progress.newest_version
        due = [names for version, names in self._due if version <= before]
        self._due = [wave for wave in self._due if wave[0] > before]
        for names in due:
            for n, name in enumerate(names):
                attempt = self._bench.progress.finals[name].attempt
                reward(self._bench.stack.gateway_url, name, attempt, float(n % GROUP_SIZE == 0))
            self.rewarded += names
        if not due:
            self._run(seed, 1, rewarded=True)
        self._bench.wait(lambda: self._bench.progress.newest_version > before, f"a version after {before}")

    @property
    def waiting(self) -> bool:
        """Whether a wave still has no reward."""
        return bool(self._due)

    def _run(self, seed: int, n_groups: int, rewarded: bool) -> list[str]:
        load = list(tasks(n_groups * GROUP_SIZE, seed, rewarded))
        names = [task.rollout_id for task in load]
        publish(self._bench.stack.settings, load)
        self._bench.wait(lambda: set(names) <= self._bench.progress.finals.keys(), f"{len(names)} rollouts")
        return names


def test_rewards_three_versions_late_are_trained(bench: Bench) -> None:
    waves = Waves(bench)
    for seed in range(N_WAVES):
        waves.begin(1000 + seed)
        waves.advance(2000 + seed)
    seed = N_WAVES
    while waves.waiting:
        waves.advance(2000 + seed)
        seed += 1
    report = bench.rest()
    assert report.clean, "\n".join(report.lines())
    trained = _trained(bench)
    share = sum(name in trained for name in waves.rewarded) / len(waves.rewarded)
    assert len(waves.rewarded) == N_WAVES * GROUPS_A_WAVE * GROUP_SIZE
    assert share >= 0.9, f"{share:.0%} of {len(waves.rewarded)} rollouts trained; dropped: {dict(report.dropped)}"


def _trained(bench: Bench) -> set[str]:
    settings = bench.stack.settings
    objects = ObjectStore(settings.objects)
    made: Iterable[manifest.Manifest] = (
        manifest.load(settings.policy, version, objects)[0] for version in manifest.versions(settings.policy, objects)
    )
    return {
        rollout_id
        for one in made
        for entry in one.batches
        if entry.outcome == "trained"
        for rollout_id, _, _ in entry.rollouts
    }
