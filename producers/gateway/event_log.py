"""Where events become safe: Kafka, or the disk spool while Kafka is away."""

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass
from functools import partial

from ...avro import Event, encode
from ...infra.errors import LeydenError, ObjectStoreError
from ...infra.objects import ObjectStore
from ...infra.parking import park
from ...infra.topics import MAX_RECORD_BYTES
from . import metrics
from .kafka_writer import KafkaWriter
from .spool import Record, Spool

log = logging.getLogger(__name__)
_DRAIN_BATCH = 500
_RETRY_S = 1.0


class NotSafeError(LeydenError):
    """An event is neither in Kafka nor on disk; whoever waits for it must not be told that it is."""


@dataclass(slots=True)
class _Pending:
    record: Record
    safe: asyncio.Future[None]
    submitted: float


class EventLog:
    """`submit` an event; the future ends when Kafka acknowledged it or the spool has it on disk.

    Order: events are sent in the order of `submit`. The first failed delivery turns to the spool: what Kafka has still
    under way is waited for, the failed ones are written first, then all that came since. The spool is drained from its
    head; only when it is empty, and nothing waits for it, events go to Kafka directly again.
    """

    def __init__(self, writer: KafkaWriter, spool: Spool, objects: ObjectStore) -> None:
        self._writer = writer
        self._spool = spool
        self._objects = objects
        self._spooling = not spool.empty
        self._n_in_kafka = 0  # sent, not yet reported
        self._failed: deque[_Pending] = deque()
        self._waiting: deque[_Pending] = deque()
        self._appending = False
        self._append_now = asyncio.Event()
        self._drain_now = asyncio.Event()
        self._direct = asyncio.Event()
        self._parkings: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.Future[None]] = set()  # submitted, not yet safe
        self._tasks = [asyncio.create_task(self._append_loop()), asyncio.create_task(self._drain_loop())]
        self._turn(self._spooling, "events were left on disk")

    @property
    def full(self) -> bool:
        """The spool is full: no new call should begin."""
        return self._spooling and self._spool.full

    def submit(self, event: Event) -> asyncio.Future[None]:
        """Make one event safe. The future fails with NotSafeError; await it shielded, others may depend on it."""
        value = encode(event)
        pending = _Pending(
            (event.rollout_id.encode(), value), asyncio.get_running_loop().create_future(), time.monotonic()
        )
        self._open.add(pending.safe)
        pending.safe.add_done_callback(self._open.discard)
        if len(value) > MAX_RECORD_BYTES:
            task = asyncio.create_task(self._park(event, pending))
            self._parkings.add(task)
            task.add_done_callback(self._parkings.discard)
        else:
            self._route(pending)
        return pending.safe

    async def drained(self, timeout_s: float) -> bool:
        """Wait until all that was on disk is in Kafka; False after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._direct.wait()
        except TimeoutError:
            return False
        return True

    async def close(self, timeout_s: float) -> None:
        """Bring everything submitted to Kafka or to disk, then stop."""
        if self._parkings:
            await asyncio.wait(self._parkings, timeout=timeout_s)
        await asyncio.to_thread(self._writer.close, timeout_s)
        if self._open:
            await asyncio.wait(self._open, timeout=timeout_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._spool.close()

    async def _park(self, event: Event, pending: _Pending) -> None:
        try:
            header = await asyncio.to_thread(park, event, self._objects)
        except (ObjectStoreError, ValueError) as error:
            _fail(
                pending,
                "too_large",
                f"event {event.event_id} of rollout {event.rollout_id} is too large for Kafka: {error}",
            )
            return
        metrics.PARKED.inc()
        pending.record = (pending.record[0], header)
        self._route(pending)

    def _route(self, pending: _Pending) -> None:
        if self._spooling:
            self._waiting.append(pending)
            self._append_now.set()
        else:
            self._n_in_kafka += 1
            self._writer.send(*pending.record, partial(self._delivered, pending))

    def _delivered(self, pending: _Pending, error: str | None) -> None:
        self._n_in_kafka -= 1
        if error is None:
            _succeed(pending, "kafka")
        else:
            self._failed.append(pending)
            if not self._spooling:
                self._turn(True, error)
        if self._n_in_kafka == 0:
            self._append_now.set()

    def _turn(self, spooling: bool, why: str) -> None:
        self._spooling = spooling
        if spooling:
            self._direct.clear()
            self._drain_now.set()
            log.warning("events go to disk: %s", why)
        else:
            self._direct.set()
            log.info("events go to Kafka: %s", why)

    async def _append_loop(self) -> None:
        while True:
            await self._append_now.wait()
            self._append_now.clear()
            batch = [*self._failed, *self._waiting]
            if self._n_in_kafka or not batch:
                continue
            self._failed.clear()
            self._waiting.clear()
            self._appending = True
            try:
                await asyncio.to_thread(self._spool.append, [pending.record for pending in batch])
            except OSError as error:
                for pending in batch:
                    _fail(pending, "spool", f"Kafka is away and the spool cannot be written: {error}")
                continue
            finally:
                self._appending = False
            metrics.SPOOL_EVENTS.inc(len(batch))
            for pending in batch:
                _succeed(pending, "disk")

    async def _drain_loop(self) -> None:
        while True:
            await self._drain_now.wait()
            oldest = await asyncio.to_thread(self._spool.oldest)
            if oldest is not None:
                path, records = oldest
                await self._drain(records)
                await asyncio.to_thread(self._spool.remove, path)
            elif self._failed or self._waiting or self._appending or self._n_in_kafka:
                self._append_now.set()
                await asyncio.sleep(0.01)
            elif self._spool.empty:
                self._drain_now.clear()
                self._turn(False, "the spool is empty")

    async def _drain(self, records: list[Record]) -> None:
        """Send all of a segment, in order; one record goes ahead, so that an absent Kafka is asked with one only."""
        at, width = 0, 1
        while at < len(records):
            batch = records[at : at + width]
            outcomes = await asyncio.gather(*(self._send(record) for record in batch))
            n_sent = next((i for i, error in enumerate(outcomes) if error is not None), len(batch))
            at += n_sent
            width = _DRAIN_BATCH
            if n_sent < len(batch):
                log.warning("the spool waits: %s", outcomes[n_sent])
                width = 1
                await asyncio.sleep(_RETRY_S)

    def _send(self, record: Record) -> asyncio.Future[str | None]:
        outcome: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._writer.send(*record, partial(_report, outcome))
        return outcome


def _report(outcome: asyncio.Future[str | None], error: str | None) -> None:
    if not outcome.done():
        outcome.set_result(error)


def _succeed(pending: _Pending, where: str) -> None:
    metrics.ACK_SECONDS.observe(time.monotonic() - pending.submitted)
    metrics.EVENTS.labels(where).inc()
    if not pending.safe.done():
        pending.safe.set_result(None)


def _fail(pending: _Pending, reason: str, why: str) -> None:
    log.error("%s", why)
    metrics.EVENTS_UNSAFE.labels(reason).inc()
    if not pending.safe.done():
        pending.safe.set_exception(NotSafeError(why))
