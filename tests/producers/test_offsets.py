"""Committing what is finished out of order."""

from hypothesis import given
from hypothesis import strategies as st
from leyden.producers.runner.offsets import OffsetTracker


def test_nothing_moves_past_a_task_that_runs() -> None:
    tracker = OffsetTracker()
    for offset in (5, 6, 7):
        tracker.take(offset)
    tracker.done(6)
    tracker.done(7)
    assert tracker.position() == 5
    tracker.done(5)
    assert tracker.position() == 8
    assert tracker.position() is None


@given(st.permutations(range(10, 20)), st.integers(0, 10))
def test_the_position_is_the_first_that_is_not_done(order: list[int], n_done: int) -> None:
    tracker = OffsetTracker()
    for offset in range(10, 20):
        tracker.take(offset)
    for offset in order[:n_done]:
        tracker.done(offset)
    assert tracker.position() == min(order[n_done:], default=20)
