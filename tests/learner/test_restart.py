"""The learner against a real Kafka and MinIO: killed anywhere, nothing is trained twice and nothing skipped."""

import multiprocessing
import runpy
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from leyden.avro import (
    Checkpoint,
    DeadLetter,
    Event,
    LLMCall,
    Member,
    Trajectory,
    TransitionBatch,
    decode,
    encode,
    now_ms,
    pack_floats,
    pack_ids,
)
from leyden.infra import deployment as deploy
from leyden.infra import kafka, manifest, topics
from leyden.infra.checkpoint_log import CheckpointWriter, read_lineage
from leyden.infra.manifest import Manifest
from leyden.infra.objects import ObjectStore
from leyden.infra.parking import park
from leyden.infra.settings import RoleSettings
from leyden.learner.settings import LearnerSettings

N_GROUPS, PER_GROUP, PER_STEP = 8, 3, 2
DEADLINE_S = 120.0
pytestmark = [pytest.mark.kafka, pytest.mark.minio]


@pytest.fixture(scope="module")
def spawner() -> Any:
    """Processes that start with torch and transformers imported already, and share nothing with this one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["leyden.learner.main", "transformers.models.llama.modeling_llama"])
    return context


@pytest.fixture
def settings(deployment: RoleSettings, tiny_model_dir: Path) -> LearnerSettings:
    deploy.apply(deployment)
    return LearnerSettings(
        **{name: getattr(deployment, name) for name in ("prefix", "kafka", "objects", "state_dir")},
        model=tiny_model_dir,
        groups_per_step=PER_STEP,
        step_max_wait_s=60.0,
        learning_rate=1e-3,
        threads=1,
    )


@pytest.fixture
def learner(spawner: Any, settings: LearnerSettings) -> Iterator[Callable[..., BaseProcess]]:
    """Starts a learner, on demand one that dies at a point of publishing a version."""
    started: list[BaseProcess] = []

    def start(point: str | None = None, version: int = 1, **changes: Any) -> BaseProcess:
        given = {"settings": settings.model_copy(update=changes), "point": point, "version": version}
        process = spawner.Process(
            target=runpy.run_path, args=(str(Path(__file__).parent / "killed_learner.py"), given), daemon=True
        )
        process.start()
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.join()


def call_event(rollout: str, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    completion = rng.integers(3, 250, 6)
    call = LLMCall(
        call_id=f"{rollout}-call",
        started_us=0,
        request_digest=b"",
        retry_count=0,
        status="completed",
        agent=None,
        response_id=None,
        version_start=0,
        version_end=0,
        n_prompt_tokens=9,
        n_completion_tokens=6,
        ended_us=0,
        first_token_us=None,
        policy="policy",
        model="policy",
        route="",
        stream=False,
        http_status=200,
        error=None,
        finish_reason="stop",
        temperature=1.0,
        top_p=1.0,
        max_tokens=None,
        prompt_ids=pack_ids(list(range(5, 14))),
        completion_ids=pack_ids(completion.tolist()),
        logprobs=pack_floats([-5.5] * 6),
        request=b"{}",
        response=b"{}",
    )
    return encode(Event(f"{rollout}-event", rollout, 1, 0, call))


def trajectory(group: str, rollout: str, reward: float, seed: int) -> Trajectory:
    return Trajectory(
        group_id=group,
        rollout_id=rollout,
        attempt=1,
        revision=0,
        status="succeeded",
        final=True,
        purpose="train",
        policy="policy",
        group_size=PER_GROUP,
        task_digest="",
        reward=reward,
        n_calls=1,
        n_completion_tokens=6,
        oldest_version=0,
        newest_version=0,
        started_ms=0,
        ended_ms=0,
        partition=0,
        first_offset=0,
        last_offset=0,
        rewards=[],
        calls=[call_event(rollout, seed)],
        notes=[],
    )


def write_groups(settings: RoleSettings, numbers: range) -> list[TransitionBatch]:
    """Groups with rewards that differ, but for number 3, whose rewards are alike."""
    producer = kafka.producer(settings.kafka)
    batches = []
    for number in numbers:
        members = []
        for i in range(PER_GROUP):
            reward = 1.0 if number == 3 else float(i % 2)
            whole = trajectory(f"g{number}", f"g{number}-{i}", reward, 100 * number + i)
            partition, offset = kafka.send_and_wait(
                producer, settings.prefix + topics.TRAJECTORIES, None, encode(whole), partition=i
            )
            members.append(Member(whole.rollout_id, 1, 0, partition, offset, "succeeded", reward, 0, 0, 1, 6))
        batch = TransitionBatch("policy", f"g{number}", 0, None, "train", PER_GROUP, "", members)
        kafka.send_and_wait(producer, settings.prefix + topics.BATCHES, b"policy", encode(batch), partition=0)
        batches.append(batch)
    return batches


def write_session(settings: RoleSettings, name: str, reward: float) -> None:
    """A rollout of production traffic: a group of its own."""
    producer = kafka.producer(settings.kafka)
    whole = replace(trajectory(name, name, reward, seed=7), purpose="serve", status="expired", group_size=1)
    place = kafka.send_and_wait(producer, settings.prefix + topics.TRAJECTORIES, None, encode(whole), partition=0)
    members = [Member(name, 1, 0, *place, "expired", reward, 0, 0, 1, 6)]
    batch = TransitionBatch("policy", name, 0, None, "serve", 1, "", members)
    kafka.send_and_wait(producer, settings.prefix + topics.BATCHES, b"policy", encode(batch), partition=0)


def write_damaged_group(settings: RoleSettings) -> None:
    """Four rollouts: a good and a bad one, one with a call cut short, one with a call whose parked object is gone."""
    producer, objects = kafka.producer(settings.kafka), ObjectStore(settings.objects)
    parked = park(decode(call_event("lost", 4), Event), objects, limit_bytes=100)
    objects.remove(objects.list_keys("parked/"))
    calls = {"good": call_event("good", 1), "bad": call_event("bad", 2), "broken": call_event("broken", 3)[:-3]}
    members = []
    for name, call in (calls | {"lost": parked}).items():
        whole = replace(trajectory("g", name, float(name == "good"), seed=1), calls=[call])
        place = kafka.send_and_wait(producer, settings.prefix + topics.TRAJECTORIES, None, encode(whole), partition=0)
        members.append(Member(name, 1, 0, *place, "succeeded", whole.reward, 0, 0, 1, 6))
    batch = TransitionBatch("policy", "g", 0, None, "train", 4, "", members)
    kafka.send_and_wait(producer, settings.prefix + topics.BATCHES, b"policy", encode(batch), partition=0)


def manifests(settings: RoleSettings) -> list[Manifest]:
    store = ObjectStore(settings.objects)
    return [manifest.load("policy", v, store)[0] for v in manifest.versions("policy", store)]


def wait_for(settings: RoleSettings, offset: int) -> list[Manifest]:
    """All manifests once one has consumed up to `offset`."""
    deadline, found = time.monotonic() + DEADLINE_S, list[Manifest]()
    while time.monotonic() < deadline:
        if (found := manifests(settings)) and found[-1].offset_to >= offset:
            return found
        time.sleep(0.1)
    raise AssertionError(f"no version consumed up to {offset}: {[(m.version, m.offset_to) for m in found]}")


def ended(process: BaseProcess) -> int | None:
    process.join(DEADLINE_S)
    return process.exitcode


def stop(process: BaseProcess) -> None:
    process.terminate()
    assert ended(process) == 0


def assert_each_group_once(found: list[Manifest], n_groups: int) -> None:
    entries = [entry for m in found for entry in m.batches]
    assert [entry.offset for entry in entries] == list(range(n_groups))
    assert {entry.group_id: entry.outcome for entry in entries} == {
        f"g{n}": "dropped" if n == 3 else "trained" for n in range(n_groups)
    }
    assert all(len(entry.rollouts) == PER_GROUP for entry in entries)
    assert [m.offset_from for m in found[1:]] == [m.offset_to for m in found[:-1]]
    assert [m.version for m in found] == list(range(len(found)))
    assert [m.parent for m in found] == [None, *range(len(found) - 1)]


def served_digest(of: Manifest) -> str:
    return next(f.sha256 for f in of.files if f.name == "serve/model.safetensors")


def test_killed_at_every_point_it_ends_with_the_very_weights_of_an_undisturbed_run(
    settings: LearnerSettings, learner: Callable[..., BaseProcess]
) -> None:
    write_groups(settings, range(N_GROUPS))
    for version, point in enumerate(["before_manifest", "after_serve", "before_announcement", "after_announcement"]):
        assert ended(learner(point, version)) == -signal.SIGKILL, point
    process = learner()
    disturbed = wait_for(settings, N_GROUPS)
    stop(process)
    assert_each_group_once(disturbed, N_GROUPS)
    announced = read_lineage(settings)
    assert sorted(announced.versions) == [m.version for m in disturbed]
    other = {"policy": "policy", "objects": settings.objects.model_copy(update={"bucket": settings.prefix + "other"})}
    ObjectStore(other["objects"]).ensure_bucket()
    undisturbed_settings = settings.model_copy(update=other)
    process = learner(**other, prefix=copy_topics(settings))
    undisturbed = wait_for(undisturbed_settings, N_GROUPS)
    stop(process)
    assert [m.batches for m in undisturbed] == [m.batches for m in disturbed]
    assert served_digest(undisturbed[-1]) == served_digest(disturbed[-1])
    assert served_digest(undisturbed[-1]) != served_digest(undisturbed[0])


def copy_topics(settings: RoleSettings) -> str:
    """The same groups under another prefix, which is returned."""
    other = settings.model_copy(update={"prefix": settings.prefix + "copy."})
    topics.apply(kafka.admin(settings.kafka), other.prefix, settings.kafka)
    write_groups(other, range(N_GROUPS))
    return other.prefix


def test_after_a_rollback_training_goes_on_from_the_live_version(
    settings: LearnerSettings, learner: Callable[..., BaseProcess]
) -> None:
    write_groups(settings, range(3))
    process = learner(groups_per_step=1)
    found = wait_for(settings, 3)
    assert [m.version for m in found] == [0, 1, 2, 3]
    announced = read_lineage(settings).versions
    gone = [replace(announced[v], state="rolled_back") for v in (2, 3)]
    CheckpointWriter(settings).write([*gone, replace(announced[1], state="live")])
    write_groups(settings, range(4, 5))
    after = wait_for(settings, 4)
    stop(process)
    assert (after[-1].version, after[-1].parent, after[-1].offset_from) == (4, 1, 3)
    # A restart stands where the running learner stood.
    write_groups(settings, range(5, 6))
    process = learner(groups_per_step=1)
    restarted = wait_for(settings, 5)
    stop(process)
    assert (restarted[-1].version, restarted[-1].parent, restarted[-1].offset_from) == (5, 4, 4)


def test_production_traffic_is_trained_against_a_baseline_that_survives_a_restart(
    settings: LearnerSettings, learner: Callable[..., BaseProcess]
) -> None:
    opted_in = {"groups_per_step": 1, "train_on_serve": True}
    write_session(settings, "first", 0.0)
    write_session(settings, "second", 1.0)
    process = learner(**opted_in)
    found = wait_for(settings, 2)
    stop(process)
    assert [(e.group_id, e.reason) for e in found[-1].batches] == [("first", "no_baseline"), ("second", None)]
    assert found[-1].metrics["reward_baseline"] == pytest.approx(0.05)
    write_session(settings, "third", 1.0)
    process = learner(**opted_in)
    after = wait_for(settings, 3)
    stop(process)
    assert [(e.group_id, e.outcome) for e in after[-1].batches] == [("third", "trained")]
    assert after[-1].metrics["reward_baseline"] == pytest.approx(0.95 * 0.05 + 0.05)


def test_a_rollout_that_cannot_be_read_is_dropped_and_the_rest_of_its_group_trains(
    settings: LearnerSettings, learner: Callable[..., BaseProcess]
) -> None:
    write_damaged_group(settings)
    process = learner(groups_per_step=1)
    found = wait_for(settings, 1)
    stop(process)
    fates = {(e.outcome, e.reason): [name for name, *_ in e.rollouts] for e in found[-1].batches}
    assert fates == {
        ("dropped", "undecodable"): ["broken"],
        ("dropped", "payload_lost"): ["lost"],
        ("trained", None): ["good", "bad"],
    }
    letters = [
        decode(m.value() or b"", DeadLetter)
        for m in kafka.read_all(settings.kafka, settings.prefix + topics.DEAD_LETTERS)
    ]
    assert [(at.topic, at.offset, at.reason) for at in letters] == [
        (settings.prefix + topics.BATCHES, 0, "undecodable"),
        (settings.prefix + topics.BATCHES, 0, "payload_lost"),
    ]
    assert "rollout lost, attempt 1, call 0: object parked/" in letters[1].detail


def test_a_second_learner_of_the_policy_loses_and_ends(
    settings: LearnerSettings, learner: Callable[..., BaseProcess]
) -> None:
    write_groups(settings, range(1))
    first = learner(groups_per_step=1)
    wait_for(settings, 1)
    rival = Manifest("policy", 2, "rival", 1, now_ms(), 1, 2, [], {}, [], {})
    manifest.create(rival, ObjectStore(settings.objects))
    write_groups(settings, range(1, 3))
    assert ended(first) not in (0, None)
    assert [m.run_id for m in manifests(settings)][-1] == "rival"


def test_checkpoints_of_strangers_do_not_matter(settings: LearnerSettings) -> None:
    stranger = Checkpoint("other", 7, "candidate", None, "", "", b"", "{}", 0)
    CheckpointWriter(settings).write([stranger])
    assert read_lineage(settings).versions == {}
