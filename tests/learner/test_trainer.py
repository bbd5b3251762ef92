"""The learner's loop where its surroundings fail: with fakes, since no real log can be told to behave so."""

from collections import Counter
from pathlib import Path
from threading import Event
from unittest.mock import MagicMock

import pytest
from leyden.avro import Checkpoint
from leyden.infra.lineage import Lineage, fold
from leyden.infra.manifest import manifest_key
from leyden.learner import trainer as trainer_module
from leyden.learner.plan import Message, Plan, Standing, plan
from leyden.learner.settings import LearnerSettings
from leyden.learner.trainer import Trainer

from .test_plan import member, message


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


class GivenBatches:
    """A fake BatchReader that hands out what it was given."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = iter(messages)

    def poll(self, timeout_s: float) -> Message | None:
        return next(self._messages, None)


def caught_up_log() -> MagicMock:
    """A fake CheckpointLog with version 0, at the end of its topic."""
    log = MagicMock(caught_up=True, lineage=fold("policy", [Checkpoint("policy", 0, "live", None, "", "", b"", "", 0)]))
    log.poll.return_value = None
    return log


def test_what_is_dropped_is_not_held_while_a_step_fills(
    parts: dict[str, MagicMock], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_held: list[int] = []

    def counting(messages: list[Message], standing: Standing) -> Plan:
        n_held.append(len(messages))
        return plan(messages, standing)

    monkeypatch.setattr(trainer_module, "plan", counting)
    settings = LearnerSettings(state_dir=tmp_path, groups_per_step=2)
    trainer = Trainer(settings, checkpoints=caught_up_log(), **parts)
    useless = [message(n, f"v{n}", purpose=("validate", "serve")[n % 2]) for n in range(500)]
    stale = [message(500 + n, f"s{n}", 0, member(version=-1)) for n in range(500)]
    good = [message(1000 + n, f"g{n}", 0, member(version=0)) for n in range(2)]
    collected = trainer._collect(GivenBatches([*useless, *stale, *good]), Event())  # pyright: ignore[reportArgumentType]
    assert [group.message for group in collected or ()] == good
    assert n_held == [2]
    reasons = Counter(entry.reason for entry in trainer._settled)
    assert reasons == {"validate": 250, "serve": 250, "stale": 500}


def test_a_revision_that_is_not_trained_still_supersedes_the_one_that_is_held(
    parts: dict[str, MagicMock], tmp_path: Path
) -> None:
    trainer = Trainer(LearnerSettings(state_dir=tmp_path, groups_per_step=2), checkpoints=caught_up_log(), **parts)
    before = message(0, "g", 0, member(version=0))
    after = message(1, "g", 1, member(version=0, status="failed"))
    others = [message(2 + n, f"other{n}", 0, member(version=0)) for n in range(2)]
    collected = trainer._collect(GivenBatches([before, after, *others]), Event())  # pyright: ignore[reportArgumentType]
    assert [group.message for group in collected or ()] == others
    assert [(e.offset, e.reason) for e in trainer._settled] == [(0, "superseded"), (1, "empty")]
