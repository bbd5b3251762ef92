"""An idempotent Kafka producer for an event loop: sends at once, reports every delivery on the loop, in order."""

import asyncio
import logging
import threading
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Message, Producer

log = logging.getLogger(__name__)
Report = Callable[[str | None], None]
"""Called once on the event loop: None when Kafka acknowledged (acks=all), else why it did not."""
ErrorCallback = Callable[[KafkaError], None]

_POLL_S = 0.1


class KafkaWriter:
    """`send` is called on the loop; a thread polls librdkafka and hands the reports over in batches.

    An idempotent producer that lost count of its sequence numbers refuses everything from then on (a fatal error):
    it is replaced, and what it had under way is reported as failed.
    """

    def __init__(
        self, make_producer: Callable[[ErrorCallback], Producer], topic: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._make_producer = make_producer
        self._producer = make_producer(self._on_error)
        self._topic = topic
        self._loop = loop
        self._reports: list[tuple[Report, str | None]] = []
        self._fatal = False
        self._stopping = False
        self._thread = threading.Thread(target=self._poll, name="kafka-writer", daemon=True)
        self._thread.start()

    def send(self, key: bytes, value: bytes, report: Report) -> None:
        """Queue one record. Never raises: a full queue is reported as a failed delivery."""

        def delivered(error: KafkaError | None, _: Message) -> None:
            self._reports.append((report, None if error is None else error.str()))

        try:
            self._producer.produce(self._topic, value=value, key=key, on_delivery=delivered)
        except BufferError:
            self._loop.call_soon(report, "the producer's queue is full")
        except KafkaException as error:
            self._loop.call_soon(report, str(error))

    def close(self, timeout_s: float) -> None:
        """Wait for what is under way, report what failed, stop. Blocking: call it off the loop."""
        self._stopping = True
        self._thread.join()
        self._producer.flush(timeout_s)
        self._empty(self._producer)

    def _poll(self) -> None:
        while not self._stopping:
            self._producer.poll(_POLL_S)
            self._hand_over()
            if self._fatal:
                self._fatal = False
                old, self._producer = self._producer, self._make_producer(self._on_error)
                self._empty(old)

    def _empty(self, producer: Producer) -> None:
        producer.purge()
        producer.flush(1.0)
        self._hand_over()

    def _hand_over(self) -> None:
        if self._reports:
            reports, self._reports = self._reports, []
            self._loop.call_soon_threadsafe(_report_all, reports)

    def _on_error(self, error: KafkaError) -> None:
        log.warning("kafka: %s", error.str())
        self._fatal = self._fatal or error.fatal()


def _report_all(reports: list[tuple[Report, str | None]]) -> None:
    for report, error in reports:
        report(error)
