"""Metrics of the learner."""

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320)


class LearnerMetrics:
    """Made once by the composition root."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.version = Gauge("leyden_learner_version", "Version of the trainer's weights", registry=registry)
        self.next_offset = Gauge(
            "leyden_learner_next_offset", "Offset of batches that the next step begins with", registry=registry
        )
        self.steps = Counter(
            "leyden_learner_steps_total", "Optimisation steps: applied or void", ["outcome"], registry=registry
        )
        self.groups = Counter(
            "leyden_learner_groups_total", "Messages of batches by what became of them", ["outcome"], registry=registry
        )
        self.rollouts = Counter("leyden_learner_rollouts_trained_total", "Rollouts trained", registry=registry)
        self.late_rewards = Counter(
            "leyden_learner_late_rewards_total",
            "Later revisions of groups that were trained already",
            ["outcome"],
            registry=registry,
        )
        self.tokens = Counter(
            "leyden_learner_tokens_total",
            "Tokens: trained carry loss, forward went through the model, plain would have without sharing",
            ["kind"],
            registry=registry,
        )
        self.not_reproducible = Counter(
            "leyden_learner_calls_not_reproducible_total",
            "Calls that are not trained because this parameter of theirs reshaped what was sampled from",
            ["parameter"],
            registry=registry,
        )
        self.values = Gauge(
            "leyden_learner_value", "Figures of the last step, see docs/metrics.md", ["name"], registry=registry
        )
        self.seconds = Histogram(
            "leyden_learner_seconds",
            "Seconds of a step's phases: wait, fetch, train, publish",
            ["phase"],
            buckets=_SECONDS,
            registry=registry,
        )
