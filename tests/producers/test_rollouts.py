"""A rollout's events, and what becomes of it where Kafka does not take one of them."""

from concurrent.futures import Future
from typing import Any

import pytest
from leyden.avro import Event, Reward, RolloutEnded, RolloutStarted, Task
from leyden.infra.kafka import KafkaUnavailableError
from leyden.producers.publisher import Place, Publisher
from leyden.producers.runner import rollouts
from leyden.producers.runner.claims import Begin
from leyden.producers.runner.host_client import HostClient
from leyden.producers.runner.rollouts import RolloutRunner
from leyden.producers.runner.settings import RunnerSettings
from leyden.producers.runner.wire import Outcome, Start
from leyden.producers.training.tasks import group_of_tasks


class Succeeds(HostClient):
    """An agent host whose agent returns 1."""

    def __init__(self) -> None:
        """No process."""

    def run(self, start: Start) -> Outcome:
        return Outcome(start.key, "succeeded", 1.0)


class Log(Publisher):
    """Takes events, but none with a body of the class `refused`."""

    def __init__(self, refused: type | None = None) -> None:
        self.refused = refused
        self.bodies: list[Any] = []

    def send_event(self, event: Event) -> "Future[Place]":
        future: Future[Place] = Future()
        if isinstance(event.body, self.refused or ()):
            future.set_exception(KafkaUnavailableError("topic events refused a record: timed out"))
        else:
            self.bodies.append(event.body)
            future.set_result((0, len(self.bodies)))
        return future


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    """One task, before a gateway that settles at once."""
    monkeypatch.setattr(rollouts, "post", lambda *_: {"n_calls": 0})
    (task,) = group_of_tasks({}, 1, policy="policy", purpose="train", timeout_s=30.0, max_attempts=1)
    return task


def run(task: Task, log: Log) -> bool:
    return RolloutRunner(RunnerSettings(slots=1), Succeeds(), log).run(task, Begin(1))


def test_start_reward_and_end_stand_in_the_log_in_this_order(task: Task) -> None:
    log = Log()
    assert run(task, log)
    assert [type(body) for body in log.bodies] == [RolloutStarted, Reward, RolloutEnded]


@pytest.mark.parametrize("refused", [RolloutStarted, Reward, RolloutEnded])
def test_rollout_is_not_done_where_kafka_refuses_any_of_its_events(task: Task, refused: type) -> None:
    log = Log(refused)
    with pytest.raises(KafkaUnavailableError, match="refused a record"):
        run(task, log)
    assert not any(isinstance(body, RolloutEnded) for body in log.bodies)
