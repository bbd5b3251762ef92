"""The runner on a real Kafka, with a scripted stand-in for the gateway's settle route."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from confluent_kafka import TopicPartition
from leyden.avro import Event, Reward, RolloutEnded, RolloutStarted, Task, decode, encode
from leyden.infra import deployment as infra_deployment
from leyden.infra import kafka, topics
from leyden.infra.local.stack import settings_env
from leyden.infra.settings import RoleSettings
from leyden.producers.training.tasks import group_of_tasks

AGENT = """
import os, time

def agent(task, llm):
    if task.get("fail_first") and os.environ["LEYDEN_ATTEMPT"] == "1":
        raise RuntimeError("not at the first time")
    if task.get("fail"):
        raise RuntimeError("never")
    if task.get("wait") and os.environ["LEYDEN_ATTEMPT"] == "1":
        time.sleep(600)
    return task["value"]
"""

SLOTS = 4


class StandInForSettle(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps({"n_calls": 0}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@pytest.fixture(scope="module")
def gateway_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandInForSettle)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


class Runner:
    """A runner process that can be killed and started again."""

    def __init__(self, deployment: RoleSettings, agent: Path, gateway_url: str) -> None:
        self._env = {**os.environ, **settings_env(deployment), "LEYDEN_GATEWAY_URL": gateway_url}
        self._env |= {"LEYDEN_AGENT": f"{agent}:agent", "LEYDEN_SLOTS": str(SLOTS)}
        self.process = self.begin()

    def begin(self) -> "subprocess.Popen[bytes]":
        self.process = subprocess.Popen([sys.executable, "-m", "leyden", "runner"], env=self._env)
        return self.process


@pytest.fixture
def runner(deployment: RoleSettings, tmp_path: Path, gateway_url: str) -> Iterator[Runner]:
    infra_deployment.apply(deployment)
    (tmp_path / "agent.py").write_text(AGENT)
    made = Runner(deployment, tmp_path / "agent.py", gateway_url)
    yield made
    made.process.send_signal(signal.SIGCONT)
    made.process.terminate()
    assert made.process.wait(30) == 0


def put(deployment: RoleSettings, *items: object, max_attempts: int = 1) -> list[Task]:
    producer, made = kafka.producer(deployment.kafka), []
    for item in items:
        made += group_of_tasks(item, 1, policy="policy", purpose="train", timeout_s=30.0, max_attempts=max_attempts)
        kafka.send_and_wait(producer, deployment.prefix + topics.TASKS, made[-1].rollout_id.encode(), encode(made[-1]))
    return made


def events_of(deployment: RoleSettings, rollout_id: str) -> list[Event]:
    messages = kafka.read_all(deployment.kafka, deployment.prefix + topics.EVENTS)
    return [e for e in (decode(m.value() or b"", Event) for m in messages) if e.rollout_id == rollout_id]


def wait_for_end(deployment: RoleSettings, task: Task, timeout_s: float = 40.0) -> list[Event]:
    deadline = time.monotonic() + timeout_s
    while True:
        events = events_of(deployment, task.rollout_id)
        if any(isinstance(e.body, RolloutEnded) and not e.body.will_retry for e in events):
            return events
        assert time.monotonic() < deadline, events
        time.sleep(0.2)


def wait_until(reached: Callable[[], bool], timeout_s: float = 40.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def n_members(deployment: RoleSettings) -> int:
    admin, group = kafka.admin(deployment.kafka), deployment.prefix + "runner"
    return len(admin.describe_consumer_groups([group])[group].result(10).members)


def committed(deployment: RoleSettings) -> int:
    reader = kafka.consumer(deployment.kafka, deployment.prefix + "runner")
    tasks = deployment.prefix + topics.TASKS
    try:
        asked = [TopicPartition(tasks, p) for p in range(deployment.kafka.partitions)]
        return sum(max(0, tp.offset) for tp in reader.committed(asked, timeout=10))
    finally:
        reader.close()


def test_start_before_reward_before_end_and_failures_again_but_never_as_a_reward(
    runner: Runner, deployment: RoleSettings
) -> None:
    good, late, bad = put(
        deployment, {"value": 0.75}, {"value": 1, "fail_first": True}, {"value": 1, "fail": True}, max_attempts=2
    )
    started, reward, ended = [e.body for e in wait_for_end(deployment, good)]
    assert isinstance(started, RolloutStarted)
    assert (started.origin, started.group_id, started.purpose) == ("runner", good.group_id, "train")
    assert isinstance(reward, Reward)
    assert reward.value == 0.75
    assert isinstance(ended, RolloutEnded)
    assert (ended.status, ended.n_calls, ended.claim_id) == ("succeeded", 0, started.claim_id)

    bodies = [(e.attempt, type(e.body).__name__) for e in wait_for_end(deployment, late)]
    assert bodies == [
        (1, "RolloutStarted"),
        (1, "RolloutEnded"),
        (2, "RolloutStarted"),
        (2, "Reward"),
        (2, "RolloutEnded"),
    ]
    failed = wait_for_end(deployment, bad)
    assert [e.body.status for e in failed if isinstance(e.body, RolloutEnded)] == ["failed", "failed"]
    assert not any(isinstance(e.body, Reward) for e in failed)
    wait_until(lambda: committed(deployment) == 3)


def test_a_killed_runner_loses_no_rollout_and_its_task_claims_the_next_attempt(
    runner: Runner, deployment: RoleSettings
) -> None:
    (task,) = put(deployment, {"value": 1.0, "wait": True})
    wait_until(lambda: bool(events_of(deployment, task.rollout_id)))
    runner.process.kill()
    runner.process.wait()
    runner.begin()
    events = wait_for_end(deployment, task)
    ends = {e.attempt: e.body for e in events if isinstance(e.body, RolloutEnded)}
    claims = {e.attempt: e.body.claim_id for e in events if isinstance(e.body, RolloutStarted)}
    assert (ends[1].status, ends[1].will_retry, ends[1].claim_id) == ("failed", True, claims[1])
    assert (ends[2].status, ends[2].will_retry) == ("succeeded", False)
    assert [e.body.value for e in events if isinstance(e.body, Reward)] == [1.0]


def test_a_runner_that_lost_its_partitions_while_every_slot_was_busy_takes_tasks_again(
    runner: Runner, deployment: RoleSettings
) -> None:
    tasks = put(deployment, *[{"value": 1.0, "wait": True}] * SLOTS)
    wait_until(lambda: all(events_of(deployment, task.rollout_id) for task in tasks))
    runner.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: n_members(deployment) == 0)
    runner.process.send_signal(signal.SIGCONT)
    for task in tasks:
        events = wait_for_end(deployment, task)
        assert [e.body.value for e in events if isinstance(e.body, Reward)] == [1.0]
