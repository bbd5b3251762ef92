"""Groups become batches once, whatever the order; later revisions say what they replace."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from leyden.avro import COMMITTED, Trajectory, TransitionBatch, encode
from leyden.stream.group_stage import GroupStage

from .simulation import Simulation
from .test_assembly_properties import crashes


def stage(min_group: int = 2, serve: bool = False) -> GroupStage:
    return GroupStage(3_600_000, min_group, serve, COMMITTED)


def final(rollout: str, reward: float | None = 1.0, status: str = "succeeded", group: str = "g", size: int = 2,
          revision: int = 0, attempt: int = 1, purpose: str = "train", is_final: bool = True) -> bytes:  # fmt: skip
    """An encoded trajectory."""
    return encode(
        Trajectory(
            group_id=group,
            rollout_id=rollout,
            attempt=attempt,
            revision=revision,
            status=status,
            final=is_final,
            purpose=purpose,
            policy="p",
            group_size=size,
            task_digest="d",
            reward=reward,
            n_calls=1,
            n_completion_tokens=3,
            oldest_version=0,
            newest_version=0,
            started_ms=1000,
            ended_ms=2000,
            partition=0,
            first_offset=0,
            last_offset=3,
            rewards=[],
            calls=[],
            notes=[],
        )
    )


def batches(log: list[bytes], min_group: int = 2, serve: bool = False) -> list[TransitionBatch]:
    out = Simulation(stage(min_group, serve), log, chunk=2, recent=0).run().published
    return [b for b in out if isinstance(b, TransitionBatch)]


def test_a_group_is_emitted_when_every_rollout_is_final_and_rewarded():
    log = [final("a"), final("b", None), final("b", 0.5, revision=1)]
    (batch,) = batches(log)
    members = [(m.rollout_id, m.revision, m.offset, m.reward) for m in batch.members]
    assert members == [("a", 0, 0, 1.0), ("b", 1, 2, 0.5)]


def test_failed_rollouts_complete_a_group_and_are_marked():
    (batch,) = batches([final("a", size=3), final("b", size=3), final("c", None, "failed", size=3)])
    assert [m.status for m in batch.members] == ["succeeded", "succeeded", "failed"]


def test_too_few_succeeded_members_are_not_emitted():
    assert batches([final("a"), final("b", None, "failed")]) == []


def test_a_group_of_one_is_emitted_once_it_is_rewarded():
    log = [final("a", None, size=1), final("a", 1.0, size=1, revision=1)]
    assert [(b.revision, len(b.members)) for b in batches(log)] == [(0, 1)]


def test_a_later_revision_names_what_it_supersedes():
    log = [final("a"), final("b"), final("b", 0.25, revision=1), final("b", 0.25, revision=1)]
    assert [(b.revision, b.supersedes) for b in batches(log)] == [(0, None), (1, 0)]


def test_validation_and_production_do_not_reach_batches_unless_asked():
    log = [final(r, purpose=p, group=p, size=1) for r, p in (("a", "validate"), ("b", "serve"), ("c", "train"))]
    assert [b.purpose for b in batches(log)] == ["train"]
    assert [b.purpose for b in batches(log, serve=True)] == ["serve", "train"]


def test_a_later_attempt_replaces_an_earlier_one():
    log = [final("a", status="expired", reward=None), final("a", attempt=2), final("b")]
    (batch,) = batches(log)
    assert [m.attempt for m in batch.members] == [2, 1]


def test_expired_rollouts_count_where_they_have_a_reward_and_hold_up_nothing_where_they_have_none():
    (batch,) = batches([final("a", 0.5, "expired"), final("b")])
    assert [(m.rollout_id, m.status) for m in batch.members] == [("a", "expired"), ("b", "succeeded")]
    assert batches([final("a", None, "expired"), final("b")]) == []  # one graded member is below min_group
    log = [final("a", None, "expired", size=1), final("a", 1.0, "expired", size=1, revision=1)]
    assert [b.revision for b in batches(log)] == [0]


def test_an_expired_group_goes_on_with_what_it_has():
    log = [final("a", size=4), final("b", size=4), final("c", None, size=4)]
    log.append(encode(stage().expiry(b"g", "idle", 2)))
    log.append(final("c", 0.5, size=4, revision=1))
    assert [[m.rollout_id for m in b.members] for b in batches(log)] == [["a", "b"], ["a", "b", "c"]]


def test_a_group_that_moved_on_is_not_expired():
    log = [final("a", size=4), final("b", size=4), encode(stage().expiry(b"g", "idle", 0))]
    assert batches(log) == []


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10_000), chunk=st.integers(1, 9), share=st.floats(0, 0.5), max_replay=st.integers(1, 20))
def test_restarts_do_not_change_the_batches(seed: int, chunk: int, share: float, max_replay: int):
    rng = random.Random(seed)
    log: list[bytes] = []
    for g in range(4):
        for r in range(3):
            name = f"{g}-{r}"
            log.append(final(name, rng.choice([None, 0.5]), rng.choice(["succeeded", "failed"]), f"g{g}", 3))
            log += [final(name, rng.random(), "succeeded", f"g{g}", 3, n) for n in range(1, rng.randrange(3))]
    rng.shuffle(log)
    log += rng.choices(log, k=4)

    def run(**how: object) -> dict:
        simulation = Simulation(stage(), log, **how).run()  # pyright: ignore[reportArgumentType]
        return simulation.distinct(lambda b: (b.group_id, b.revision))

    assert run(chunk=chunk, max_replay=max_replay, recent=0, crash=crashes(seed, share)) == run(chunk=1000)
