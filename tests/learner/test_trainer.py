"""The learner's loop where its surroundings fail: with fakes, since no real log can be told to behave so."""

from pathlib import Path
from threading import Event
from unittest.mock import MagicMock

import pytest
from leyden.infra.lineage import Lineage
from leyden.infra.manifest import manifest_key
from leyden.learner.settings import LearnerSettings
from leyden.learner.trainer import Trainer


class EndlessLog:
    """A fake CheckpointLog that never reaches the end of its topic; the stop comes while it is read."""

    lineage = Lineage("policy")
    caught_up = False

    def __init__(self, stop: Event) -> None:
        self._stop = stop

    def poll(self, timeout_s: float) -> None:
        self._stop.set()


@pytest.fixture
def parts() -> dict[str, MagicMock]:
    """Fakes for all that a trainer is made of; the store has one version."""
    names = ("policy", "crew", "publisher", "objects", "trajectories", "maker", "open_batches", "metrics")
    parts = {name: MagicMock() for name in names}
    parts["objects"].list_keys.return_value = [manifest_key("policy", 0)]
    return parts


def test_a_stop_before_the_announcements_are_read_announces_nothing(
    parts: dict[str, MagicMock], tmp_path: Path
) -> None:
    stop = Event()
    trainer = Trainer(LearnerSettings(state_dir=tmp_path), checkpoints=EndlessLog(stop), **parts)  # pyright: ignore[reportArgumentType]
    trainer.run(stop)
    assert not parts["publisher"].mock_calls
    assert not trainer.ready
    parts["crew"].stop.assert_called_once_with()
