"""Role `promoter`: makes a candidate live once it has passed every gate; only a rollback writes live besides it."""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from threading import Event

from ..avro import Checkpoint, now_ms
from ..infra import kafka, topics
from ..infra.checkpoint_log import CheckpointLog, CheckpointWriter
from ..infra.errors import LeydenError, ObjectStoreError
from ..infra.lifecycle import run_until_signal
from ..infra.lineage import Lineage
from ..infra.logs import setup_logging
from ..infra.objects import ObjectStore
from ..infra.ops_server import OpsServer
from . import gc
from .gates import GATES, Gate
from .metrics import PromoterMetrics
from .settings import PromoterSettings

log = logging.getLogger("leyden.serving")


def candidates(lineage: Lineage, refused: frozenset[int]) -> Iterator[Checkpoint]:
    """What may become live, the newest first: newer than live, neither refused nor abandoned.

    Without a live version (none yet, or a rollback ended half-way, or compaction kept a void announcement alone) every
    version that was not abandoned counts.
    """
    for version in sorted(lineage.versions, reverse=True):
        if lineage.live is not None and version <= lineage.live.version:
            return
        if version not in refused and not lineage.abandoned(version):
            yield lineage.versions[version]


def is_void(record: Checkpoint, lineage: Lineage) -> bool:
    """A live announcement that lost against a rollback. Compaction would keep it and drop the valid one before it."""
    return record.state == "live" and record.version in lineage.rolled_back


class Promoter:
    """One a policy. Reads its own announcements back, so it holds nothing that a restart would lose."""

    def __init__(
        self,
        settings: PromoterSettings,
        checkpoints: CheckpointLog,
        writer: CheckpointWriter,
        objects: ObjectStore,
        metrics: PromoterMetrics,
        gates: Sequence[Gate] = GATES,
    ) -> None:
        self._settings, self._checkpoints, self._writer = settings, checkpoints, writer
        self._objects, self._metrics, self._gates = objects, metrics, gates
        self._refused: frozenset[int] = frozenset()
        self._not_before = 0.0

    def run(self, stop: Event) -> None:
        """Until `stop`."""
        while not stop.is_set():
            self.step(0.2)

    def step(self, timeout_s: float) -> None:
        """Take in what comes within `timeout_s`, then promote where something is to be promoted."""
        record = self._checkpoints.poll(timeout_s)
        while record is not None:
            self._repair(record)
            record = self._checkpoints.poll(0.0)
        lineage = self._checkpoints.lineage
        self._metrics.live_version.set(lineage.live.version if lineage.live else -1)
        # The first decision waits for the end of the topic, where every rollback is known.
        if not self._checkpoints.caught_up or time.monotonic() < self._not_before:
            return
        try:
            if (chosen := self._choose(lineage)) is not None:
                self._announce(chosen, "it passed every gate")
                self._metrics.promoted.inc()
                self._collect(chosen)
        except (ObjectStoreError, kafka.KafkaUnavailableError) as error:
            log.warning("nothing can be promoted now, again in %.1f s: %s", self._settings.retry_s, error)
            self._not_before = time.monotonic() + self._settings.retry_s

    def _repair(self, record: Checkpoint) -> None:
        lineage = self._checkpoints.lineage
        if self._checkpoints.caught_up and is_void(record, lineage) and lineage.live is not None:
            self._announce(lineage.live, "the announcement after it was void")

    def _choose(self, lineage: Lineage) -> Checkpoint | None:
        for candidate in candidates(lineage, self._refused):
            reasons = ((gate.name, gate.check(candidate, lineage, self._objects)) for gate in self._gates)
            refusal = next(((name, why) for name, why in reasons if why), None)
            if refusal is None:
                return candidate
            log.error("version %d stays a candidate: %s: %s", candidate.version, *refusal)
            self._metrics.refused.labels(refusal[0]).inc()
            self._refused |= {candidate.version}
        return None

    def _announce(self, version: Checkpoint, why: str) -> None:
        self._writer.write([replace(version, state="live", ts_ms=now_ms())])
        log.info("version %d of %s is live: %s", version.version, version.policy, why)
        # Its own record is in the topic: read it back before the next decision.
        deadline = time.monotonic() + 30.0
        while (live := self._checkpoints.lineage.live) is None or live.version != version.version:
            if self._checkpoints.lineage.abandoned(version.version):
                return
            if time.monotonic() > deadline:
                raise kafka.KafkaUnavailableError(f"the announcement of version {version.version} was not read back")
            self._checkpoints.poll(0.2)

    def _collect(self, live: Checkpoint) -> None:
        if not self._settings.collect:
            return
        lineage = self._checkpoints.lineage
        if lineage.live is None or lineage.live.version != live.version:
            return
        try:
            self._metrics.collected.inc(len(gc.collect(self._settings, lineage, self._objects)))
        except LeydenError as error:
            log.warning("gc is left to the next promotion: %s", error)


def main(settings: PromoterSettings) -> None:
    """Run until SIGTERM or SIGINT."""
    setup_logging("promoter")
    topics.require(kafka.admin(settings.kafka), settings.prefix, settings.kafka)
    checkpoints = CheckpointLog(settings, "promoter")
    writer = CheckpointWriter(settings)
    promoter = Promoter(settings, checkpoints, writer, ObjectStore(settings.objects), PromoterMetrics())
    ops = OpsServer(
        settings.metrics_host,
        settings.metrics_port,
        ready=lambda: None if checkpoints.caught_up else "the topic checkpoints is not read to its end yet",
    )
    log.info("policy %s, metrics on port %d", settings.policy, ops.port)
    try:
        run_until_signal(promoter.run)
    finally:
        ops.close()
        checkpoints.close()
