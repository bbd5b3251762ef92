"""Dead letters: what could not be processed, where it came from, why. Written before the source moves on."""

from confluent_kafka import Producer
from prometheus_client import Counter

from ..avro import DeadLetter, encode, now_ms
from . import kafka, topics

DEAD_LETTERS_TOTAL = Counter("leyden_dead_letters_total", "Records put aside as dead letters", ["role", "reason"])
# A record at Kafka's limit would not fit with the letter around it; it stays in its source topic, named by its offset.
MAX_VALUE_BYTES = topics.MAX_RECORD_BYTES - 10_000


def dead_letter(
    role: str, reason: str, detail: str, topic: str, partition: int, offset: int, key: bytes | None, value: bytes | None
) -> DeadLetter:
    """A letter about one record of a topic; counts it."""
    DEAD_LETTERS_TOTAL.labels(role, reason).inc()
    kept = value if value is not None and len(value) <= MAX_VALUE_BYTES else None
    return DeadLetter(topic, partition, offset, key, kept, role, reason, detail[:2000], now_ms())


def send(letter: DeadLetter, producer: Producer, prefix: str) -> None:
    """Acknowledged by Kafka when this returns. Raises KafkaUnavailableError."""
    kafka.send_and_wait(producer, prefix + topics.DEAD_LETTERS, letter.key, encode(letter))
