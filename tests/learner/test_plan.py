"""What a step takes: verdicts on messages of `batches`."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leyden.avro import Checkpoint, Member, TransitionBatch
from leyden.infra.lineage import Lineage, fold
from leyden.learner.plan import Admitted, Dropped, Message, Standing, judge, plan


def member(name: str = "r", reward: float | None = 1.0, version: int = 3, status: str = "succeeded") -> Member:
    return Member(name, 1, 0, 0, 0, status, reward, version, version, 1, 1)


def message(offset: int = 0, group: str = "g", revision: int = 0, *members: Member, purpose: str = "train") -> Message:
    chosen = list(members) or [member()]
    return Message(offset, TransitionBatch("policy", group, revision, None, purpose, len(chosen), "", chosen))


def announced(version: int, parent: int | None, state: str = "candidate") -> Checkpoint:
    return Checkpoint("policy", version, state, parent, "", "", b"", "{}", 0)


CHAIN = fold("policy", [announced(0, None), *(announced(v, v - 1) for v in range(1, 6))])


def standing(lineage: Lineage = CHAIN, version: int = 5, max_staleness: int = 2, **trained: int) -> Standing:
    return Standing(lineage, version, trained, max_staleness, serve=False)


def reason(verdict: Admitted | Dropped) -> str:
    return verdict.reason if isinstance(verdict, Dropped) else "admitted"


@pytest.mark.parametrize(("version", "expected"), [(5, "admitted"), (3, "admitted"), (2, "stale"), (99, "stale")])
def test_staleness_counts_ancestors_and_a_stranger_is_infinitely_stale(version: int, expected: str) -> None:
    assert reason(judge(message(0, "g", 0, member(version=version)), standing())) == expected


def test_a_version_rolled_back_never_counts_as_fresh() -> None:
    lineage = CHAIN.apply(announced(4, 3, "rolled_back")).apply(announced(5, 4, "rolled_back")).apply(announced(6, 3))
    of_five = message(0, "g", 0, member(version=5))
    assert reason(judge(of_five, standing(lineage, version=6, max_staleness=99))) == "rolled_back"
    assert reason(judge(message(0, "g", 0, member(version=3)), standing(lineage, version=6))) == "admitted"


def test_stale_members_are_left_out_and_still_stand_in_the_group() -> None:
    fresh, old = member("fresh"), member("old", version=0)
    verdict = judge(message(0, "g", 0, fresh, old), standing())
    assert isinstance(verdict, Admitted)
    assert (verdict.members, verdict.left_out, verdict.left_out_reason) == ((fresh,), (old,), "stale")


@pytest.mark.parametrize("status", ["failed", "timeout", "cancelled"])
def test_a_failure_is_no_reward_of_zero(status: str) -> None:
    verdict = judge(message(0, "g", 0, member("ok"), member("bad", 0.0, status=status)), standing())
    assert isinstance(verdict, Admitted)
    assert [m.rollout_id for m in (*verdict.members, *verdict.left_out)] == ["ok"]
    assert reason(judge(message(0, "g", 0, member("bad", 0.0, status=status)), standing())) == "empty"


@pytest.mark.parametrize(("reward", "expected"), [(0.0, "admitted"), (None, "empty")])
def test_an_expired_rollout_is_graded_by_its_reward_alone(reward: float | None, expected: str) -> None:
    assert reason(judge(message(0, "g", 0, member(reward=reward, status="expired")), standing())) == expected


def test_only_training_rollouts_are_trained() -> None:
    assert reason(judge(message(purpose="validate"), standing())) == "validate"
    assert reason(judge(message(purpose="serve"), standing())) == "serve"
    assert reason(judge(message(purpose="serve"), replace(standing(), serve=True))) == "admitted"


def test_a_copy_and_a_late_revision_of_a_trained_group_are_dropped() -> None:
    assert reason(judge(message(revision=1), standing(g=1))) == "duplicate"
    assert reason(judge(message(revision=2), standing(g=1))) == "late_reward"


def test_a_later_revision_supersedes_an_earlier_one_of_the_same_step() -> None:
    planned = plan(
        [message(0, revision=0), message(1, "h"), message(2, revision=1), message(3, revision=1)], standing()
    )
    assert [a.message.offset for a in planned.admitted] == [1, 2]
    assert [(d.message.offset, d.reason) for d in planned.dropped] == [(0, "superseded"), (3, "duplicate")]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.integers(0, 7)), max_size=12))
def test_every_message_gets_one_verdict_and_a_group_is_admitted_once(items: list[tuple[str, int, int]]) -> None:
    messages = [message(i, g, r, member(version=v)) for i, (g, r, v) in enumerate(items)]
    planned = plan(messages, standing(b=1))
    verdicts = [*planned.admitted, *planned.dropped]
    assert sorted(v.message.offset for v in verdicts) == list(range(len(messages)))
    groups = [a.message.batch.group_id for a in planned.admitted]
    assert len(groups) == len(set(groups))
    assert "b" not in groups
