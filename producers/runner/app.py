"""Composition root of the role `runner`."""

import signal
import threading

from ...avro.errors import LeydenError
from ...infra import kafka, topics
from ...infra.logs import setup_logging
from ...infra.ops_server import OpsServer
from ..publisher import Publisher
from .host_client import HostClient, HostLostError
from .intake import Intake
from .rollouts import RolloutRunner
from .settings import RunnerSettings


def main(settings: RunnerSettings) -> None:
    """Run until SIGTERM. Raises SettingsError, AgentError, TopicError at start, HostLostError later."""
    log = setup_logging("runner")
    if not settings.agent:
        raise LeydenError("no agent: set LEYDEN_AGENT to MODULE:NAME or FILE.py:NAME")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    # Before Kafka: what forks shares no memory with librdkafka and its threads.
    host = HostClient(
        settings.agent, settings.gateway_url, settings.api_key.get_secret_value(), settings.import_timeout_s
    )
    topics.require(kafka.admin(settings.kafka), settings.prefix, settings.kafka)
    publisher = Publisher(settings.kafka, settings.prefix)
    intake = Intake(settings, RolloutRunner(settings, host, publisher), lambda: host.alive)
    ops = OpsServer(
        settings.metrics_host,
        settings.metrics_port,
        healthy=lambda: None if host.alive else "the agent host has ended",
        ready=lambda: None if intake.ready else "no partitions of tasks yet",
    )
    log.info("running %s in %d slots, metrics on port %d", settings.agent, settings.slots, ops.port)
    try:
        intake.run(stop)
    finally:
        intake.close()
        lost = not host.alive
        host.close()
        publisher.close()
        ops.close()
    if lost:
        raise HostLostError("the agent host ended by itself; its log lines say why")
