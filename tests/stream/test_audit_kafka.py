"""`leyden audit` over real topics, manifests and ledgers: clean, or with a record deleted, doubled or trained again."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

import orjson
import pytest
from leyden.__main__ import app
from leyden.avro import (
    Event,
    LLMCall,
    Member,
    Reward,
    RolloutEnded,
    RolloutStarted,
    Trajectory,
    TransitionBatch,
    encode,
)
from leyden.infra import kafka, manifest, topics
from leyden.infra.local.stack import settings_env
from leyden.infra.manifest import BatchEntry, Manifest
from leyden.infra.objects import ObjectStore
from leyden.infra.parking import park
from leyden.infra.settings import RoleSettings
from typer.testing import CliRunner

pytestmark = [pytest.mark.kafka, pytest.mark.minio]
R = TypeVar("R", Event, Trajectory, TransitionBatch)
OLD_MS = 1_700_000_000_000  # long past any grace


def _call(who: str, n: int) -> LLMCall:
    return LLMCall(
        call_id=f"{who}-call{n}",
        started_us=n,
        request_digest=bytes([n] * 8),
        retry_count=0,
        status="completed",
        agent=None,
        response_id=f"{who}-response{n}",
        version_start=0,
        version_end=0,
        n_prompt_tokens=1,
        n_completion_tokens=1,
        ended_us=n + 1,
        first_token_us=None,
        policy="policy",
        model="policy",
        route="/v1/chat/completions",
        stream=False,
        http_status=200,
        error=None,
        finish_reason="stop",
        temperature=1.0,
        top_p=1.0,
        max_tokens=4,
        prompt_ids=b"\0\0\0\0",
        completion_ids=b"\0\0\0\0",
        logprobs=b"\0\0\0\0",
        request=b"{}",
        response=b"{}",
    )


class Damage(Protocol):
    """What becomes of a record that would be written: nothing, itself, several."""

    def __call__(self, record: R, /) -> list[R]: ...


@dataclass
class Writer:
    """Writes a group of two rollouts with two calls each, its batch, versions 0 and 1; `damage` changes records."""

    settings: RoleSettings
    ledger: Path
    damage: Damage
    places: dict[str, tuple[int, int]] = field(default_factory=dict)

    def write(self, retrained: bool = False) -> None:
        producer = kafka.producer(self.settings.kafka, linger_ms=0)
        self.send = lambda topic, key, value: kafka.send_and_wait(
            producer, self.settings.prefix + topic, key.encode(), value, 0
        )
        objects = ObjectStore(self.settings.objects)
        members = [member for who in ("a", "b") for member in self.rollout(who, objects)]
        for batch in self.damage(TransitionBatch("policy", "g", 0, None, "train", 2, "", members)):
            self.send(topics.BATCHES, "policy", encode(batch))
        # A trajectory and a batch behind: the readers have come past those above.
        last = next(iter(self.rollout("last", objects, group="other")))
        self.send(topics.BATCHES, "policy", encode(TransitionBatch("policy", "other", 0, None, "train", 1, "", [last])))
        rollouts = [(m.rollout_id, m.attempt, m.revision) for m in members]
        for version in range(3 if retrained else 2):
            entry = BatchEntry(max(0, version - 1), "g" if version == 1 else "other", 0, "trained", None, rollouts)
            made = Manifest(
                *("policy", version, "run", version - 1 if version else None, 0, max(0, version - 1), version),
                *([], {}, [entry] if version else [], {}),
            )
            manifest.create(made, objects)

    def rollout(self, who: str, objects: ObjectStore, group: str = "g") -> Iterator[Member]:
        """Events, ledger and trajectory of a rollout; the member that names it where it was written."""
        size = 2 if group == "g" else 1
        bodies = [
            RolloutStarted(f"{who}-claim", "train", "policy", group, size, "", "runner"),
            *(_call(who, n) for n in range(2)),
            Reward(1.0, "test", "main"),
            RolloutEnded(f"{who}-claim", "succeeded", 2),
        ]
        events = [Event(f"{who}-event{n}", who, 1, OLD_MS + n, body) for n, body in enumerate(bodies)]
        offsets = [
            self.send(topics.EVENTS, who, park(one, objects))[1] for event in events for one in self.damage(event)
        ]
        with self.ledger.open("ab") as out:
            for n in range(2):
                line = {"rollout_id": who, "attempt": 1, "response_id": f"{who}-response{n}", "ts_ms": OLD_MS}
                out.write(orjson.dumps(line) + b"\n")
        whole = Trajectory(
            *(group, who, 1, 0, "succeeded", True, "train", "policy", size, "", 1.0, 2, 2, 0, 0, OLD_MS, OLD_MS),
            *(0, offsets[0], offsets[-1], [], [encode(event) for event in events[1:3]], []),
        )
        # Parked: the audit must look behind the reference.
        places = [
            self.send(topics.TRAJECTORIES, group, park(one, objects, limit_bytes=10)) for one in self.damage(whole)
        ]
        if places:
            yield Member(who, 1, 0, *places[0], "succeeded", 1.0, 0, 0, 2, 2)


def _nothing(record: R) -> list[R]:
    return [record]


def _lose(body: type, who: str) -> Damage:
    def damage(record: R) -> list[R]:
        seen = record.body if isinstance(record, Event) else record
        return [] if isinstance(seen, body) and getattr(record, "rollout_id", who) == who else [record]

    return damage


def _double_call(record: R) -> list[R]:
    if isinstance(record, Event) and isinstance(record.body, LLMCall):
        return [record, replace(record, event_id=record.event_id + "-again")]
    return [record]


def _double_trajectory(record: R) -> list[R]:
    return [record, replace(record, reward=0.5)] if isinstance(record, Trajectory) else [record]


def _copy(record: R) -> list[R]:
    return [record] if isinstance(record, TransitionBatch) else [record, record]


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        (_nothing, None),
        (_copy, None),
        (_lose(LLMCall, "a"), "ledger_call_missing"),
        (_lose(Trajectory, "a"), "trajectory_lost"),
        (_lose(TransitionBatch, "a"), "batch_lost"),
        (_double_call, "call_doubled"),
        (_double_trajectory, "revision_differs"),
    ],
)
def test_the_audit_finds_what_was_deleted_or_doubled_and_passes_a_clean_log(
    deployment: RoleSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Damage,
    finding: str | None,
) -> None:
    code, report = _audit(deployment, tmp_path, monkeypatch, damage)
    if finding is None:
        assert (code, report["findings"]) == (0, {})
        assert report["figures"]["ledger_responses"] == report["figures"]["calls_in_trajectories"] == 6
        assert report["figures"]["rollouts_trained"] == 2
        assert report["pending"] == {"not_consumed": 1}
    else:
        assert code == 1
        assert finding in report["findings"]


def test_the_audit_finds_a_rollout_that_was_trained_again(
    deployment: RoleSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, report = _audit(deployment, tmp_path, monkeypatch, _nothing, retrained=True)
    assert code == 1
    assert report["findings"]["trained_twice"]["count"] == 2


def _audit(
    settings: RoleSettings,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Damage,
    retrained: bool = False,
) -> tuple[int, dict]:
    topics.apply(kafka.admin(settings.kafka), settings.prefix, settings.kafka)
    ledger = folder / "ledger.jsonl"
    Writer(settings, ledger, damage).write(retrained)
    for key in [key for key in os.environ if key.startswith("LEYDEN_")]:
        monkeypatch.delenv(key)
    for key, value in settings_env(settings).items():
        monkeypatch.setenv(key, value)
    result = CliRunner().invoke(app, ["audit", "--json", "--ledger", str(ledger)])
    return result.exit_code, orjson.loads(result.output)
