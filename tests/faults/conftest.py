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
    max_replay_events = 500 if n_rollouts >= 1000 else 150
    with start(stack_spec(tmp_path_factory.mktemp("faults"), tiny_model_dir, max_replay_events)) as stack:
        stack.wait_ready(timeout_s=180.0)
        progress = Progress(stack.settings)
        yield Bench(stack, progress, max_replay_events)
        progress.close()
