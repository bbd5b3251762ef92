"""The seeded load: tasks for the runner, one rollout that stays open throughout, and what came out so far."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
from leyden.avro import Checkpoint, Task, Trajectory, decode_any, encode, new_id
from leyden.infra import kafka, topics
from leyden.infra.settings import RoleSettings
from leyden.producers.identity import Identity, rollout_base_url
from leyden.producers.ledger import Ledger

AGENT = f"{Path(__file__).with_name('load_agent.py')}:agent"
GROUP_SIZE = 4
ONE_IN_VALIDATES = 20


def tasks(n_rollouts: int, seed: int, rewarded: bool = True) -> Iterator[Task]:
    """`n_rollouts` of 1 to 4 calls in groups of GROUP_SIZE; one group in ONE_IN_VALIDATES is validation."""
    draw = random.Random(seed)
    for number in range(n_rollouts // GROUP_SIZE):
        group_id, purpose = new_id(), "validate" if number % ONE_IN_VALIDATES == 7 else "train"
        winner = draw.randrange(GROUP_SIZE)
        for i in range(GROUP_SIZE):
            payload = {
                "text": f"{seed}/{number}: {draw.random()}",
                "n_calls": draw.randint(1, 4),
                "reward": float(i == winner) if rewarded else None,
            }
            yield Task(
                rollout_id=new_id(),
                group_id=group_id,
                group_size=GROUP_SIZE,
                policy="policy",
                purpose=purpose,
                task_digest=f"{number:032x}",
                payload=orjson.dumps(payload),
                timeout_s=240.0,
                max_attempts=3,
            )


def publish(settings: RoleSettings, load: list[Task]) -> None:
    """Put the tasks into their topic, acknowledged when this returns."""
    producer = kafka.producer(settings.kafka)
    for task in load:
        producer.produce(settings.prefix + topics.TASKS, key=task.rollout_id.encode(), value=encode(task))
        producer.poll(0)
    left = producer.flush(60.0)
    assert not left, f"{left} tasks were not acknowledged"


@dataclass(slots=True)
class Seen:
    """One rollout's newest final trajectory."""

    attempt: int
    revision: int
    reward: float | None
    newest_version: int
    n_calls: int
    group_id: str


@dataclass
class Progress:
    """Follows trajectories and checkpoints from a thread of its own until `close`; waits through outages of Kafka."""

    settings: RoleSettings
    finals: dict[str, Seen] = field(default_factory=dict)
    newest_version: int = -1

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="progress", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        prefix = self.settings.prefix
        reader = kafka.consumer(self.settings.kafka, prefix + new_id(), log_level=0)
        reader.subscribe([prefix + topics.TRAJECTORIES, prefix + topics.CHECKPOINTS])
        while not self._stop.is_set():
            message = reader.poll(0.1)
            if message is None or message.error() is not None:
                continue
            self._take(decode_any(message.value() or b""))
        reader.close()

    def _take(self, record: object) -> None:
        if isinstance(record, Checkpoint):
            self.newest_version = max(self.newest_version, record.version)
        elif isinstance(record, Trajectory) and record.final:
            known = self.finals.get(record.rollout_id)
            if known is None or (known.attempt, known.revision) < (record.attempt, record.revision):
                self.finals[record.rollout_id] = Seen(
                    *(record.attempt, record.revision, record.reward),
                    *(record.newest_version, record.n_calls, record.group_id),
                )

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()


class OpenRollout:
    """A rollout outside any runner that is open from here to `close`: calls now and then, each in the ledger."""

    def __init__(self, gateway_url: str, model: str, ledger: Path) -> None:
        self.rollout_id = new_id()
        self._gateway_url, self._model = gateway_url, model
        self._ledger = Ledger(str(ledger), Identity(self.rollout_id, 1, gateway_url))
        self.n_calls = 0

    def call(self) -> None:
        """One call, again until the gateway answers it; what is sent again says so, as OpenAI's client does."""
        url = rollout_base_url(self._gateway_url, self.rollout_id, 1) + "/chat/completions"
        content = f"open {self.n_calls}"
        body = {"model": self._model, "max_tokens": 4, "messages": [{"role": "user", "content": content}]}
        response = _until_answered(
            lambda n: httpx.post(url, json=body, timeout=60.0, headers={"x-stainless-retry-count": str(n)})
        )
        self._ledger.note(response.json()["id"])
        self.n_calls += 1

    def close(self) -> None:
        """Reward it and end it."""
        root = f"{self._gateway_url}/v1/rollouts/{self.rollout_id}"
        _until_answered(lambda n: httpx.post(f"{root}/rewards", json={"attempt": 1, "value": 1.0}, timeout=60.0))
        _until_answered(lambda n: httpx.post(f"{root}/end", json={"attempt": 1, "status": "succeeded"}, timeout=60.0))


def reward(gateway_url: str, rollout_id: str, attempt: int, value: float) -> None:
    """A reward that comes from outside."""
    url = f"{gateway_url}/v1/rollouts/{rollout_id}/rewards"
    _until_answered(lambda n: httpx.post(url, json={"attempt": attempt, "value": value, "key": "late"}, timeout=60.0))


def _until_answered(send: Callable[[int], httpx.Response]) -> httpx.Response:
    deadline, n = time.monotonic() + 120.0, 0
    while True:
        try:
            response = send(n)
            if response.status_code < 500:
                response.raise_for_status()
                return response
            reason: Any = response.text
        except httpx.TransportError as error:
            reason = error
        n += 1
        assert time.monotonic() < deadline, f"no answer in two minutes: {reason}"
        time.sleep(min(2.0, 0.2 * n))
