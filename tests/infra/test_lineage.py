"""The fold of announcements: parents, live, rolled back, staleness along ancestors."""

import math

import pytest
from leyden.avro import Checkpoint
from leyden.infra.lineage import Lineage, fold, key_of


def announced(version: int, state: str = "candidate", parent: int | None = -1, policy: str = "p") -> Checkpoint:
    parent = (version - 1 if version else None) if parent == -1 else parent
    return Checkpoint(policy, version, state, parent, "run", f"m{version}", b"", "{}", 0)


def chain(*versions: int) -> list[Checkpoint]:
    return [announced(v) for v in versions]


def test_staleness_counts_ancestors_between_the_oldest_call_and_the_trainer() -> None:
    lineage = fold("p", chain(0, 1, 2, 3))
    assert [lineage.staleness(v, 3) for v in (3, 2, 1, 0)] == [0, 1, 2, 3]


def test_a_version_that_is_no_ancestor_is_infinitely_stale() -> None:
    lineage = fold("p", [*chain(0, 1, 2), announced(2, "rolled_back"), announced(3, parent=1)])
    assert lineage.staleness(2, 3) == math.inf
    assert lineage.staleness(1, 3) == 1
    assert lineage.staleness(7, 3) == math.inf
    assert lineage.staleness(-1, 3) == math.inf


def test_what_descends_from_a_rolled_back_version_is_abandoned() -> None:
    lineage = fold("p", [*chain(0, 1, 2, 3), announced(2, "rolled_back"), announced(4, parent=1)])
    assert [v for v in range(5) if lineage.abandoned(v)] == [2, 3]


def test_a_live_record_that_lost_the_race_against_a_rollback_is_void() -> None:
    records = [*chain(0, 1, 2), announced(1, "live"), announced(2, "rolled_back"), announced(2, "live")]
    assert fold("p", records).live == announced(1, "live")


def test_rolling_back_the_live_version_leaves_none_until_one_is_named() -> None:
    lineage = fold("p", [*chain(0, 1), announced(1, "live"), announced(1, "rolled_back")])
    assert lineage.live is None
    assert lineage.apply(announced(0, "live")).live == announced(0, "live")


def test_other_policies_do_not_count() -> None:
    assert fold("p", [announced(5, policy="q")]) == Lineage("p")


@pytest.mark.parametrize(("state", "key"), [("candidate", b"p/3"), ("rolled_back", b"p/3"), ("live", b"p/live")])
def test_compaction_keeps_one_record_a_version_and_one_live(state: str, key: bytes) -> None:
    assert key_of(announced(3, state)) == key
