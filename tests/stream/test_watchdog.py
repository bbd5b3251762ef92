"""The watchdog ends a worker that stands still with work before it, and no other."""

import threading

import pytest
from leyden.infra import deployment as deployments
from leyden.infra import topics
from leyden.infra.settings import KafkaSettings, RoleSettings
from leyden.stream.settings import StreamSettings
from leyden.stream.watchdog import EXIT_STALLED, Stall, Watchdog

from .rollouts import started
from .workers import produce


def test_only_work_without_progress_counts_as_standing_still():
    stall = Stall(30.0)
    assert stall.look(0.0, (1,), True) == 0.0
    assert stall.look(20.0, (1,), True) == 20.0
    assert stall.look(25.0, (2,), True) == 0.0
    assert stall.look(50.0, (2,), False) == 0.0
    assert stall.look(90.0, (2,), None) == 0.0
    assert stall.look(121.0, (2,), True) == 31.0
    assert stall.stalled(31.0, joined=True)


def test_joining_is_given_longer_than_working():
    stall = Stall(30.0)
    assert not stall.stalled(31.0, joined=False)
    assert stall.stalled(91.0, joined=False)


class Still:
    """A worker at a position, without progress."""

    def __init__(self, topic: str, position: int | None) -> None:
        self._at = {(topic, p): position for p in range(4)}

    def progress(self) -> tuple[object, ...]:
        return (0,)

    def positions(self) -> dict[tuple[str, int], int | None]:
        return self._at

    def joined(self) -> bool:
        return True

    def state(self) -> str:
        return "still"


@pytest.mark.kafka
@pytest.mark.parametrize(("position", "leaves"), [(0, True), (None, True), (1000, False)])
def test_a_still_worker_is_ended_only_with_records_before_it(
    deployment: RoleSettings, position: int | None, leaves: bool
):
    deployments.apply(deployment)
    produce(deployment, topics.EVENTS, [("r", started("r"))])
    settings = StreamSettings.load(kafka=deployment.kafka, prefix=deployment.prefix, stall_timeout_s=0.5)
    topic = deployment.prefix + topics.EVENTS
    left, code = threading.Event(), []
    watchdog = Watchdog(Still(topic, position), settings, topic, "g", lambda c: (code.append(c), left.set()))
    watchdog.start()
    assert left.wait(20.0 if leaves else 4.0) is leaves
    watchdog.stop()
    assert code == ([EXIT_STALLED] if leaves else [])


def test_an_absent_kafka_is_no_stall_of_the_worker():
    settings = StreamSettings.load(kafka=KafkaSettings(bootstrap="127.0.0.1:9"), stall_timeout_s=0.1)
    left = threading.Event()
    watchdog = Watchdog(Still("t", 0), settings, "t", "g", lambda _: left.set())
    watchdog.start()
    assert not left.wait(5.0)
    watchdog.stop()
