"""The stream roles as processes, on a real Kafka and MinIO."""

import random
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from leyden.avro import DeadLetter, Event, LLMCall, encode, now_ms
from leyden.infra import topics
from leyden.infra.objects import ObjectStore
from leyden.infra.parking import unpark
from leyden.infra.settings import RoleSettings

from .rollouts import called, ended, rewarded, started
from .workers import batches, eventually, produce, read, trajectories, workers

pytestmark = [pytest.mark.kafka, pytest.mark.minio]


def keyed(*events: Event) -> list:
    """With the key of the topic, and as of now: deadlines are event time."""
    return [(e.rollout_id, replace(e, ts_ms=now_ms())) for e in events]


def rollout(name: str, group: str, size: int = 2, n_calls: int = 2, purpose: str = "train") -> list[Event]:
    """Events of one rewarded rollout."""
    calls = [called(name, n) for n in range(n_calls)]
    begin = started(name, group_id=group, group_size=size, purpose=purpose)
    return [begin, *calls, rewarded(name, 1.0), ended(name, n_calls)]


def large(event: Event, n_bytes: int) -> Event:
    """The call with a response that does not compress."""
    assert isinstance(event.body, LLMCall)
    return replace(event, body=replace(event.body, response=random.Random(1).randbytes(n_bytes)))


def test_events_become_trajectories_and_batches(deployment: RoleSettings, tmp_path: Path):
    late = keyed(started("late", group_id="late", group_size=1), called("late", 0), ended("late", 1))
    validation = rollout("val", "val", 1, purpose="validate")
    huge = [started("huge", group_id="huge", group_size=1), *(large(called("huge", n), 600_000) for n in (0, 1)),
            rewarded("huge", 1.0), ended("huge", 2)]  # fmt: skip
    with workers(deployment, tmp_path, "assemble", "group"):
        events = keyed(*rollout("a", "g"), *rollout("b", "g"), *validation, *huge)
        produce(deployment, topics.EVENTS, [*events, *late, ("a", b"\xc3\x01 no record"), ("late", b"")])
        first = eventually(lambda: batches(deployment), lambda b: len(b) == 2)
        assert {b.group_id: len(b.members) for b in first} == {"g": 2, "huge": 1}
        letters = eventually(lambda: read(deployment, topics.DEAD_LETTERS), lambda letters: len(letters) == 2)
        assert {d.reason for d in letters if isinstance(d, DeadLetter)} == {"undecodable"}

        produce(deployment, topics.EVENTS, keyed(rewarded("late", 0.5)))
        assert eventually(lambda: batches(deployment), lambda b: len(b) == 3)[-1].group_id == "late"

    found = {(t.rollout_id, t.revision): t for t in trajectories(deployment)}
    whole = dict.fromkeys((("a", 0), ("b", 0), ("val", 0), ("huge", 0)), 1.0)
    assert {key: t.reward for key, t in found.items()} == whole | {("late", 0): None, ("late", 1): 0.5}
    assert found["late", 1].calls == [encode(late[1][1])]
    parked = found["huge", 0]
    assert parked.parked is not None
    assert [len(c) > 600_000 for c in unpark(parked, ObjectStore(deployment.objects)).calls] == [True, True]


def test_kills_lose_nothing_and_copies_are_equal(deployment: RoleSettings, tmp_path: Path):
    rng = random.Random(5)
    names = [f"r{i}" for i in range(240)]
    threads = [keyed(started("open", group_id="open", group_size=1), called("open", 0))]
    threads += [keyed(*rollout(name, f"g{i // 4}", 4)) for i, name in enumerate(names)]
    with workers(
        deployment, tmp_path, "assemble", "assemble", "group", "group", session_timeout_s=6, max_replay_events=300,
        payload_cache_bytes=20_000, recent_closed=10,
    ) as running:  # fmt: skip
        steps = ["assemble", "group", "assemble", "group"]
        while threads:
            log = []
            for _ in range(min(300, sum(map(len, threads)))):
                thread = rng.choice(threads[:60])
                log.append(thread.pop(0))
                threads = [t for t in threads if t]
            produce(deployment, topics.EVENTS, log)
            if steps:
                role = steps.pop(0)
                n = len(trajectories(deployment))
                running.kill(role, rng.choice([signal.SIGKILL, signal.SIGTERM]))
                running.start(role)
                if role == "assemble":
                    eventually(lambda n=n: len(trajectories(deployment)), lambda now, n=n: now > n)
        produce(deployment, topics.EVENTS, keyed(*(rewarded(name, 2.0, "late") for name in names[:8])))
        eventually(lambda: trajectories(deployment), lambda t: len({(x.rollout_id, x.revision) for x in t}) >= 248)
        eventually(lambda: {b.group_id for b in batches(deployment)}, lambda g: len(g) == 60)
        produce(deployment, topics.EVENTS, keyed(rewarded("open", 1.0), ended("open", 1)))
        eventually(lambda: {b.group_id for b in batches(deployment)}, lambda g: len(g) == 61)
        assert sorted(running.alive()) == ["assemble", "assemble", "group", "group"]

    seen: dict[tuple, bytes] = {}
    for t in trajectories(deployment):
        assert seen.setdefault((t.rollout_id, t.revision), encode(t)) == encode(t)
        assert t.n_calls == len(t.calls) == (1 if t.rollout_id == "open" else 2)
    assert len(seen) == 240 + 8 + 1
    known: dict[tuple, bytes] = {}
    for b in batches(deployment):
        assert known.setdefault((b.group_id, b.revision), encode(b)) == encode(b)


def test_deadlines_close_what_nobody_ends(deployment: RoleSettings, tmp_path: Path):
    with workers(deployment, tmp_path, "assemble", idle_timeout_s=1, close_grace_s=0.5):
        produce(deployment, topics.EVENTS, keyed(started("idle"), called("idle", 0)))
        produce(deployment, topics.EVENTS, keyed(started("grace"), called("grace", 0), ended("grace", 3)))
        found = eventually(lambda: trajectories(deployment), lambda t: len(t) == 2)
    states = {t.rollout_id: (t.status, t.final, t.n_calls) for t in found}
    assert states == {"idle": ("expired", True, 1), "grace": ("succeeded", True, 1)}


def test_a_worker_ends_cleanly_when_told_to(deployment: RoleSettings, tmp_path: Path):
    with workers(deployment, tmp_path, "assemble") as running:
        produce(deployment, topics.EVENTS, keyed(*rollout("a", "g", 1)))
        eventually(lambda: trajectories(deployment), lambda t: len(t) == 1)
        assert running.kill("assemble", signal.SIGTERM).wait(30) == 0
    assert list((deployment.state_dir / "assemble").iterdir()) == []
