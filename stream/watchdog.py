"""The watchdog: a worker with work before it and no progress says why and exits, to be started again.

Faust can stand still for good while it looks alive (seen: table recovery after a broker restart), so exactness needs a
companion for liveness. It watches from a thread of its own with a Kafka client of its own: a broker that does not
answer is no stall of the worker, and recovering a table is progress.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from confluent_kafka import Consumer, KafkaException, TopicPartition

from ..infra import kafka
from .settings import StreamSettings

log = logging.getLogger(__name__)
EXIT_STALLED = 70
LOOK_EVERY_S = 1.0
JOINING_PATIENCE = 3


class Watched(Protocol):
    """What the watchdog asks a worker, from another thread."""

    def progress(self) -> tuple[object, ...]:
        """Anything that changes when something was done."""
        ...

    def positions(self) -> dict[tuple[str, int], int | None]:
        """(topic, partition) assigned -> next offset wanted; None: not known yet."""
        ...

    def joined(self) -> bool:
        """Whether the worker is a member of its group, be it without partitions."""
        ...

    def state(self) -> str:
        """A line for the log."""
        ...


class Stall:
    """Decides, from what is seen at each look, whether the worker stands still. No clock, no Kafka."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._token: tuple[object, ...] | None = None
        self._since: float | None = None

    def look(self, now: float, token: tuple[object, ...], work: bool | None) -> float:
        """Seconds that the worker has stood still with work before it. `work` None: Kafka does not say."""
        if work is not True or token != self._token or self._since is None:
            self._token, self._since = token, now
        return now - self._since

    def stalled(self, seconds: float, joined: bool) -> bool:
        """Whether that is too long. Joining may have to wait for members that died, so it is given longer."""
        return seconds > self._timeout_s * (1 if joined else JOINING_PATIENCE)


class Watchdog:
    """Runs `Stall` in a thread and ends the process."""

    def __init__(
        self,
        watched: Watched,
        settings: StreamSettings,
        source: str,
        group: str,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        self._leave = leave
        self._watched = watched
        self._settings = settings
        self._source = source
        self._group = group
        self._stall = Stall(settings.stall_timeout_s)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="watchdog")
        self._still_s = 0.0

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stop.set()

    def healthy(self) -> str | None:
        """For /healthz."""
        return (
            f"no progress for {self._still_s:.0f} s"
            if self._stall.stalled(self._still_s, self._watched.joined())
            else None
        )

    def _run(self) -> None:
        client = kafka.consumer(self._settings.kafka, self._group)
        while not self._stop.wait(LOOK_EVERY_S):
            self._still_s = self._stall.look(time.monotonic(), self._watched.progress(), self._has_work(client))
            if self._stall.stalled(self._still_s, self._watched.joined()):
                log.critical(
                    "no progress for %.0f s with work to do, exiting to be started again: %s",
                    self._still_s,
                    self._watched.state(),
                )
                self._leave(EXIT_STALLED)
                return

    def _has_work(self, client: Consumer) -> bool | None:
        """Whether records lie before this worker; None where Kafka does not answer."""
        positions = self._watched.positions()
        try:
            if not positions:
                # Without partitions there is work only for one that is not even a member of its group.
                return None if self._watched.joined() else self._group_lags(client)
            for (topic, partition), position in positions.items():
                low, end = client.get_watermark_offsets(TopicPartition(topic, partition), timeout=2.0)
                if position is None:
                    position = self._committed(client, topic, partition)
                if end > max(low, position):
                    return True
        except KafkaException as error:
            log.warning("the watchdog gets no answer from Kafka: %s", error)
            return None
        return False

    def _committed(self, client: Consumer, topic: str, partition: int) -> int:
        return max(0, client.committed([TopicPartition(topic, partition)], timeout=2.0)[0].offset)

    def _group_lags(self, client: Consumer) -> bool:
        partitions = client.list_topics(self._source, timeout=2.0).topics[self._source].partitions
        return any(
            client.get_watermark_offsets(TopicPartition(self._source, p), timeout=2.0)[1]
            > self._committed(client, self._source, p)
            for p in partitions
        )
