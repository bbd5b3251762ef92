"""Waits for what the log and the engine say: final trajectories, versions that are served."""

import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection

import orjson
from confluent_kafka import TopicPartition

from ...avro import Trajectory, decode_any
from ...avro.errors import LeydenError
from ...infra import kafka, topics
from ...infra.settings import RoleSettings
from .results import RolloutResult, result_of

POLL_S = 0.1


class TrainingStalledError(LeydenError):
    """What a round waits for did not come in time; the message says what, and where to look."""


class TrajectoryWatch:
    """Reads `trajectories` from its end as of now on."""

    def __init__(self, settings: RoleSettings) -> None:
        self._topic = settings.prefix + topics.TRAJECTORIES
        self._consumer = kafka.consumer(settings.kafka, settings.prefix + "trainer")
        ends = kafka.end_offsets(self._consumer, self._topic)
        self._consumer.assign([TopicPartition(self._topic, p, end) for p, (_, end) in ends.items()])
        self._final: dict[str, RolloutResult] = {}

    def wait(
        self, rollouts: Collection[str], timeout_s: float, progress: Callable[[list[RolloutResult]], None]
    ) -> list[RolloutResult]:
        """Final results in the order of `rollouts`. Raises TrainingStalledError when none came for `timeout_s`."""
        wanted, deadline = set(rollouts), time.monotonic() + timeout_s
        while not wanted <= self._final.keys():
            if self._read_some() & wanted:
                deadline = time.monotonic() + timeout_s
                progress([self._final[r] for r in rollouts if r in self._final])
            if time.monotonic() > deadline:
                missing = sorted(wanted - self._final.keys())
                raise TrainingStalledError(
                    f"{len(missing)} of {len(wanted)} rollouts have no final trajectory, and none came for "
                    f"{timeout_s:g} s (e.g. {missing[0]}): look at the logs of runner, gateway and assemble"
                )
        return [self._final.pop(r) for r in rollouts]

    def close(self) -> None:
        """Leave Kafka."""
        self._consumer.close()

    def _read_some(self) -> set[str]:
        """Rollouts that became final."""
        news = set()
        for message in self._consumer.consume(200, POLL_S):
            value = message.value()
            if message.error() is not None or not isinstance(value, bytes):
                continue
            record = decode_any(value)
            if isinstance(record, Trajectory) and record.final:
                self._final[record.rollout_id] = result_of(record)
                news.add(record.rollout_id)
        return news


def served_version(gateway_url: str, policy: str) -> int | None:
    """The version that the engine says it serves; None while it is away or says nothing."""
    try:
        with urllib.request.urlopen(f"{gateway_url.rstrip('/')}/v1/policies/{policy}", timeout=5.0) as response:
            version = orjson.loads(response.read()).get("version")
            return version if isinstance(version, int) else None
    except (OSError, orjson.JSONDecodeError):
        return None


def wait_for_version(gateway_url: str, policy: str, at_least: int, timeout_s: float) -> int:
    """The served version once it is `at_least` that. Raises TrainingStalledError."""
    deadline = time.monotonic() + timeout_s
    while True:
        version = served_version(gateway_url, policy)
        if version is not None and version >= at_least:
            return version
        if time.monotonic() > deadline:
            raise TrainingStalledError(
                f"policy {policy}: no version from {at_least} on is served after {timeout_s:g} s (now: {version}): "
                "look at the logs of learner, promoter and reloader"
            )
        time.sleep(POLL_S)
