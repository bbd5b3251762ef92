"""Every part killed in the middle of a load: nothing lost, nothing doubled, nothing trained twice, training goes on.

`make faults` runs LEYDEN_FAULT_ROUNDS=5 rounds of LEYDEN_FAULT_ROLLOUTS=2000; without them it is one small round.
"""

import os

import pytest

from .rounds import FAULTS, Bench, Round

pytestmark = [pytest.mark.faults, pytest.mark.kafka, pytest.mark.minio, pytest.mark.engine]
N_ROUNDS = int(os.environ.get("LEYDEN_FAULT_ROUNDS", "1"))
ROUND_TIMEOUT_S = 3600 if "LEYDEN_FAULT_ROLLOUTS" in os.environ else 300


@pytest.mark.timeout(ROUND_TIMEOUT_S)
@pytest.mark.parametrize("seed", range(N_ROUNDS))
def test_nothing_is_lost_doubled_or_trained_twice_when_every_part_is_killed_under_load(
    bench: Bench, n_rollouts: int, seed: int
) -> None:
    done = bench.round(seed, n_rollouts)
    report = "\n".join(done.report.lines())
    figures = f"round {seed}: {done.seconds:.0f} s, versions {done.versions}, read again {done.reread}"
    print("\n".join([figures, *done.log, report]))  # noqa: T201 - pytest shows it where the round fails
    assert done.report.clean, report
    assert done.report.settled(()), report
    assert done.report.figures["ledger_responses"] > 0
    assert done.versions_after_learner > 0, f"no version after the learner's restart: {done.versions}"
    assert max(done.reread.values()) <= bench.max_replay_events, done.reread
    assert {name for name, (n, ours) in bench.restarts().items() if n != ours} == set(), bench.restarts()


def test_the_faults_are_those_that_the_deployment_can_meet() -> None:
    assert {"gateway", "runner", "assemble", "learner", "reloader", "engine", "kafka"} <= set(FAULTS)
    assert Round(0, 0).report.clean
