"""What gc removes and what it never does."""

from hypothesis import given
from hypothesis import strategies as st
from leyden.avro import Checkpoint
from leyden.infra.lineage import Lineage, fold
from leyden.serving.gc import Part, Rules, plan

RULES = Rules(keep_serve=20, keep_resume=2, rollback_depth=3)


def lineage_of(newest: int, live: int | None) -> Lineage:
    def record(version: int, state: str) -> Checkpoint:
        return Checkpoint("p", version, state, version - 1 if version else None, "run", "", b"", "{}", 0)

    records = [record(v, "candidate") for v in range(newest + 1)]
    return fold("p", records + ([record(live, "live")] if live is not None else []))


def stored(newest: int) -> tuple[list[Part], dict[int, str]]:
    parts = [Part(v, "run", name) for v in range(newest + 1) for name in ("serve", "resume")]
    return parts, dict.fromkeys(range(newest + 1), "run")


def test_the_newest_versions_and_live_with_its_parents_stay() -> None:
    parts, manifests = stored(29)
    gone = plan(parts, manifests, lineage_of(29, live=5), RULES)
    serve = {p.version for p in gone if p.name == "serve"}
    resume = {p.version for p in gone if p.name == "resume"}
    assert serve == set(range(10)) - {2, 3, 4, 5}
    assert resume == set(range(28)) - {2, 3, 4, 5}


def test_a_lost_upload_goes_and_one_that_may_be_under_way_stays() -> None:
    parts, manifests = stored(3)
    lost, under_way = Part(3, "crashed", "serve"), Part(4, "writing", "serve")
    gone = plan([*parts, lost, under_way], manifests, lineage_of(3, live=3), RULES)
    assert gone == [lost]


def test_nothing_goes_while_there_is_no_manifest() -> None:
    assert plan([Part(0, "writing", "serve")], {}, lineage_of(0, None), RULES) == []


@given(
    newest=st.integers(0, 40),
    live=st.integers(0, 40),
    rules=st.builds(Rules, st.integers(0, 30), st.integers(0, 5), st.integers(0, 5)),
)
def test_live_is_never_touched_and_repeating_changes_nothing(newest: int, live: int, rules: Rules) -> None:
    live = min(live, newest)
    parts, manifests = stored(newest)
    lineage = lineage_of(newest, live)
    gone = plan(parts, manifests, lineage, rules)
    assert live not in {part.version for part in gone}
    assert plan(set(parts) - set(gone), manifests, lineage, rules) == []
