"""Takes tasks as a member of a consumer group: paused while every slot is busy, committed when a rollout has ended."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from ...avro import Task, decode
from ...avro.errors import DecodeError
from ...infra import deadletters, kafka, topics
from ...infra.kafka import KafkaUnavailableError
from .claim_reader import read_claims
from .claims import Begin, ClaimLog, Decision, decide
from .metrics import REDELIVERED_TOTAL
from .offsets import OffsetTracker
from .rollouts import RolloutRunner
from .settings import RunnerSettings

log = logging.getLogger(__name__)
POLL_S = 0.05
# A runner that died is out of its group, and its tasks elsewhere, after this; Kafka's own lower limit.
SESSION_TIMEOUT_MS = 6000
# How long giving up partitions waits for the ends of what is cancelled; the group waits as long.
REVOKE_WAIT_S = 5.0
# How far the clocks of those who write tasks and events may differ.
CLOCK_SKEW_MS = 60_000


@dataclass(slots=True)
class InFlight:
    """A rollout that is being run."""

    rollout_id: str
    partition: int
    offset: int
    future: "Future[bool]"


class Intake:
    """The runner's main loop, in one thread; the rollouts run in a pool of `slots` threads."""

    def __init__(self, settings: RunnerSettings, runner: RolloutRunner, healthy: Callable[[], bool]) -> None:
        self._settings, self._runner, self._healthy = settings, runner, healthy
        self._topic = settings.prefix + topics.TASKS
        self._consumer: Consumer = kafka.consumer(
            settings.kafka,
            settings.prefix + "runner",
            **{
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": SESSION_TIMEOUT_MS // 4,
                "error_cb": kafka.on_error(log.warning, "tasks"),
            },
        )
        self._pool = ThreadPoolExecutor(settings.slots, thread_name_prefix="rollout")
        self._in_flight: list[InFlight] = []
        self._trackers: dict[int, OffsetTracker] = {}
        self._assigned_end: dict[int, int] = {}
        self._claims: ClaimLog | None = None
        self._claims_from_ms = 0
        self._stop = threading.Event()
        self._paused: bool | None = None  # None: not said of all the partitions that are assigned now
        self.ready = False

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set or the agent host is gone."""
        self._stop = stop
        self._consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        while not stop.is_set() and self._healthy():
            self._collect()
            self._pause_or_resume()
            message = self._consumer.poll(POLL_S)
            if message is not None:
                self._take(message)

    def close(self) -> None:
        """Stop the rollouts, within the grace, and leave the group."""
        try:
            self._runner.stop(self._settings.shutdown_grace_s if self._healthy() else 0.0)
            wait([item.future for item in self._in_flight], REVOKE_WAIT_S)
            self._collect()
        finally:
            self._consumer.close()
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _take(self, message: Message) -> None:
        error, partition, offset = message.error(), message.partition() or 0, message.offset() or 0
        if error is not None:
            if error.code() == KafkaError._MAX_POLL_EXCEEDED or error.fatal():
                raise KafkaUnavailableError(f"topic {self._topic}: {error.str()}")
            log.warning("topic %s: %s", self._topic, error.str())
            return
        tracker = self._trackers.setdefault(partition, OffsetTracker())
        tracker.take(offset)
        try:
            task = decode(_bytes(message.value()), Task)
            orjson.loads(task.payload)
        except (DecodeError, orjson.JSONDecodeError) as reason:
            self._put_aside(message, str(reason))
            tracker.done(offset)
            return
        future = self._pool.submit(self._runner.run, task, self._decide(task, message))
        self._in_flight.append(InFlight(task.rollout_id, partition, offset, future))

    def _decide(self, task: Task, message: Message) -> Decision:
        """Tasks that were in the topic when this runner got the partition may have been begun by another one."""
        partition, offset = message.partition() or 0, message.offset() or 0
        if not self._was_there(partition, offset):
            return Begin(task.attempt)
        claims = self._claims_since(message.timestamp()[1] - CLOCK_SKEW_MS)
        decision = decide(task, claims.of(task.rollout_id), self._settings.max_redeliveries)
        if decision != Begin(task.attempt):
            REDELIVERED_TOTAL.labels(type(decision).__name__.lower()).inc()
            log.info("rollout %s was delivered again: %s", task.rollout_id, decision)
        return decision

    def _was_there(self, partition: int, offset: int) -> bool:
        """Whether the task lay in its partition when that was assigned, or shortly after."""
        if partition not in self._assigned_end:
            try:
                ends = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=10.0)
            except KafkaException as error:
                log.warning("topic %s partition %d: %s", self._topic, partition, error)
                return True
            self._assigned_end[partition] = ends[1]
        return offset < self._assigned_end[partition]

    def _claims_since(self, since_ms: int) -> ClaimLog:
        """What the log says from `since_ms` on; read once an assignment, and again for an older task."""
        while self._claims is None or since_ms < self._claims_from_ms:
            try:
                self._claims = read_claims(self._settings.kafka, self._settings.prefix, since_ms)
                self._claims_from_ms = since_ms
            except (KafkaUnavailableError, KafkaException) as error:
                # Without the claims the task cannot be begun. Nobody polls meanwhile: after max.poll.interval.ms
                # (5 min) the group goes on without this runner, which then ends (see _take).
                log.warning("claims cannot be read, asking again: %s", error)
                if self._stop.wait(1.0):
                    raise
        return self._claims

    def _put_aside(self, message: Message, reason: str) -> None:
        partition, offset = message.partition() or 0, message.offset() or 0
        key, value = _bytes(message.key()), _bytes(message.value())
        letter = deadletters.dead_letter("runner", "undecodable", reason, self._topic, partition, offset, key, value)
        deadletters.send(letter, kafka.producer(self._settings.kafka), self._settings.prefix)

    def _collect(self) -> None:
        """Mark what is finished and commit what can be. Raises what a rollout raised."""
        for item in [i for i in self._in_flight if i.future.done()]:
            self._in_flight.remove(item)
            if item.future.result() and item.partition in self._trackers:
                self._trackers[item.partition].done(item.offset)
        moved = {p: position for p, t in self._trackers.items() if (position := t.position()) is not None}
        if moved:
            self._consumer.commit(
                offsets=[TopicPartition(self._topic, p, position) for p, position in moved.items()], asynchronous=True
            )

    def _pause_or_resume(self) -> None:
        full = len(self._in_flight) >= self._settings.slots
        if full != self._paused:
            partitions = self._consumer.assignment()
            (self._consumer.pause if full else self._consumer.resume)(partitions)
            self._paused = full

    def _assigned(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            self._assigned_end.pop(tp.partition, None)
            self._trackers[tp.partition] = OffsetTracker()
        # A partition that was paused when it was taken away is still paused when it comes back.
        self._claims, self._paused, self.ready = None, None, True

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """The rollouts go with their partitions: cancelled here, begun again by the next owner."""
        gone = {tp.partition for tp in partitions}
        mine = [item for item in self._in_flight if item.partition in gone]
        deadline = time.monotonic() + REVOKE_WAIT_S
        self._runner.cancel({item.rollout_id for item in mine})
        wait([item.future for item in mine], max(0.0, deadline - time.monotonic()))
        self._collect()
        for partition in gone:
            self._trackers.pop(partition, None)
        self._in_flight = [item for item in self._in_flight if item.partition not in gone]


def _bytes(value: bytes | str | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""
