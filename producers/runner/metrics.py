"""Metrics of the role `runner`."""

from prometheus_client import Counter, Gauge, Histogram

ATTEMPTS_TOTAL = Counter("leyden_runner_attempts_total", "Attempts that ended, by how", ["status"])
SLOTS_BUSY = Gauge("leyden_runner_slots_busy", "Rollouts that are being run")
ROLLOUT_SECONDS = Histogram(
    "leyden_runner_rollout_seconds",
    "From taking a task to the acknowledged end of its rollout, all attempts",
    buckets=(0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000),
)
REDELIVERED_TOTAL = Counter("leyden_runner_redelivered_total", "Tasks that another runner had begun", ["decision"])
