"""Role `reloader`: stands beside one vLLM and keeps it on the live checkpoint."""

import json
import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

from ..avro import Checkpoint, now_ms
from ..infra import kafka, manifest, topics
from ..infra.checkpoint_log import CheckpointLog
from ..infra.errors import LeydenError, SettingsError
from ..infra.lifecycle import run_until_signal
from ..infra.logs import setup_logging
from ..infra.objects import ObjectStore
from ..infra.ops_server import OpsServer
from .engine_client import EngineClient, EngineUnavailableError
from .follow import View, backoff_s, seen, to_load, to_prefetch, why_not_ready
from .metrics import ReloaderMetrics
from .settings import ReloaderSettings
from .store import CheckpointStore
from .vllm_plugin.checkpoint_files import BadCheckpointError

log = logging.getLogger("leyden.serving")


@dataclass(slots=True)
class Failures:
    """Failures in a row of one version, and when it may be tried again."""

    version: int | None = None
    count: int = 0
    not_before: float = 0.0


class Reloader:
    """Follows `checkpoints`; a new live version is fetched, verified, loaded, and the engine asked what it runs.

    Nothing is remembered that a restart would lose: live comes from the topic, the version from the engine, files from
    the cache after their digests were checked.
    """

    def __init__(
        self,
        settings: ReloaderSettings,
        checkpoints: CheckpointLog,
        objects: ObjectStore,
        store: CheckpointStore,
        engine: EngineClient,
        metrics: ReloaderMetrics,
        history: Path,
    ) -> None:
        self._settings, self._checkpoints, self._objects = settings, checkpoints, objects
        self._store, self._engine, self._metrics, self._history = store, engine, metrics, history
        self._failures = Failures()
        self._ahead: dict[int, Future[Path]] = {}
        self._ahead_pool = ThreadPoolExecutor(1, thread_name_prefix="fetch-ahead")
        self._next_poll = 0.0
        self._away: str | None = None
        self.view = View(checkpoints.lineage, False, None)

    def run(self, stop: Event) -> None:
        """Until `stop`."""
        while not stop.is_set():
            self.step()

    def step(self) -> None:
        """Take in what is new, and load once where the engine is behind and its back-off is over."""
        self._look()
        if (live := to_load(self.view)) is None:
            self._fetch_ahead(to_prefetch(self.view))
            return
        if live.version == self._failures.version and time.monotonic() < self._failures.not_before:
            return
        try:
            self._load(live)
            self._failures = Failures()
        except LeydenError as error:
            self._failed(live, error)

    def close(self) -> None:
        """Begin no further fetch."""
        self._ahead_pool.shutdown(wait=False, cancel_futures=True)

    def why_not_ready(self) -> str | None:
        """For /readyz, from any thread."""
        return why_not_ready(self.view)

    def _look(self) -> None:
        # A record ends the wait, so a new live version is seen at once; the bound lets the engine be asked in between.
        self._checkpoints.poll(min(max(self._next_poll - time.monotonic(), 0.01), 0.2))
        while self._checkpoints.poll(0.0) is not None:
            pass
        if time.monotonic() >= self._next_poll:
            self._ask_engine()
        self._set_view(replace(self.view, lineage=self._checkpoints.lineage, caught_up=self._checkpoints.caught_up))

    def _ask_engine(self) -> None:
        try:
            state, away = self._engine.state(), None
        except EngineUnavailableError as error:
            state, away = None, str(error)
        if away != self._away:
            log.warning("the engine is away: %s", away) if away else log.info("the engine answers")
        self._away = away
        self._next_poll = time.monotonic() + self._settings.engine_poll_s
        self._set_view(replace(self.view, engine=state))

    def _set_view(self, view: View) -> None:
        self.view = replace(view, ready_replica=seen(view))
        self._metrics.live_version.set(view.lineage.live.version if view.lineage.live else -1)
        self._metrics.engine_version.set(view.engine.version if view.engine else -1)

    def _fetch_ahead(self, candidate: Checkpoint | None) -> None:
        if candidate is None or candidate.version in self._ahead:
            return
        for outdated in self._ahead.values():
            outdated.cancel()
        self._ahead = {candidate.version: self._ahead_pool.submit(self._fetch, candidate)}

    def _fetch(self, announced: Checkpoint) -> Path:
        entry, digest = manifest.load(announced.policy, announced.version, self._objects)
        if digest != announced.manifest_sha256:
            raise BadCheckpointError(f"the manifest of version {announced.version} is not the announced one")
        return self._store.fetch(entry)

    def _fetched(self, live: Checkpoint) -> Path:
        # A fetch ahead that failed is a fetch that failed; the next try starts afresh.
        ahead = self._ahead.pop(live.version, None)
        return self._fetch(live) if ahead is None else ahead.result()

    def _load(self, live: Checkpoint) -> None:
        start = time.perf_counter()
        folder = self._fetched(live)
        fetched = time.perf_counter()
        stage_s, pause_s = self._engine.reload(live.version, folder)
        self._ask_engine()
        seconds = {
            "fetch": fetched - start,
            "stage": stage_s,
            "pause": pause_s,
            "announcement_to_serving": (now_ms() - live.ts_ms) / 1000,
        }
        for name, value in seconds.items():
            self._metrics.seconds.labels(name).observe(value)
        self._metrics.reloads.inc()
        log.info("serving version %d: %s", live.version, ", ".join(f"{n} {v:.3f} s" for n, v in seconds.items()))
        with self._history.open("a") as file:
            line = {"policy": live.policy, "version": live.version, "served_ms": now_ms(), "seconds": seconds}
            file.write(json.dumps(line) + "\n")
        self._store.keep_last(self._settings.keep_versions, using=folder)

    def _failed(self, live: Checkpoint, error: LeydenError) -> None:
        count = self._failures.count + 1 if self._failures.version == live.version else 1
        pause_s = backoff_s(count, self._settings.backoff_s, self._settings.backoff_max_s)
        self._failures = Failures(live.version, count, time.monotonic() + pause_s)
        self._metrics.failures.labels(type(error).__name__).inc()
        log.error("version %d is not loaded, again in %.1f s: %s", live.version, pause_s, error)
        self._next_poll = 0.0


def main(settings: ReloaderSettings) -> None:
    """Run until SIGTERM or SIGINT. A load balancer sends requests to the engine while this role's /readyz says 200."""
    setup_logging("reloader")
    if not settings.engine.reload_token.get_secret_value():
        raise SettingsError("engine.reload_token is empty: give the engine and its reloader the same one")
    topics.require(kafka.admin(settings.kafka), settings.prefix, settings.kafka)
    root = settings.cache_dir or settings.state_dir / "reloader"
    objects = ObjectStore(settings.objects)
    store = CheckpointStore(root, objects, settings.download_threads)
    engine = EngineClient(settings.engine, settings.reload_timeout_s)
    checkpoints = CheckpointLog(settings, "reloader")
    reloader = Reloader(settings, checkpoints, objects, store, engine, ReloaderMetrics(), root / "reloads.jsonl")
    ops = OpsServer(settings.metrics_host, settings.metrics_port, ready=reloader.why_not_ready)
    log.info("policy %s, engine %s, metrics on port %d", settings.policy, settings.engine.url, ops.port)
    try:
        run_until_signal(reloader.run)
    finally:
        ops.close()
        reloader.close()
        checkpoints.close()
        engine.close()
        store.close()
