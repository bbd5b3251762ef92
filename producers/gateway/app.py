"""The gateway put together."""

import asyncio
import logging
import signal
from functools import partial

import uvloop
from confluent_kafka import KafkaException, Producer

from ...avro import new_id
from ...infra import kafka, topics
from ...infra.logs import setup_logging
from ...infra.objects import ObjectStore
from ...infra.ops_server import OpsServer
from . import metrics
from .attempts import Attempts
from .calls import Calls
from .engine import Engine
from .event_log import EventLog
from .feedback import Feedback
from .kafka_writer import ErrorCallback, KafkaWriter
from .listener import Listener
from .server import Gateway
from .settings import GatewaySettings
from .spool import Spool
from .tail import Tail

log = logging.getLogger(__name__)
_FLUSH_S = 4.0
_PROBE_S = 3.0


def main(settings: GatewaySettings) -> None:
    """Serve until SIGTERM or SIGINT; then finish what is under way."""
    setup_logging("gateway")
    _check_topics(settings)
    uvloop.run(serve(settings))


async def serve(settings: GatewaySettings, stop: asyncio.Event | None = None) -> None:
    """Everything is made here. Order of the end: no new calls, calls under way finish, events become safe."""
    loop = asyncio.get_running_loop()
    stop = stop or asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    topic = settings.prefix + topics.EVENTS
    spool = Spool(settings.spool, settings.spool_max_bytes, settings.spool_segment_bytes)
    event_log = EventLog(KafkaWriter(partial(_producer, settings), topic, loop), spool, ObjectStore(settings.objects))
    attempts = Attempts(settings.max_attempts_known, settings.gateway_alone)
    metrics.ATTEMPTS.set_function(lambda: len(attempts))
    engine = Engine(settings.engine, settings.engine_wait_s, settings.engine_retry_s, settings.engine_read_timeout_s)
    calls = Calls(settings, engine, event_log, attempts)
    feedback = Feedback(event_log, attempts, settings.max_note_bytes)
    gateway = Gateway(settings, calls, feedback, engine)
    tail = Tail(settings.kafka, topic, attempts, f"{settings.prefix}gateway-tail-{new_id()}")

    listener = Listener(gateway)
    host, port = settings.listen
    await listener.open(host, port)
    ops = OpsServer(
        settings.metrics_host,
        settings.metrics_port,
        ready=lambda: "stopping" if gateway.stopping else "the spool is full" if event_log.full else None,
    )
    log.info("listening on %s:%s, metrics on port %s", host, port, ops.port)
    await stop.wait()

    listener.stop_listening()
    if not await gateway.finish(settings.shutdown_s):
        log.warning("calls were still under way after %s s", settings.shutdown_s)
    await listener.close()
    await asyncio.to_thread(tail.close)
    await event_log.close(_FLUSH_S)
    await engine.close()
    ops.close()


def _producer(settings: GatewaySettings, on_error: ErrorCallback) -> Producer:
    return kafka.producer(
        settings.kafka,
        settings.linger_ms,
        **{
            "message.timeout.ms": int(settings.kafka_timeout_s * 1000),
            "queue.buffering.max.kbytes": 262_144,
            "reconnect.backoff.max.ms": 1000,
            "error_cb": on_error,
        },
    )


def _check_topics(settings: GatewaySettings) -> None:
    """Refuse to start on topics that differ; an absent Kafka is no reason: events then go to disk."""
    admin = kafka.admin(settings.kafka)
    try:
        admin.list_topics(timeout=_PROBE_S)
        topics.require(admin, settings.prefix, settings.kafka)
    except KafkaException as error:
        log.warning("starting without Kafka: %s", error)
