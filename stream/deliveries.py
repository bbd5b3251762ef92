"""Records whose acknowledgement is awaited: a librdkafka producer behind futures."""

import asyncio
import threading

from confluent_kafka import KafkaError, Message, Producer

from ..infra.kafka import KafkaUnavailableError


class Batch:
    """Records sent together; `acknowledged` ends when Kafka has all of them. Used from the event loop only."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        # Each is written by one thread alone, so that no send needs a lock; whoever comes last sees both.
        self._n_sent, self._n_delivered, self._sealed = 0, 0, False
        self._error: str | None = None
        self.last_offset = -1
        """Greatest offset acknowledged, over all partitions sent to."""

    async def send(self, topic: str, key: bytes | None, value: bytes, partition: int | None = None) -> None:
        """Hand one record over; waits while the producer's queue is full."""
        self._n_sent += 1
        place = -1 if partition is None else partition
        while True:
            try:
                self._producer.produce(topic, value, key, place, on_delivery=self._delivered)
                return
            except BufferError:
                await asyncio.sleep(0.01)

    async def acknowledged(self) -> None:
        """Raises KafkaUnavailableError when Kafka did not take a record."""
        self._sealed = True
        if self._n_delivered == self._n_sent:
            self._finish()
        await self._done
        if self._error is not None:
            raise KafkaUnavailableError(self._error)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        # In the poll thread.
        if error is not None:
            self._error = f"topic {message.topic()} refused a record: {error.str()}"
        elif (offset := message.offset()) is not None and offset > self.last_offset:
            self.last_offset = offset
        self._n_delivered += 1
        if self._sealed and self._n_delivered == self._n_sent:
            self._loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)


class Deliveries:
    """Owns the producer's poll thread."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True, name="deliveries")
        self._thread.start()

    def batch(self) -> Batch:
        """A new, empty batch."""
        return Batch(self._producer)

    def _poll(self) -> None:
        while not self._stop.is_set():
            self._producer.poll(0.1)

    def close(self, timeout_s: float = 10.0) -> None:
        """Wait for what is under way and stop."""
        self._producer.flush(timeout_s)
        self._stop.set()
        self._thread.join()
