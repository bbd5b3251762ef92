"""What a runner makes of a task that may have been begun before."""

from hypothesis import given
from hypothesis import strategies as st
from leyden.avro import EventHead, RolloutEnded, RolloutStarted, Task
from leyden.producers.runner.claims import LOST, Begin, ClaimLog, Done, GiveUp, decide

TASK = Task("r", "g", 1, "policy", "train", "", b"{}", 10.0, 3)


def started(attempt: int, claim: str) -> EventHead:
    body = RolloutStarted(claim, "train", "policy", "g", 1, "", "runner")
    return EventHead("e", "r", attempt, 0, body)


def ended(attempt: int, claim: str, status: str, will_retry: bool, error: str | None = None) -> EventHead:
    return EventHead("e", "r", attempt, 0, RolloutEnded(claim, status, None, will_retry, error))


def log(*events: EventHead) -> ClaimLog:
    made = ClaimLog()
    for event in events:
        made.see(event)
    return made


def test_a_task_nobody_began_begins_at_its_own_number() -> None:
    assert decide(TASK, {}, 3) == Begin(1)


def test_an_attempt_without_an_end_is_lost_and_the_next_number_begins() -> None:
    claims = log(started(1, "a")).of("r")
    assert decide(TASK, claims, 3) == Begin(2, (claims[1],), 0)


def test_a_final_end_is_not_run_again() -> None:
    assert decide(TASK, log(started(1, "a"), ended(1, "a", "succeeded", False)).of("r"), 3) == Done()


def test_an_end_of_another_claim_ends_nothing() -> None:
    claims = log(started(1, "a"), started(1, "b"), ended(1, "b", "succeeded", False)).of("r")
    assert claims[1].claim_id == "a"
    assert decide(TASK, claims, 3) == Begin(2, (claims[1],), 0)


def test_failures_count_and_cancellations_and_lost_runners_do_not() -> None:
    claims = log(
        started(1, "a"),
        ended(1, "a", "failed", True, "ValueError"),
        started(2, "b"),
        ended(2, "b", "cancelled", True),
        started(3, "c"),
        ended(3, "c", "failed", True, LOST),
    ).of("r")
    assert decide(TASK, claims, 3) == Begin(4, (), 1)


def test_a_rollout_that_keeps_losing_runners_is_given_up() -> None:
    claims = log(started(1, "a"), ended(1, "a", "failed", True, LOST), started(2, "b")).of("r")
    assert decide(TASK, claims, 1) == GiveUp((claims[2],))


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from("ab"), st.booleans()), max_size=12))
def test_whatever_the_log_says_a_new_attempt_has_a_number_nobody_claimed(events: list[tuple[int, str, bool]]) -> None:
    claims = log(*(ended(n, c, "failed", True) if end else started(n, c) for n, c, end in events)).of("r")
    decision = decide(TASK, claims, 100)
    assert isinstance(decision, Begin)
    assert decision.attempt not in claims
