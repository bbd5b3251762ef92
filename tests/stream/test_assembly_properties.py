"""Whatever the order, the duplicates, the retries, the restarts: the trajectories are the same."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from leyden.avro import COMMITTED, Trajectory, decode, encode
from leyden.stream.assemble_stage import AssembleStage
from leyden.stream.assembly import Limits

from .rollouts import Shape, called, ended, noted, random_log, rewarded, started
from .simulation import Simulation

LIMITS = Limits(idle_ms=3_600_000, absolute_ms=86_400_000, grace_ms=5_000)


def stage() -> AssembleStage:
    return AssembleStage(LIMITS, COMMITTED)


def identity(trajectory: Trajectory) -> tuple:
    return trajectory.rollout_id, trajectory.attempt, trajectory.revision


def crashes(seed: int, share: float, at_most: int = 40) -> Any:
    rng, left = random.Random(seed), [at_most]

    def crash(_: str) -> bool:
        left[0] -= 1
        return left[0] > 0 and rng.random() < share

    return crash


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10_000), chunk=st.integers(1, 20), share=st.floats(0, 0.5), recent=st.integers(0, 3))
def test_restarts_and_chunk_sizes_do_not_change_the_trajectories(seed: int, chunk: int, share: float, recent: int):
    log = random_log(seed)
    smooth = Simulation(stage(), log, chunk=1000).run().distinct(identity)
    rough = Simulation(stage(), log, chunk=chunk, recent=recent, crash=crashes(seed, share)).run().distinct(identity)
    assert rough == smooth


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10_000), max_replay=st.integers(1, 15), share=st.floats(0, 0.4))
def test_a_bounded_hold_back_does_not_change_the_trajectories(seed: int, max_replay: int, share: float):
    log = random_log(seed, Shape(n_rollouts=6))
    smooth = Simulation(stage(), log, chunk=1000).run().distinct(identity)
    held = Simulation(stage(), log, max_replay=max_replay, chunk=3, recent=0, crash=crashes(seed, share))
    assert held.run().distinct(identity) == smooth
    assert held.most_reread <= max_replay + 3


@settings(deadline=None, max_examples=60)
@given(order=st.permutations(range(9)), repeats=st.lists(st.integers(0, 8), max_size=6))
def test_any_order_with_duplicates_ends_in_the_same_trajectory(order: list[int], repeats: list[int]):
    events = [
        started("r"),
        called("r", 0),
        called("r", 1),
        called("r", 2, digest=(1).to_bytes(8, "big"), retry=1),
        called("r", 3, status="failed"),
        rewarded("r", 0.5, "a"),
        rewarded("r", 0.25, "b", ts_ms=2001),
        rewarded("r", 0.75, "b", ts_ms=2000, n=1),
        ended("r", 4),
    ]

    def last(which: list[int]) -> Trajectory:
        published = Simulation(stage(), [encode(events[i]) for i in which]).run().published
        assert isinstance(published[-1], Trajectory)
        return replace(published[-1], revision=0, first_offset=0, last_offset=0)

    assert last([*order, *repeats]) == last(list(range(9)))
    assert last(order).reward == 0.75
    assert [c.split(b"call-")[1][:1] for c in last(order).calls] == [b"0", b"2", b"3"]


def test_each_late_reward_makes_the_next_revision_with_all_calls():
    log = [encode(e) for e in (started("r"), called("r", 0), ended("r", 1), rewarded("r", 1.0, "a"), noted("r", 0),
                               rewarded("r", 2.0, "b"))]  # fmt: skip
    out = [t for t in Simulation(stage(), log, recent=0, chunk=1).run().published if isinstance(t, Trajectory)]
    assert [(t.revision, t.reward, t.n_calls, len(t.notes)) for t in out] == [
        (0, None, 1, 0), (1, 1.0, 1, 0), (2, 3.0, 1, 1)]  # fmt: skip


def test_a_later_call_after_closing_revises_the_trajectory():
    log = [encode(e) for e in (started("r"), called("r", 1), ended("r", 1), called("r", 0))]
    out = Simulation(stage(), log).run().published
    assert [(t.revision, t.n_calls) for t in out if isinstance(t, Trajectory)] == [(0, 1), (1, 2)]


def test_the_end_waits_for_the_calls_it_counts():
    log = [encode(e) for e in (started("r"), called("r", 0), ended("r", 2), called("r", 1))]
    out = Simulation(stage(), log).run().published
    assert [(t.last_offset, t.n_calls) for t in out if isinstance(t, Trajectory)] == [(3, 2)]


def test_an_end_by_another_claim_ends_nothing():
    log = [encode(e) for e in (started("r"), ended("r", 0, claim="other"))]
    assert Simulation(stage(), log).run().published == []


def test_the_next_attempt_closes_one_that_never_ended_and_it_is_not_final():
    log = [encode(e) for e in (started("r"), called("r", 0), started("r", 2), ended("r", 0, 2))]
    out = [t for t in Simulation(stage(), log).run().published if isinstance(t, Trajectory)]
    assert [(t.attempt, t.status, t.final, t.n_calls) for t in out] == [
        (1, "expired", False, 1), (2, "succeeded", True, 0)]  # fmt: skip


@pytest.mark.parametrize(("as_of", "n_out"), [(1, 1), (0, 0)])
def test_an_expiry_counts_only_if_nothing_came_after_what_it_knew(as_of: int, n_out: int):
    events = [encode(started("r")), encode(called("r", 0))]
    log = [*events, encode(stage().expiry(b"r/1", "idle", as_of))]
    out = Simulation(stage(), log).run().published
    assert [(t.status, t.final) for t in out if isinstance(t, Trajectory)] == [("expired", True)] * n_out


def test_a_record_that_cannot_be_decoded_is_put_aside_and_the_rest_goes_on():
    log = [encode(started("r")), b"\xc3\x01nonsense", encode(ended("r", 0))]
    run = Simulation(stage(), log).run()
    assert run.poison == [1]
    assert len(run.published) == 1


def test_a_reward_for_an_attempt_that_nobody_started_gives_no_trajectory():
    log = [encode(rewarded("r", 1.0)), encode(stage().expiry(b"r/1", "idle", 0))]
    assert Simulation(stage(), log).run().published == []


def test_versions_are_the_oldest_and_newest_of_the_answered_calls():
    log = [encode(e) for e in (started("r"), called("r", 0, version=5), called("r", 1, version=7),
                               called("r", 2, version=-1, status="failed"), ended("r", 3))]  # fmt: skip
    trajectory = decode(encode(Simulation(stage(), log).run().published[0]), Trajectory)
    assert (trajectory.oldest_version, trajectory.newest_version) == (5, 7)


@pytest.mark.parametrize(
    ("rewards", "total"),
    [([], None), ([("call-0", 0.5)], 0.5), ([("call-0", 0.5), ("call-1", 0.25)], 0.75),
     ([("call-0", 0.5), (None, 1.0)], 1.0), ([(None, 0.0), ("call-1", 0.25)], 0.0)],
)  # fmt: skip
def test_rewards_of_calls_are_the_rollouts_reward_where_none_is_of_the_whole(
    rewards: list[tuple[str | None, float]], total: float | None
):
    given = [rewarded("r", value, f"k{n}", call_id=call) for n, (call, value) in enumerate(rewards)]
    log = [encode(e) for e in (started("r"), called("r", 0), called("r", 1), *given, ended("r", 2))]
    trajectory = decode(encode(Simulation(stage(), log).run().published[0]), Trajectory)
    assert trajectory.reward == total
    assert [(r.call_id, r.value) for r in trajectory.rewards] == rewards
