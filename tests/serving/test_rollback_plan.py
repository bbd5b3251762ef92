"""What a rollback writes, and how promotion goes on after it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leyden.avro import Checkpoint
from leyden.infra.lineage import Lineage, fold, key_of
from leyden.serving.promoter import candidates, is_void
from leyden.serving.rollback import RollbackError, plan


def record(version: int, parent: int | None, state: str = "candidate") -> Checkpoint:
    return Checkpoint("p", version, state, parent, "run", "", b"", "{}", 0)


def chain(newest: int, live: int) -> list[Checkpoint]:
    versions = [record(v, v - 1 if v else None) for v in range(newest + 1)]
    return [*versions, record(live, live - 1 if live else None, "live")]


def after(lineage: Lineage, version: int | None) -> Lineage:
    for item in plan(lineage, version).records(ts_ms=1):
        lineage = lineage.apply(item)
    return lineage


def live_version(lineage: Lineage) -> int | None:
    return lineage.live.version if lineage.live else None


def test_without_a_version_the_parent_of_live_is_the_target() -> None:
    lineage = after(fold("p", chain(5, live=5)), None)
    assert live_version(lineage) == 4
    assert lineage.rolled_back == {5}


def test_everything_that_is_no_ancestor_of_the_target_is_abandoned() -> None:
    branch = [record(6, 3), record(6, 3, "live")]
    lineage = after(fold("p", chain(5, live=5) + branch), 2)
    assert live_version(lineage) == 2
    assert lineage.rolled_back == {3, 4, 5, 6}


@pytest.mark.parametrize(
    ("records", "version", "why"),
    [
        (chain(2, live=2), 9, "has no version 9; known: 0, 1, 2"),
        (chain(2, live=0), None, "has no parent"),
        (chain(2, live=2)[:-1], None, "no version of policy p is live"),
        ([*chain(2, live=2), record(1, 0, "rolled_back")], 1, "was rolled back"),
        ([*chain(2, live=2), record(1, 0, "rolled_back")], 2, "an ancestor of it was rolled back"),
    ],
)
def test_an_impossible_rollback_is_refused_with_the_reason(
    records: list[Checkpoint], version: int | None, why: str
) -> None:
    with pytest.raises(RollbackError, match=why):
        plan(fold("p", records), version)


def test_the_child_of_an_abandoned_version_is_no_candidate_and_the_child_of_the_target_is() -> None:
    lineage = after(fold("p", chain(5, live=5)), 3)
    late = lineage.apply(record(6, 5))
    assert list(candidates(late, frozenset())) == []
    assert [c.version for c in candidates(late.apply(record(7, 3)), frozenset())] == [7]


def test_a_promotion_that_loses_against_a_rollback_is_void_and_seen_as_such() -> None:
    lineage, lost = after(fold("p", chain(5, live=4)), 3), record(5, 4, "live")
    assert is_void(lost, lineage)
    assert live_version(lineage.apply(lost)) == 3


@given(newest=st.integers(1, 8), data=st.data())
def test_whatever_part_of_a_rollback_was_written_repeating_it_or_promoting_reaches_a_sound_version(
    newest: int, data: st.DataObject
) -> None:
    live = data.draw(st.integers(1, newest))
    target = data.draw(st.integers(0, live - 1))
    before = fold("p", chain(newest, live))
    records = plan(before, target).records(ts_ms=1)
    written = records[: data.draw(st.integers(0, len(records)))]
    lineage = before
    for item in written:
        lineage = lineage.apply(item)
    promoted = next(candidates(lineage, frozenset()), lineage.live)
    assert promoted is not None
    assert not lineage.abandoned(promoted.version)
    assert live_version(after(lineage, target)) == target


def test_after_compaction_kept_only_a_void_announcement_the_rollbacks_target_is_the_candidate() -> None:
    lineage = fold("p", chain(5, live=5))
    log = [*chain(5, live=5), *plan(lineage, 3).records(ts_ms=1), record(5, 4, "live")]
    compacted = list({key_of(item): item for item in log}.values())
    kept = fold("p", compacted)
    assert live_version(kept) is None
    assert next(candidates(kept, frozenset())).version == 3
