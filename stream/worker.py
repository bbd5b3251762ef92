"""The Faust shell of a stage: one app, one agent over chunks, one table, and the processor between them."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

import faust
import uvloop
from aiokafka.errors import KafkaError
from faust.exceptions import ConsumerNotStarted
from faust.types import TP

from ..infra import kafka, topics
from ..infra.objects import ObjectStore
from ..infra.ops_server import OpsServer
from .credentials import faust_credentials
from .deliveries import Deliveries
from .faust_patches import apply_all
from .log_consumer import LogConsumer, LogTransport
from .metrics import StreamMetrics
from .payloads import Refetch
from .processor import Processor, Topics
from .settings import StreamSettings
from .watchdog import Watchdog

log = logging.getLogger(__name__)
TICK_S = 0.25


@dataclass(frozen=True, slots=True)
class StageSpec:
    """What differs between the two apps."""

    role: str
    stage: Any
    source: str
    output: str
    table: str


def make_app(spec: StageSpec, settings: StreamSettings, datadir: Path) -> faust.App:
    """A Faust app without agents, tables or module-level state."""
    return faust.App(
        f"{settings.prefix}{spec.role}",
        broker=[f"kafka://{host}" for host in settings.kafka.bootstrap.split(",")],
        broker_credentials=faust_credentials(settings.kafka),
        store="rocksdb://",
        datadir=str(datadir),
        web_enabled=False,
        topic_partitions=settings.kafka.partitions,
        topic_replication_factor=settings.kafka.replication_factor,
        topic_disable_leader=True,
        table_standby_replicas=0,
        broker_session_timeout=settings.session_timeout_s,
        broker_heartbeat_interval=settings.session_timeout_s / 4,
        broker_rebalance_timeout=max(10.0, settings.session_timeout_s),
        broker_request_timeout=max(20.0, settings.session_timeout_s),
        broker_commit_interval=1.0,
        # The log is the state: what is dropped in a rebalance is read again, so nothing has to be waited for.
        stream_wait_empty=False,
        consumer_auto_offset_reset="earliest",
        consumer_max_fetch_size=8 << 20,
        producer_acks=-1,
    )


class TableRows:
    """processor.RowStore on a Faust table: raw rows, so that their changelog can be awaited."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def _db(self, partition: int) -> Any:
        return self._table.data._db_for_partition(partition)

    def get(self, partition: int, key: bytes) -> bytes | None:
        """The row of a key."""
        return self._db(partition).get(key)

    def put(self, partition: int, rows: Sequence[tuple[bytes, bytes]], changelog_offset: int) -> None:
        """Store rows, then how far the changelog is contained."""
        db = self._db(partition)
        for key, row in rows:
            db.put(key, row)
        self._table.data.set_persisted_offset(TP(self._table.changelog_topic_name, partition), changelog_offset)

    def scan(self, partition: int) -> Iterable[tuple[bytes, bytes]]:
        """All rows but Faust's own bookkeeping."""
        own = self._table.data.offset_key
        return ((key, row) for key, row in self._db(partition).items() if key != own)


class StreamWorker:
    """Wires one stage into Faust."""

    def __init__(self, spec: StageSpec, settings: StreamSettings, objects: ObjectStore, datadir: Path) -> None:
        self.spec = spec
        self.settings = settings
        self.metrics = StreamMetrics(spec.role)
        self.app = make_app(spec, settings, datadir)
        self.transport = LogTransport(self.app.conf.broker_consumer, self.app)
        self.transport.source = spec.source
        self.transport.chunk_records = settings.chunk_records
        self.transport.fetch_wait_ms = settings.fetch_wait_ms
        self.transport.committable = lambda tp: self.processor.committable(tp.partition)
        self.app.transport = self.transport
        table: Any = self.app.Table(
            spec.table,
            partitions=settings.kafka.partitions,
            options={"driver": "rocksdict", "block_cache_size": 16 << 20},
            extra_topic_configs={
                "cleanup.policy": "compact,delete",
                "retention.ms": settings.row_retention_days * topics.DAY_MS,
            },
            key_type=bytes,
            value_type=bytes,
        )
        self.deliveries = Deliveries(kafka.producer(settings.kafka))
        self.refetch = Refetch(settings.kafka, spec.source)
        self.processor: Processor[Any] = Processor(
            spec.role,
            spec.stage,
            Topics(spec.source, spec.output, table.changelog_topic_name, settings.prefix + topics.DEAD_LETTERS),
            TableRows(table),
            self.deliveries,
            self.refetch,
            objects,
            self.metrics,
            self._crash,
            max_replay=settings.max_replay_events,
            recent=settings.recent_closed,
            cache_bytes=settings.payload_cache_bytes,
        )
        source = self.app.topic(spec.source, key_serializer="raw", value_serializer="raw", internal=False)
        self.app.agent(source, name=spec.role)(self._chunks)
        cast(Any, self.app.on_partitions_revoked).connect(self._revoked)
        self.app.task(self._tick)
        self._claiming = asyncio.Lock()
        self.watchdog = Watchdog(self, settings, spec.source, f"{settings.prefix}{spec.role}")

    def _crash(self, error: BaseException) -> None:
        log.error("%s cannot go on: %s", self.spec.role, error)
        task = asyncio.ensure_future(self.app.crash(error))
        task.add_done_callback(lambda done: done.exception())

    async def _chunks(self, stream: Any) -> None:
        async for event in stream.events():
            message = event.message
            generation = message.generation_id
            # A chunk can come in the moment between Faust's seek and its end of the rebalance.
            while self.app.rebalancing and generation == self.app.consumer_generation_id:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            if generation != self.app.consumer_generation_id:
                continue
            try:
                await self._take(message.tp, event.value)
            except Exception as error:
                # Faust would start the agent again behind the chunk.
                self._crash(error)
                raise

    async def _take(self, tp: TP, records: list[Any]) -> None:
        await self._claim(tp.partition)
        seek = await self.processor.chunk(tp.partition, records)
        if seek is not None:
            await self._seek(tp, seek)

    async def _seek(self, tp: TP, offset: int) -> None:
        try:
            await self.app.consumer.seek(tp, offset)
        except KafkaError as error:
            log.warning("seek of %s/%d to %d failed, it is tried again: %r", tp.topic, tp.partition, offset, error)

    async def _claim(self, partition: int) -> None:
        """Own an assigned partition, from the committed offset on."""
        if self.processor.position(partition) is not None:
            return
        async with self._claiming:
            tp = TP(self.spec.source, partition)
            generation = self.app.consumer_generation_id
            try:
                start = await cast(LogConsumer, self.app.consumer).start_offset(tp)
            except KafkaError as error:
                log.warning("no committed offset of %s/%d yet: %r", tp.topic, partition, error)
                return
            current = generation == self.app.consumer_generation_id and tp in self.app.consumer.assignment()
            if current and not self.app.rebalancing and self.processor.position(partition) is None:
                self.processor.own(partition, start)

    async def _revoked(self, app: Any, revoked: set[TP], **_: Any) -> None:
        await self.processor.disown([tp.partition for tp in revoked if tp.topic == self.spec.source])

    async def _tick(self) -> None:
        while not self.app.should_stop:
            await asyncio.sleep(TICK_S)
            if self.app.rebalancing:
                continue
            assigned = [tp for tp in self.app.consumer.assignment() if tp.topic == self.spec.source]
            for tp in assigned:
                await self._claim(tp.partition)
            ends = self.ends()
            self.processor.observe(ends)
            for partition, offset in self.processor.stalled(ends).items():
                await self._seek(TP(self.spec.source, partition), offset)
            await self.processor.expire(ends)

    def ends(self) -> dict[int, int]:
        """End of the log of each owned partition, as the last fetch said."""
        known: dict[int, int] = {}
        for partition in self.processor.owned():
            # Another thread may lose the partition between the two lines.
            with suppress(AssertionError, KafkaError):
                end = self.app.consumer.highwater(TP(self.spec.source, partition))
                known |= {partition: end} if end is not None else {}
        return known

    # --- what the watchdog asks, from its thread ----------------------------------------------------------------------

    def progress(self) -> tuple[object, ...]:
        """Chunks taken and settled, records of the table recovered, generations of the group."""
        recovery = cast(Any, self.app.tables).recovery
        recovered = tuple(sorted((tp.partition, at or 0) for tp, at in list(recovery.active_offsets.items())))
        return self.processor.n_progress, recovered, self.app.consumer_generation_id

    def positions(self) -> dict[tuple[str, int], int | None]:
        """Of the source partitions assigned."""
        # Not `app.consumer`: that would make one in the watchdog's thread while the app starts.
        consumer = cast(Any, self.app)._consumer
        try:
            assigned = consumer.assignment() if consumer is not None else set()
        except ConsumerNotStarted:
            assigned = set()
        return {
            (tp.topic, tp.partition): self.processor.position(tp.partition)
            for tp in assigned
            if tp.topic == self.spec.source
        }

    def joined(self) -> bool:
        """Whether the group gave this worker a generation that is still on."""
        return self.app.started and self.app.consumer_generation_id > 0 and not self.app.rebalancing

    def state(self) -> str:
        """For the log line of a stall."""
        recovering = cast(Any, self.app.tables).recovery.in_recovery
        return (
            f"generation {self.app.consumer_generation_id}, rebalancing {self.app.rebalancing}, "
            f"recovering {recovering}, positions {self.positions()}, unsettled {self.processor.unsettled()}"
        )

    def ready(self) -> str | None:
        """None once partitions are assigned and the table is recovered."""
        return "rebalancing or recovering" if self.app.rebalancing or not self.app.started else None

    def close(self) -> None:
        """After the app stopped."""
        self.watchdog.stop()
        self.deliveries.close()
        self.refetch.close()


def run(spec: StageSpec, settings: StreamSettings, objects: ObjectStore, datadir: Path) -> NoReturn:
    """Run until SIGTERM (exit 0), a crash (exit 1) or a stall (exit 70)."""
    apply_all()
    for name in ("faust", "mode", "aiokafka"):
        logging.getLogger(name).setLevel(logging.WARNING)
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    worker = StreamWorker(spec, settings, objects, datadir)
    ops = OpsServer(settings.metrics_host, settings.metrics_port, worker.watchdog.healthy, worker.ready)
    log.info("metrics at http://%s:%d/metrics", settings.metrics_host, ops.port)
    shell = faust.Worker(worker.app, loop=loop, override_logging=False, redirect_stdouts=False, quiet=True)
    worker.watchdog.start()
    try:
        shell.execute_from_commandline()
    finally:
        worker.close()
        ops.close()
    raise cast(Any, SystemExit)(1)
