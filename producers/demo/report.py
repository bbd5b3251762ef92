"""The demo's report and the bars that it is held to; pure over the facts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..training.results import RolloutResult, mean_reward
from .facts import Facts, train_rewards, transitions


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The same problems before and after."""

    before: Sequence[RolloutResult]
    after: Sequence[RolloutResult]

    def figures(self) -> dict[str, Any]:
        """What the report says of it."""
        before, after = mean_reward(self.before), mean_reward(self.after)
        return {"n": len(self.after), "before": _round(before), "after": _round(after)}


def make_report(
    facts: Facts, model: str, evaluations: Mapping[str, Evaluation], minutes: float, reload_seconds: Sequence[float]
) -> dict[str, Any]:
    """report.json."""
    rewards, counted = train_rewards(facts), transitions(facts)
    ages = counted.staleness
    return {
        "model": model,
        "task": "word problems with a calculator: one call of the tool, one answer",
        "steps": len(rewards),
        "minutes": _round(minutes, 2),
        "train_reward": [_round(r) for r in rewards],
        "heldout": {name: evaluation.figures() for name, evaluation in evaluations.items()},
        "versions_served": sorted(facts.versions_served),
        "calls": {
            "seen_by_agent": len(facts.ledger),
            "in_kafka": len(facts.in_kafka),
            "in_trajectories": len(facts.in_trajectories),
        },
        "transitions": {
            "trained": counted.trained,
            "trained_twice": counted.trained_twice,
            "dropped_stale": counted.dropped_stale,
        },
        "reload_seconds": [_round(s, 2) for s in reload_seconds],
        "staleness": {"mean": _round(sum(ages) / len(ages) if ages else 0.0), "max": max(ages, default=0)},
    }


@dataclass(frozen=True, slots=True)
class Bar:
    """One thing that must hold."""

    name: str
    value: str
    holds: bool


def bars(report: Mapping[str, Any], facts: Facts) -> list[Bar]:
    """What a run is held to."""
    rewards, heldout, calls = report["train_reward"], report["heldout"], report["calls"]
    first, last = _mean(rewards[:2]), _mean(rewards[-3:])
    moved, counted = report["transitions"], transitions(facts)
    share = moved["dropped_stale"] / max(1, moved["dropped_stale"] + moved["trained"])
    unseen, known = (_gain(heldout[name]) for name in ("unseen_wordings", "known_wordings"))
    return [
        Bar("sampled reward, first two updates, at most 0.25", f"{first:.3f}", first <= 0.25),
        Bar("sampled reward, last three updates, at least 0.55", f"{last:.3f}", last >= 0.55),
        Bar("unseen wordings, gain at least 0.20", f"{unseen:+.3f}", unseen >= 0.20),
        Bar("known wordings, gain at least 0.15", f"{known:+.3f}", known >= 0.15),
        Bar("minutes of learning, at most 10", f"{report['minutes']:.1f}", report["minutes"] <= 10),
        Bar("the agent, Kafka and trajectories have the same calls", _counts(calls), _same_calls(facts)),
        Bar("transitions trained twice: none", str(moved["trained_twice"]), moved["trained_twice"] == 0),
        Bar("dropped as stale, at most 20 %", f"{share:.1%}", share <= 0.20),
        Bar("validation rollouts trained: none", str(counted.n_validation), counted.n_validation == 0),
        Bar("versions served, at least 5", str(len(report["versions_served"])), len(report["versions_served"]) >= 5),
    ]


def examples(evaluation: Evaluation, n: int) -> list[tuple[str, str, str, str]]:
    """(question, answer, reply before, reply after) of `n` problems, in the order of the evaluation."""
    rows = []
    for before, after in list(zip(evaluation.before, evaluation.after, strict=True))[:n]:
        rows.append((before.task["question"], str(before.task["answer"]), _shown(before), _shown(after)))
    return rows


def _shown(result: RolloutResult) -> str:
    return " → ".join(reply.strip() for reply in result.replies()) + (" ✓" if result.reward else " ✗")


def _same_calls(facts: Facts) -> bool:
    return facts.ledger == facts.in_kafka == facts.in_trajectories


def _counts(calls: Mapping[str, int]) -> str:
    return " = ".join(str(n) for n in calls.values()) if len(set(calls.values())) == 1 else str(dict(calls))


def _gain(figures: Mapping[str, Any]) -> float:
    return (figures["after"] or 0.0) - (figures["before"] or 0.0)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _round(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else round(value, digits)
