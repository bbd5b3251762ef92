"""Trajectories fetched by their place in the topic."""

import logging
import time
from collections.abc import Iterable

from confluent_kafka import KafkaError, TopicPartition

from ..avro import Trajectory, decode
from ..avro.schemas import SchemaStore
from ..infra import kafka, topics
from ..infra.errors import DecodeError
from ..infra.objects import ObjectStore
from ..infra.parking import unpark
from ..infra.settings import RoleSettings

Place = tuple[int, int]
"""(partition, offset) in the topic `trajectories`."""

# Reading on costs less than a seek, which throws away what was fetched already.
SEEK_BEYOND_RECORDS = 200
log = logging.getLogger("leyden.learner")


class TrajectoryReader:
    """Reads single records; keeps no position and no consumer group. Not thread-safe."""

    def __init__(self, settings: RoleSettings, objects: ObjectStore, schemas: SchemaStore) -> None:
        self._topic = settings.prefix + topics.TRAJECTORIES
        self._objects, self._schemas = objects, schemas
        # Where the topic no longer has an offset, the error must come to us: any other record would be a wrong one.
        self._consumer = kafka.consumer(
            settings.kafka, f"{settings.prefix}learner-trajectories", **{"auto.offset.reset": "error"}
        )

    def fetch(self, places: Iterable[Place], timeout_s: float = 120.0) -> dict[Place, Trajectory]:
        """What lies at `places`, whole; places that hold nothing readable any more are missing in the answer.

        Raises KafkaUnavailableError after `timeout_s`, ObjectStoreError where a parked payload cannot be had.
        """
        by_partition: dict[int, list[int]] = {}
        for partition, offset in sorted(set(places)):
            by_partition.setdefault(partition, []).append(offset)
        deadline = time.monotonic() + timeout_s
        found: dict[Place, Trajectory] = {}
        for partition, offsets in by_partition.items():
            for run in _runs(offsets):
                found |= self._read(partition, run, deadline)
        return found

    def _read(self, partition: int, offsets: list[int], deadline: float) -> dict[Place, Trajectory]:
        """One seek, then on to the last of `offsets`."""
        self._consumer.assign([TopicPartition(self._topic, partition, offsets[0])])
        wanted, found = set(offsets), {}
        while wanted:
            message = self._consumer.poll(1.0)
            if message is None:
                if time.monotonic() > deadline:
                    raise kafka.KafkaUnavailableError(f"topic {self._topic}[{partition}]: no record {min(wanted)}")
                continue
            if (error := message.error()) is not None:
                if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                    log.error("topic %s[%d] no longer has offset %d", self._topic, partition, offsets[0])
                    return found
                log.warning("topic %s[%d]: %s", self._topic, partition, error.str())
                continue
            offset = message.offset() or 0
            if offset in wanted:
                wanted.discard(offset)
                if (trajectory := self._decoded(partition, offset, message.value() or b"")) is not None:
                    found[partition, offset] = trajectory
            wanted = {o for o in wanted if o > offset}
        return found

    def _decoded(self, partition: int, offset: int, value: bytes) -> Trajectory | None:
        try:
            return unpark(decode(value, Trajectory, self._schemas), self._objects, self._schemas)
        except DecodeError as error:
            log.error("topic %s[%d] offset %d is no trajectory: %s", self._topic, partition, offset, error)
            return None

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
