"""confluent-kafka clients as Leyden uses them: idempotent murmur2 producers, consumers that own their position."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from .errors import LeydenError
from .settings import KafkaSettings

_NO_LEADER_YET = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,
)


class KafkaUnavailableError(LeydenError):
    """Kafka did not acknowledge or answer in time; the message says for what."""


def client_config(kafka: KafkaSettings) -> dict[str, Any]:
    """The connection part of a librdkafka configuration."""
    config: dict[str, Any] = {"bootstrap.servers": kafka.bootstrap, "security.protocol": kafka.security_protocol}
    optional = {
        "sasl.mechanism": kafka.sasl_mechanism,
        "sasl.username": kafka.sasl_username,
        "sasl.password": kafka.sasl_password.get_secret_value() if kafka.sasl_password else None,
        "ssl.ca.location": kafka.ssl_ca,
        "ssl.certificate.location": kafka.ssl_certificate,
        "ssl.key.location": kafka.ssl_key,
    }
    return config | {key: str(value) for key, value in optional.items() if value is not None}


def producer(kafka: KafkaSettings, linger_ms: int = 5, **more: Any) -> Producer:
    """acks=all, idempotent, zstd, and the partitioner that Java and Faust clients use."""
    return Producer(
        client_config(kafka)
        | {
            "acks": "all",
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "compression.type": "zstd",
            "linger.ms": linger_ms,
            "message.max.bytes": 4_000_000,
        }
        | more
    )


def consumer(kafka: KafkaSettings, group: str, **more: Any) -> Consumer:
    """Nothing is committed unless asked; starts at the earliest record where nothing was committed."""
    return Consumer(
        client_config(kafka)
        | {
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": False,
        }
        | more
    )


def admin(kafka: KafkaSettings) -> AdminClient:
    """An admin client."""
    return AdminClient(client_config(kafka))


def send_and_wait(
    to: Producer, topic: str, key: bytes | None, value: bytes | None, partition: int = -1, timeout_s: float = 30.0
) -> tuple[int, int]:
    """Produce one record; its (partition, offset). Raises KafkaUnavailableError without an acknowledgement."""
    result: list[Any] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        result.append(error or (message.partition(), message.offset()))

    to.produce(topic, value=value, key=key, partition=partition, on_delivery=delivered)
    to.flush(timeout_s)
    if not result:
        raise KafkaUnavailableError(f"no acknowledgement for a record of topic {topic} within {timeout_s} s")
    if isinstance(result[0], KafkaError):
        raise KafkaUnavailableError(f"topic {topic} refused a record: {result[0].str()}")
    return result[0]


def end_offsets(of: Consumer, topic: str, timeout_s: float = 10.0) -> dict[int, tuple[int, int]]:
    """(first, end) offset of each partition; end is one behind the last record.

    Waits for partitions without a leader: just after its creation a topic is not everywhere yet. Raises
    KafkaUnavailableError when there is none within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            found = of.list_topics(topic, timeout=timeout_s).topics[topic]
            if found.error is not None:
                raise KafkaException(found.error)
            return {p: of.get_watermark_offsets(TopicPartition(topic, p), timeout=timeout_s) for p in found.partitions}
        except KafkaException as error:
            if error.args[0].code() not in _NO_LEADER_YET or time.monotonic() > deadline:
                raise KafkaUnavailableError(f"topic {topic}: no offsets: {error.args[0].str()}") from error
            time.sleep(0.1)


def read_all(kafka: KafkaSettings, topic: str, idle_timeout_s: float = 20.0) -> Iterator[Message]:
    """Every record of `topic` from its beginning to the end as it was when the call began, each partition in order.

    Raises KafkaUnavailableError when nothing comes for `idle_timeout_s` although the end is not reached.
    """
    reader = consumer(kafka, "leyden-read-all", **{"enable.partition.eof": True})
    try:
        ends = {p: hi for p, (lo, hi) in end_offsets(reader, topic).items() if hi > lo}
        reader.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in ends])
        while ends:
            message = reader.poll(idle_timeout_s)
            if message is None:
                raise KafkaUnavailableError(
                    f"topic {topic}: nothing came for {idle_timeout_s} s, partitions {sorted(ends)} open"
                )
            # The client's types allow for None, which only a message that was never produced has.
            partition, offset = message.partition() or 0, message.offset() or 0
            if (error := message.error()) is not None:
                # End of partition: also where the last offsets hold transaction markers or compacted records.
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaUnavailableError(f"topic {topic}: {error.str()}")
                ends.pop(partition, None)
                continue
            if partition in ends:
                yield message
                if offset + 1 >= ends[partition]:
                    del ends[partition]
    finally:
        reader.close()


def on_error(log: Callable[[str], None], to: str) -> Callable[[KafkaError], None]:
    """An error_cb that says which client complains."""
    return lambda error: log(f"kafka {to}: {error.str()}")
