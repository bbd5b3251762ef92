"""Trajectories fetched by their place in the topic."""

import logging
import time
from collections.abc import Iterable

from confluent_kafka import KafkaError, Message, TopicPartition

from ..avro import Trajectory, decode
from ..avro.schemas import SchemaStore
from ..infra import kafka, topics
from ..infra.errors import DecodeError, ObjectLostError
from ..infra.objects import ObjectStore
from ..infra.parking import unpark
from ..infra.settings import RoleSettings
from .episodes import UnusableError, unusable

Place = tuple[int, int]
"""(partition, offset) in the topic `trajectories`."""
Found = dict[Place, Trajectory | UnusableError]
"""What lies there, or why that cannot be read."""

# Reading on costs less than a seek, which throws away what was fetched already.
SEEK_BEYOND_RECORDS = 200
log = logging.getLogger("leyden.learner")


class TrajectoryReader:
    """Reads single records; keeps no position and no consumer group. Not thread-safe."""

    def __init__(self, settings: RoleSettings, objects: ObjectStore, schemas: SchemaStore) -> None:
        self._topic = settings.prefix + topics.TRAJECTORIES
        self._objects, self._schemas = objects, schemas
        # Where the topic no longer has an offset, the error must come to us: any other record would be a wrong one.
        # Waiting briefly for data is cheap, since nothing is assigned between two calls; the default holds up a seek.
        config = {"auto.offset.reset": "error", "fetch.wait.max.ms": 20}
        self._consumer = kafka.consumer(settings.kafka, f"{settings.prefix}learner-trajectories", **config)

    def fetch(self, places: Iterable[Place], timeout_s: float = 120.0) -> Found:
        """What lies at `places`, whole; places that hold nothing any more are missing in the answer.

        All partitions are read side by side, each in one go but for wide gaps. Raises KafkaUnavailableError after
        `timeout_s`, ObjectStoreError while the store of parked payloads is away.
        """
        by_partition: dict[int, list[int]] = {}
        for partition, offset in sorted(set(places)):
            by_partition.setdefault(partition, []).append(offset)
        waiting = {partition: _runs(offsets) for partition, offsets in by_partition.items()}
        found: Found = {}
        deadline = time.monotonic() + timeout_s
        self._consumer.assign([self._at(p, runs[0][0]) for p, runs in waiting.items()])
        try:
            while waiting:
                if time.monotonic() > deadline:
                    raise kafka.KafkaUnavailableError(f"topic {self._topic}: no records {waiting} in {timeout_s} s")
                if (message := self._consumer.poll(1.0)) is not None:
                    self._take(message, waiting, found)
        finally:
            self._consumer.unassign()
        return found

    def _at(self, partition: int, offset: int) -> TopicPartition:
        return TopicPartition(self._topic, partition, offset)

    def _take(self, message: Message, waiting: dict[int, list[list[int]]], found: Found) -> None:
        """One answer of Kafka. `waiting`: the runs of offsets still wanted, a partition."""
        partition, offset = message.partition() or 0, message.offset() or 0
        if partition not in waiting:
            return
        runs = waiting[partition]
        if (error := message.error()) is not None:
            if error.code() not in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                log.warning("topic %s[%d]: %s", self._topic, partition, error.str())
                return
            log.error("topic %s[%d] no longer has the offsets %s", self._topic, partition, runs[0])
            runs.pop(0)
        else:
            if offset in runs[0]:
                found[partition, offset] = self._read(partition, offset, message.value() or b"")
            # A missing offset is passed when a later one comes.
            runs[0] = [wanted for wanted in runs[0] if wanted > offset]
            if runs[0]:
                return
            runs.pop(0)
        if runs:
            self._consumer.seek(self._at(partition, runs[0][0]))
        else:
            del waiting[partition]
            self._consumer.incremental_unassign([self._at(partition, 0)])

    def _read(self, partition: int, offset: int, value: bytes) -> Trajectory | UnusableError:
        try:
            return unpark(decode(value, Trajectory, self._schemas), self._objects, self._schemas)
        except (DecodeError, ObjectLostError) as error:
            return unusable(error, f"topic {self._topic}[{partition}] offset {offset}")

    def close(self) -> None:
        """Leave the topic."""
        self._consumer.close()


def _runs(offsets: list[int]) -> list[list[int]]:
    """Ascending offsets cut where the next is far away."""
    runs = [[offsets[0]]]
    for offset in offsets[1:]:
        if offset - runs[-1][-1] > SEEK_BEYOND_RECORDS:
            runs.append([])
        runs[-1].append(offset)
    return runs
