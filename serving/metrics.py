"""Metrics of the roles that deliver checkpoints."""

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

SECONDS_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 300)


class ReloaderMetrics:
    """leyden_reloader_*"""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.live_version = Gauge("leyden_reloader_live_version", "Version announced live; -1: none", registry=registry)
        self.engine_version = Gauge(
            "leyden_reloader_engine_version", "Version that the engine runs; -1: it is away", registry=registry
        )
        self.reloads = Counter("leyden_reloader_reloads_total", "Reloads that succeeded", registry=registry)
        self.failures = Counter("leyden_reloader_failures_total", "Failed reloads", ["reason"], registry=registry)
        self.seconds = Histogram(
            "leyden_reloader_seconds",
            "Seconds of a reload: fetch, stage (read beside serving), pause, announcement_to_serving",
            ["part"],
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )


class PromoterMetrics:
    """leyden_promoter_*"""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.promoted = Counter("leyden_promoter_promoted_total", "Versions made live", registry=registry)
        self.refused = Counter("leyden_promoter_refused_total", "Candidates refused", ["gate"], registry=registry)
        self.live_version = Gauge("leyden_promoter_live_version", "Version announced live; -1: none", registry=registry)
        self.collected = Counter(
            "leyden_promoter_collected_parts_total", "serve/ and resume/ folders removed", registry=registry
        )
