"""What the stream roles measure; names begin with leyden_assemble_ or leyden_group_."""

from dataclasses import dataclass, field

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

_ITEMS = ("applied", "replayed", "duplicates", "late", "ignored", "void", "held_back")


@dataclass(slots=True)
class StreamMetrics:
    """One set a role; `role` is assemble or group."""

    role: str
    registry: CollectorRegistry = field(default_factory=lambda: REGISTRY)
    items: Counter = field(init=False)
    records: Counter = field(init=False)
    outputs: Counter = field(init=False)
    suppressed: Counter = field(init=False)
    gaps: Counter = field(init=False)
    gone: Counter = field(init=False)
    refetched: Counter = field(init=False)
    expiries: Counter = field(init=False)
    open: Gauge = field(init=False)
    held: Gauge = field(init=False)
    lag: Gauge = field(init=False)
    replay: Gauge = field(init=False)
    cache_bytes: Gauge = field(init=False)
    settle_seconds: Histogram = field(init=False)

    def __post_init__(self) -> None:
        def name(what: str) -> str:
            return f"leyden_{self.role}_{what}"

        reg = self.registry
        self.items = Counter(name("items_total"), "Items by what became of them", ["outcome"], registry=reg)
        self.records = Counter(name("records_total"), "Records taken from the log", registry=reg)
        self.outputs = Counter(name("outputs_total"), "Outputs acknowledged", ["kind"], registry=reg)
        self.suppressed = Counter(name("closed_without_output_total"), "Keys closed without an output", registry=reg)
        self.gaps = Counter(name("gaps_total"), "Chunks refused because records before them were missing", registry=reg)
        self.gone = Counter(name("gone_total"), "Offsets that Kafka no longer had when they were wanted", registry=reg)
        self.refetched = Counter(name("refetched_total"), "Records read from Kafka again", registry=reg)
        self.expiries = Counter(name("expiries_total"), "Expiry records produced", ["reason"], registry=reg)
        self.open = Gauge(name("open_keys"), "Keys open in memory", ["partition"], registry=reg)
        self.held = Gauge(name("holding_keys"), "Open keys that hold the commit back", ["partition"], registry=reg)
        self.lag = Gauge(name("lag_records"), "End of the log less read position", ["partition"], registry=reg)
        self.replay = Gauge(name("replay_records"), "Read position less safe offset", ["partition"], registry=reg)
        self.cache_bytes = Gauge(name("payload_cache_bytes"), "Payloads in memory", registry=reg)
        self.settle_seconds = Histogram(
            name("settle_seconds"), "From a chunk's outputs to their durable rows", registry=reg
        )

    def count(self, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        """Add the differences of log_state.Counts, in the order of its fields."""
        for outcome, old, new in zip(_ITEMS, before, after, strict=True):
            if new > old:
                self.items.labels(outcome).inc(new - old)
