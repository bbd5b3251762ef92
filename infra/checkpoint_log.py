"""The topic `checkpoints` as a role uses it: followed from its beginning and folded into a lineage, written to."""

import logging
from collections.abc import Sequence

from confluent_kafka import KafkaError, TopicPartition

from ..avro import Checkpoint, decode, encode
from .errors import DecodeError
from .kafka import KafkaUnavailableError, consumer, on_error, producer, read_all
from .lineage import Lineage, fold, key_of
from .settings import RoleSettings
from .topics import CHECKPOINTS

log = logging.getLogger("leyden.checkpoints")


class CheckpointLog:
    """Follows the topic; `lineage` is what it says so far. Not thread-safe. It has one partition, so one order."""

    def __init__(self, settings: RoleSettings, client: str) -> None:
        self.lineage = Lineage(settings.policy)
        self.caught_up = False  # the lineage once was that of the end of the topic
        config = {
            "enable.partition.eof": True,
            "client.id": f"{settings.prefix}{client}",
            "error_cb": on_error(log.warning, client),
            # How long the end of the topic stays unseen.
            "fetch.wait.max.ms": 100,
        }
        self._consumer = consumer(settings.kafka, f"{settings.prefix}{client}", **config)
        # Offset 0 and not OFFSET_BEGINNING, which librdkafka looks up after half a second; where 0 is gone, the reader
        # is reset to the earliest.
        self._consumer.assign([TopicPartition(settings.prefix + CHECKPOINTS, 0, 0)])

    def poll(self, timeout_s: float) -> Checkpoint | None:
        """The next record, folded into `lineage`; None where none came in time or at the end of the topic."""
        message = self._consumer.poll(timeout_s)
        if message is None:
            return None
        if (error := message.error()) is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                self.caught_up = True
            else:
                log.warning("topic %s: %s", message.topic(), error.str())
            return None
        try:
            record = decode(message.value() or b"", Checkpoint)
        except DecodeError as error:
            log.error("topic %s offset %s is no checkpoint: %s", message.topic(), message.offset(), error)
            return None
        self.lineage = self.lineage.apply(record)
        return record

    def close(self) -> None:
        """Leave the topic."""
        self._consumer.close()


def read_lineage(settings: RoleSettings) -> Lineage:
    """The lineage of `settings.policy` as of now. Raises KafkaUnavailableError."""
    messages = read_all(settings.kafka, settings.prefix + CHECKPOINTS)
    return fold(settings.policy, (decode(m.value() or b"", Checkpoint) for m in messages))


class CheckpointWriter:
    """Writes announcements, acknowledged by Kafka and in the order given."""

    def __init__(self, settings: RoleSettings) -> None:
        self._topic = settings.prefix + CHECKPOINTS
        self._producer = producer(settings.kafka, linger_ms=0)

    def write(self, records: Sequence[Checkpoint], timeout_s: float = 30.0) -> None:
        """Raises KafkaUnavailableError when one was not acknowledged; all that stand before it may be in the topic."""
        results: list[KafkaError | None] = []
        for record in records:
            self._producer.produce(
                self._topic,
                value=encode(record),
                key=key_of(record),
                partition=0,
                on_delivery=lambda error, _: results.append(error),
            )
        self._producer.flush(timeout_s)
        refused = [error for error in results if error is not None]
        if refused or len(results) < len(records):
            why = refused[0].str() if refused else f"no acknowledgement within {timeout_s} s"
            raise KafkaUnavailableError(f"topic {self._topic}: {why}")
