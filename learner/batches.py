"""The topic `batches`, read from an offset that the learner keeps itself."""

import logging

from confluent_kafka import KafkaError, TopicPartition

from ..avro import TransitionBatch, decode
from ..avro.schemas import SchemaStore
from ..infra import deadletters, kafka, topics
from ..infra.errors import DecodeError
from ..infra.manifest import BatchEntry
from ..infra.settings import RoleSettings
from .plan import Message

PARTITION = 0
log = logging.getLogger("leyden.learner")


class BatchReader:
    """Hands out one record after the other from `offset` on; reads no further than it is asked. Not thread-safe."""

    def __init__(self, settings: RoleSettings, schemas: SchemaStore, offset: int) -> None:
        self._settings, self._schemas = settings, schemas
        self._topic = settings.prefix + topics.BATCHES
        self.position = offset  # of the next record
        config = {"error_cb": kafka.on_error(log.warning, "batches")}
        self._consumer = kafka.consumer(settings.kafka, f"{settings.prefix}learner-batches", **config)
        self._consumer.assign([TopicPartition(self._topic, PARTITION, offset)])
        self._producer = kafka.producer(settings.kafka, linger_ms=0)

    def poll(self, timeout_s: float) -> Message | BatchEntry | None:
        """The next record; a BatchEntry says what became of one that cannot be read. None: none came, or not ours."""
        message = self._consumer.poll(timeout_s)
        if message is None:
            return None
        if (error := message.error()) is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                log.warning("topic %s: %s", self._topic, error.str())
            return None
        offset = message.offset() or 0
        if offset < self.position:
            return None
        self.position = offset + 1
        value = message.value() or b""
        try:
            batch = decode(value, TransitionBatch, self._schemas)
        except DecodeError as error:
            log.error("topic %s offset %d is no batch: %s", self._topic, offset, error)
            self.dead_letter(offset, "undecodable", str(error), value)
            return BatchEntry(offset, "", 0, "dropped", "undecodable")
        return Message(offset, batch) if batch.policy == self._settings.policy else None

    def dead_letter(self, offset: int, reason: str, detail: str, value: bytes | None) -> None:
        """Put a record aside, acknowledged by Kafka. Raises KafkaUnavailableError."""
        letter = deadletters.dead_letter("learner", reason, detail, self._topic, PARTITION, offset, None, value)
        deadletters.send(letter, self._producer, self._settings.prefix)

    def close(self) -> None:
        """Leave the topic."""
        self._consumer.close()
