"""The demo's report, over hand-made facts."""

from pathlib import Path

import pytest
from leyden.avro import Checkpoint, Trajectory
from leyden.examples.word_problems.reward import score
from leyden.examples.word_problems.tasks import KINDS, TRAINED, UNSEEN, generate
from leyden.infra.lineage import fold
from leyden.infra.manifest import BatchEntry, Manifest
from leyden.producers.demo.facts import Facts, train_rewards, transitions
from leyden.producers.demo.plot import draw
from leyden.producers.demo.report import Evaluation, bars, make_report
from leyden.producers.training.results import RolloutResult


def trajectory(rollout: str, reward: float | None, purpose: str = "train", oldest: int = 0) -> Trajectory:
    return Trajectory(
        *("g", rollout, 1, 0, "succeeded", True, purpose, "policy", 2, "d", reward, 2, 9, oldest, oldest, 0, 1),
        *(0, 0, 1, [], [], [], None),
    )


def version(number: int, *batches: BatchEntry) -> Manifest:
    parent = number - 1 if number else None
    return Manifest("policy", number, "run", parent, 0, 0, 0, [], {}, list(batches), {})


def entry(outcome: str, reason: str | None, *rollouts: str) -> BatchEntry:
    return BatchEntry(0, "g", 0, outcome, reason, [(r, 1, 0) for r in rollouts])


@pytest.fixture
def facts() -> Facts:
    records = [Checkpoint("policy", v, "candidate", v - 1 if v else None, "", "", b"", "", 0) for v in range(4)]
    return Facts(
        ledger={"x"},
        in_kafka={"x"},
        in_trajectories={"x"},
        versions_served={0, 1, 2},
        trajectories={
            (t.rollout_id, 1): t
            for t in (
                trajectory("a", 1.0),
                trajectory("b", 0.0),
                trajectory("c", 1.0, oldest=0),
                trajectory("d", 1.0, oldest=2),
                trajectory("v", 1.0, "validate"),
            )
        },
        manifests=[
            version(0),
            version(1, entry("trained", None, "a"), entry("dropped", "zero_variance", "b")),
            version(2, entry("trained", None, "c"), entry("dropped", "stale", "b")),
            version(3, entry("trained", None, "d")),
        ],
        lineage=fold("policy", records),
    )


def test_rewards_are_those_of_all_rollouts_that_a_version_consumed(facts: Facts) -> None:
    assert train_rewards(facts) == [0.5, 0.5, 1.0]


def test_transitions_are_calls_and_their_staleness_counts_ancestors(facts: Facts) -> None:
    counted = transitions(facts)
    assert (counted.trained, counted.trained_twice, counted.dropped_stale, counted.n_validation) == (6, 0, 2, 0)
    assert counted.staleness == [0, 0, 1, 1, 0, 0]


def test_a_rollout_in_two_versions_is_trained_twice_and_a_validation_one_is_seen(facts: Facts) -> None:
    facts.manifests.append(version(4, entry("trained", None, "a", "v")))
    counted = transitions(facts)
    assert (counted.trained_twice, counted.n_validation) == (2, 1)


def test_the_report_has_its_keys_and_a_missing_call_misses_a_bar(facts: Facts, tmp_path: Path) -> None:
    before, after = (RolloutResult("r", "g", "succeeded", r, {}, 2, 0, 0) for r in (0.0, 1.0))
    evaluation = Evaluation([before], [after])
    report = make_report(facts, "m", {"unseen_wordings": evaluation, "known_wordings": evaluation}, 1.0, [0.5])
    assert list(report) == [
        *("model", "task", "steps", "minutes", "train_reward", "heldout", "versions_served", "calls", "transitions"),
        *("reload_seconds", "staleness"),
    ]
    assert report["heldout"]["unseen_wordings"] == {"n": 1, "before": 0.0, "after": 1.0}
    assert report["staleness"] == {"mean": 0.3333, "max": 1}
    draw(report, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    missed = {bar.name for bar in bars(report, facts) if not bar.holds}
    facts.in_trajectories.clear()
    assert {bar.name for bar in bars(report, facts) if not bar.holds} - missed == {
        "the agent, Kafka and trajectories have the same calls"
    }


def test_problems_are_the_same_for_a_seed_and_their_answers_are_right() -> None:
    problems = generate("s", 200, (*TRAINED, *UNSEEN))
    assert problems == generate("s", 200, (*TRAINED, *UNSEEN))
    assert {p["kind"] for p in problems} == set(KINDS)
    assert all(p["answer"] >= 0 for p in problems)


@pytest.mark.parametrize(
    ("reply", "reward"),
    [("Answer: 12", 1.0), (" Answer: 12.0 ", 1.0), ("Answer: 13", 0.0), ("12", 0.0), ("Answer: 12 apples", 0.0)],
)
def test_only_a_right_answer_in_the_right_form_is_rewarded(reply: str, reward: float) -> None:
    assert score(reply, 12) == reward
