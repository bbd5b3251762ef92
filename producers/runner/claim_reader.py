"""Reads the claims of the rollouts that another runner may have begun."""

from confluent_kafka import KafkaError, TopicPartition

from ...avro import decode_head
from ...avro.errors import DecodeError
from ...infra import kafka, topics
from ...infra.kafka import KafkaUnavailableError
from ...infra.settings import KafkaSettings
from .claims import ClaimLog

IDLE_TIMEOUT_S = 20.0


def read_claims(settings: KafkaSettings, prefix: str, since_ms: int) -> ClaimLog:
    """Claims and ends among the events from `since_ms` (time of the record) to the end as it is now.

    Raises KafkaUnavailableError when nothing comes for 20 s although the end is not reached.
    """
    topic, log = prefix + topics.EVENTS, ClaimLog()
    reader = kafka.consumer(settings, prefix + "runner-claims", **{"enable.partition.eof": True})
    try:
        ends = {p: end for p, (_, end) in kafka.end_offsets(reader, topic).items()}
        found = reader.offsets_for_times([TopicPartition(topic, p, since_ms) for p in ends], timeout=10.0)
        # -1: no record is that young.
        starts = {tp.partition: tp.offset for tp in found if 0 <= tp.offset < ends[tp.partition]}
        reader.assign([TopicPartition(topic, p, offset) for p, offset in starts.items()])
        while starts:
            message = reader.poll(IDLE_TIMEOUT_S)
            if message is None:
                raise KafkaUnavailableError(f"topic {topic}: nothing came for {IDLE_TIMEOUT_S} s while reading claims")
            partition, offset, error = message.partition() or 0, message.offset() or 0, message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaUnavailableError(f"topic {topic}: {error.str()}")
                starts.pop(partition, None)
                continue
            if partition in starts:
                _see(log, message.value())
                if offset + 1 >= ends[partition]:
                    del starts[partition]
    finally:
        reader.close()
    return log


def _see(log: ClaimLog, value: bytes | str | None) -> None:
    try:
        log.see(decode_head(value if isinstance(value, bytes) else b""))
    except DecodeError:
        # A record that is no event claims nothing; the assembler makes it a dead letter.
        return
