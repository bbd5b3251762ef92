"""What a reloader does next, and when its replica may serve."""

from dataclasses import replace

import pytest
from leyden.avro import Checkpoint
from leyden.infra.lineage import fold
from leyden.serving.engine_client import EngineState
from leyden.serving.follow import View, backoff_s, seen, to_load, to_prefetch, why_not_ready


def record(version: int, state: str, parent: int | None = None) -> Checkpoint:
    return Checkpoint("p", version, state, parent, "run", "", b"", "{}", 0)


LIVE_1 = fold("p", [record(0, "live"), record(1, "live", 0)])
ENGINE = EngineState(0, None, "first start")


def test_the_live_version_is_loaded_where_the_engine_runs_another() -> None:
    assert to_load(View(LIVE_1, True, ENGINE)) == LIVE_1.live
    assert to_load(View(LIVE_1, True, replace(ENGINE, version=1))) is None


@pytest.mark.parametrize(
    "view",
    [
        View(LIVE_1, False, ENGINE),
        View(LIVE_1, True, None),
        View(LIVE_1, True, replace(ENGINE, loading=1)),
        View(fold("p", []), True, ENGINE),
    ],
    ids=["log not read to its end", "engine away", "engine is loading", "nothing is live"],
)
def test_nothing_is_loaded_while_the_picture_is_incomplete(view: View) -> None:
    assert to_load(view) is None


def test_a_replica_is_ready_once_it_runs_live_and_stays_ready_while_it_loads_the_next() -> None:
    view = View(LIVE_1, True, ENGINE)
    assert why_not_ready(view) == "the engine has started and runs version 0; live is 1"
    view = replace(view, engine=replace(ENGINE, version=1))
    view = replace(view, ready_replica=seen(view))
    assert why_not_ready(view) is None
    view = replace(view, lineage=LIVE_1.apply(record(2, "live", 1)))
    view = replace(view, ready_replica=seen(view))
    assert why_not_ready(view) is None


def test_a_restarted_engine_is_not_ready_before_it_runs_live_again() -> None:
    restarted = View(LIVE_1, True, replace(ENGINE, replica="second start"), ready_replica="first start")
    assert why_not_ready(restarted) is not None
    assert to_load(restarted) == LIVE_1.live


def test_a_replica_on_a_rolled_back_version_is_not_ready() -> None:
    lineage = fold(
        "p", [record(2, "candidate", 1), record(2, "live", 1), record(2, "rolled_back", 1), record(1, "live")]
    )
    view = View(lineage, True, replace(ENGINE, version=2), ready_replica="first start")
    assert why_not_ready(view) == "the engine runs version 2, which was rolled back; live is 1"


def test_only_what_may_become_live_is_fetched_ahead() -> None:
    candidate = record(2, "candidate", 1)
    assert to_prefetch(View(LIVE_1, True, ENGINE)) is None
    assert to_prefetch(View(LIVE_1.apply(candidate), True, ENGINE)) == candidate
    assert to_prefetch(View(LIVE_1.apply(candidate).apply(record(2, "rolled_back", 1)), True, ENGINE)) is None


def test_back_off_doubles_and_is_bounded() -> None:
    assert [backoff_s(n, 0.5, 30.0) for n in (1, 2, 3, 7, 1000)] == [0.5, 1.0, 2.0, 30.0, 30.0]
