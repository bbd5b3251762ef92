"""The whole stack, with services of its own, as its parts are killed."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from leyden.infra.local.stack import start

from .load import Progress
from .rounds import Bench, stack_spec


@pytest.fixture(scope="session")
def n_rollouts() -> int:
    """Of a round; LEYDEN_FAULT_ROLLOUTS."""
    return int(os.environ.get("LEYDEN_FAULT_ROLLOUTS", "160"))


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path, n_rollouts: int) -> Iterator[Bench]:
    """All services and roles, ready, and a follower of what they make."""
    # Well below what a round writes to a partition, so that the open rollout reaches it.
    large = n_rollouts >= 1000
    max_replay_events = 500 if large else 150
    # Small steps soon, so that a short round has several versions; a long one would have so many that calls get stale.
    groups_per_step, step_max_wait_s = (24, 10.0) if large else (8, 2.0)
    folder = tmp_path_factory.mktemp("faults")
    spec = stack_spec(folder, tiny_model_dir, max_replay_events, groups_per_step, step_max_wait_s)
    with start(spec) as stack:
        stack.wait_ready(timeout_s=180.0)
        progress = Progress(stack.settings)
        yield Bench(stack, progress, max_replay_events)
        progress.close()
