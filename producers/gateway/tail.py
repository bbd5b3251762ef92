"""Watching the log for attempts that others started or ended."""

import asyncio
import logging
import threading

from confluent_kafka import OFFSET_END, Consumer, KafkaException, Message, TopicPartition

from ...avro import EventHead, RolloutEnded, RolloutStarted, decode_head
from ...infra import kafka
from ...infra.errors import DecodeError
from ...infra.settings import KafkaSettings
from .attempts import Attempts
from .identity import is_single

log = logging.getLogger(__name__)
_POLL_S = 0.5
_BATCH = 500
_RETRY_S = 1.0
# A RolloutStarted with its task or an end with its error is smaller; a longer record is a call, not worth decoding.
_MAX_BYTES = 16_384


class Tail:
    """Reads `events` from its end on, in a thread; best effort, as what it tells saves work and closes doors early."""

    def __init__(self, settings: KafkaSettings, topic: str, attempts: Attempts, group: str) -> None:
        self._settings, self._topic, self._attempts, self._group = settings, topic, attempts, group
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tail", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop. Blocking: call it off the loop."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            consumer = kafka.consumer(self._settings, self._group, **{"fetch.wait.max.ms": 100})
            try:
                topics = consumer.list_topics(self._topic, timeout=5.0).topics
                partitions = topics[self._topic].partitions
                consumer.assign([TopicPartition(self._topic, p, OFFSET_END) for p in partitions])
                self._follow(consumer)
            except KafkaException as error:
                log.warning("the log cannot be watched: %s", error)
                self._stop.wait(_RETRY_S)
            finally:
                consumer.close()

    def _follow(self, consumer: Consumer) -> None:
        while not self._stop.is_set():
            if heads := [head for message in consumer.consume(_BATCH, _POLL_S) if (head := _read(message)) is not None]:
                self._loop.call_soon_threadsafe(self._tell, heads)

    def _tell(self, heads: list[EventHead]) -> None:
        for head in heads:
            key = (head.rollout_id, head.attempt)
            if isinstance(head.body, RolloutStarted):
                self._attempts.started(key)
            else:
                self._attempts.close(key)


def _read(message: Message) -> EventHead | None:
    """The start or end of an attempt that may have more than one call, else None."""
    # len() does not copy the value, and most records here are calls, which are long.
    if (
        message.error() is not None
        or len(message) > _MAX_BYTES
        or is_single(str(message.key() or b"", "utf-8", "replace"))
    ):
        return None
    try:
        head = decode_head(message.value() or b"")
    except DecodeError as error:
        log.warning("%s [%s] @ %s: %s", message.topic(), message.partition(), message.offset(), error)
        return None
    return head if isinstance(head.body, RolloutStarted | RolloutEnded) else None
