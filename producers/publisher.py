"""A producer for many threads: every record gives a future of its place in the log."""

import threading
from concurrent.futures import Future

from confluent_kafka import KafkaError, Message

from ..avro import Event, encode
from ..infra import kafka, topics
from ..infra.kafka import KafkaUnavailableError
from ..infra.settings import KafkaSettings

Place = tuple[int, int]
"""(partition, offset)."""


class Publisher:
    """Idempotent, acks=all. Records of one key keep the order of the calls. Thread-safe."""

    def __init__(self, settings: KafkaSettings, prefix: str, linger_ms: int = 1) -> None:
        self._producer, self._prefix = kafka.producer(settings, linger_ms), prefix
        self._closing = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="publisher", daemon=True)
        self._poller.start()

    def send(self, topic: str, key: bytes | None, value: bytes | None) -> "Future[Place]":
        """The future fails with KafkaUnavailableError where Kafka did not take the record in librdkafka's 5 minutes."""
        future: Future[Place] = Future()

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                future.set_exception(KafkaUnavailableError(f"topic {topic} refused a record: {error.str()}"))
            else:
                future.set_result((message.partition() or 0, message.offset() or 0))

        while True:
            try:
                self._producer.produce(self._prefix + topic, value=value, key=key, on_delivery=delivered)
                return future
            except BufferError:
                # The queue is full: wait for Kafka as the caller would have to.
                self._producer.poll(0.1)

    def send_event(self, event: Event) -> "Future[Place]":
        """Into `events`, keyed by its rollout."""
        return self.send(topics.EVENTS, event.rollout_id.encode(), encode(event))

    def close(self, timeout_s: float = 10.0) -> None:
        """Send what is left. Raises KafkaUnavailableError where that took too long."""
        left = self._producer.flush(timeout_s)
        self._closing.set()
        self._poller.join()
        # The client ends with its last reference; until then it complains about a Kafka that is gone.
        del self._producer
        if left:
            raise KafkaUnavailableError(f"{left} records were not acknowledged within {timeout_s} s")

    def _poll(self) -> None:
        while not self._closing.is_set():
            self._producer.poll(0.2)
