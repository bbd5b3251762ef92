"""What the demo reports, read back from topics, manifests and the agents' ledger."""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ...avro import Checkpoint, Event, LLMCall, Trajectory, decode, decode_any
from ...infra import kafka, manifest, topics
from ...infra.checkpoint_log import read_lineage
from ...infra.lineage import Lineage
from ...infra.manifest import Manifest
from ...infra.objects import ObjectStore
from ...infra.settings import RoleSettings

Rollout = tuple[str, int]
"""(rollout_id, attempt)."""


@dataclass(slots=True)
class Facts:
    """All that the report is made of."""

    ledger: set[str] = field(default_factory=set)  # response ids that agents received whole
    in_kafka: set[str] = field(default_factory=set)  # response ids of completed calls in `events`
    in_trajectories: set[str] = field(default_factory=set)  # the same in trajectories
    versions_served: set[int] = field(default_factory=set)  # that calls were answered by
    trajectories: dict[Rollout, Trajectory] = field(default_factory=dict)  # the highest revision of each attempt
    manifests: list[Manifest] = field(default_factory=list)  # ascending
    live_ms: dict[int, int] = field(default_factory=dict)  # when a version was announced as live
    lineage: Lineage = field(default_factory=lambda: Lineage(""))


def gather(settings: RoleSettings, ledger: Path) -> Facts:
    """Read everything from its beginning. Raises KafkaUnavailableError, ObjectStoreError, DecodeError."""
    facts = Facts(lineage=read_lineage(settings))
    if ledger.exists():
        facts.ledger = {json.loads(line)["response_id"] for line in ledger.read_text().splitlines()}
    for message in kafka.read_all(settings.kafka, settings.prefix + topics.EVENTS):
        _see_event(facts, decode(message.value() or b"", Event))
    for message in kafka.read_all(settings.kafka, settings.prefix + topics.TRAJECTORIES):
        record = decode_any(message.value() or b"")
        if isinstance(record, Trajectory):
            known = facts.trajectories.get((record.rollout_id, record.attempt))
            if known is None or known.revision < record.revision:
                facts.trajectories[(record.rollout_id, record.attempt)] = record
    for trajectory in facts.trajectories.values():
        facts.in_trajectories |= {i for call in trajectory.calls if (i := completed_id(decode(call, Event)))}
    for message in kafka.read_all(settings.kafka, settings.prefix + topics.CHECKPOINTS):
        record = decode(message.value() or b"", Checkpoint)
        if record.state == "live":
            facts.live_ms.setdefault(record.version, record.ts_ms)
    objects = ObjectStore(settings.objects)
    found = manifest.versions(settings.policy, objects)
    facts.manifests = [manifest.load(settings.policy, version, objects)[0] for version in found]
    return facts


def completed_id(event: Event) -> str | None:
    """The response id of a call that was answered whole."""
    body = event.body
    return body.response_id if isinstance(body, LLMCall) and body.status == "completed" else None


def _see_event(facts: Facts, event: Event) -> None:
    if (response_id := completed_id(event)) is not None and isinstance(event.body, LLMCall):
        facts.in_kafka.add(response_id)
        facts.versions_served |= {v for v in (event.body.version_start, event.body.version_end) if v >= 0}


def train_rewards(facts: Facts) -> list[float]:
    """Mean sampled reward of the rollouts that each version after the first consumed, trained or not."""
    means = []
    for one in facts.manifests:
        rewards = [
            trajectory.reward
            for entry in one.batches
            for rollout_id, attempt, _ in entry.rollouts
            if (trajectory := facts.trajectories.get((rollout_id, attempt))) is not None
            and trajectory.reward is not None
        ]
        if one.parent is not None:
            means.append(sum(rewards) / len(rewards) if rewards else 0.0)
    return means


@dataclass(frozen=True, slots=True)
class Transitions:
    """LLM calls by what training made of them."""

    trained: int
    trained_twice: int
    dropped_stale: int
    n_validation: int  # trained although they were validation: must be 0
    staleness: list[int]  # of each trained call's rollout, in versions


def transitions(facts: Facts) -> Transitions:
    """Counted over the manifests; the calls of a rollout are those of its trajectory."""
    trained: Counter[Rollout] = Counter()
    stale, validation, staleness = 0, 0, list[int]()
    for one in facts.manifests:
        for entry in one.batches:
            for rollout_id, attempt, _ in entry.rollouts:
                trajectory = facts.trajectories.get((rollout_id, attempt))
                n_calls = trajectory.n_calls if trajectory else 0
                if entry.outcome == "trained":
                    trained[(rollout_id, attempt)] += 1
                    validation += bool(trajectory and trajectory.purpose == "validate")
                    if trajectory is not None and one.parent is not None:
                        age = facts.lineage.staleness(trajectory.oldest_version, one.parent)
                        staleness += [int(age)] * n_calls
                elif entry.reason == "stale":
                    stale += n_calls
    n_calls_of = {key: t.n_calls for key, t in facts.trajectories.items()}
    return Transitions(
        trained=sum(n_calls_of.get(key, 0) for key in trained),
        trained_twice=sum(n_calls_of.get(key, 0) * (times - 1) for key, times in trained.items()),
        dropped_stale=stale,
        n_validation=validation,
        staleness=staleness,
    )
