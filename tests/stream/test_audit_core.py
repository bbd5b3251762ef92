"""The audit's core: clean logs pass, and every way to lose, double or train again is found."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from leyden.infra.manifest import BatchEntry
from leyden.stream.audit.facts import (
    CallSeen,
    EndedSeen,
    LedgerLine,
    MemberSeen,
    RewardSeen,
    TrainedSeen,
    TrajectorySeen,
)
from leyden.stream.audit.report import MEANING, Finding, Report
from leyden.stream.audit.world import Extent, VersionSeen

from .audit_logs import Logs, Maker

seeds = st.integers(0, 1_000_000)
few = settings(max_examples=25, deadline=None)


@few
@given(seeds)
def test_a_clean_log_has_no_findings_and_pends_only_what_has_not_happened_yet(seed: int) -> None:
    report = Maker(seed).make().audit()
    assert report.clean, "\n".join(report.lines())
    assert report.pending["open"] == 1
    assert set(report.pending) <= {"open", "not_consumed"}


@few
@given(seeds, st.randoms(use_true_random=False))
def test_the_order_of_the_facts_and_copies_of_them_change_nothing(seed: int, random: Any) -> None:
    logs = Maker(seed).make()
    before = logs.audit()
    copies = [f for f in logs.facts if isinstance(f, CallSeen | LedgerLine | EndedSeen) and random.random() < 0.5]
    logs.facts += copies
    random.shuffle(logs.facts)
    after = logs.audit()
    assert after.clean, "\n".join(after.lines())
    ignore = {"event_copies"}
    assert {k: n for k, n in after.figures.items() if k not in ignore} == {
        k: n for k, n in before.figures.items() if k not in ignore
    }


def _settled(logs: Logs) -> set[tuple[str, int]]:
    return {(t.rollout_id, t.attempt) for t in logs.of(TrajectorySeen)}


@pytest.mark.parametrize("kind", [CallSeen, RewardSeen, TrajectorySeen, MemberSeen])
@settings(max_examples=60, deadline=None)
@given(seed=seeds, data=st.data())
def test_a_deleted_record_is_found(kind: type, seed: int, data: st.DataObject) -> None:
    logs = Maker(seed).make()
    settled = _settled(logs)
    candidates = [f for f in logs.of(kind) if (f.rollout_id, f.attempt) in settled and _counts(f, logs)]
    assume(candidates)
    gone = data.draw(st.sampled_from(candidates))
    logs.facts = [f for f in logs.facts if f != gone]
    report = logs.audit()
    assert not report.clean, f"{gone} was not missed"


def _counts(fact: Any, logs: Logs) -> bool:
    """Whether anything follows from the record: a reward that lost its key or a revision nobody names does not."""
    if isinstance(fact, RewardSeen):
        return not fact.event_id.endswith("w0") and fact.value != 0.0
    if isinstance(fact, MemberSeen):
        place = [t for t in logs.of(TrajectorySeen) if (t.rollout_id, t.attempt) == (fact.rollout_id, fact.attempt)]
        return max(place, key=lambda t: t.revision).status == "succeeded"
    if isinstance(fact, TrajectorySeen):
        newest = max(t.revision for t in logs.of(TrajectorySeen) if _who(t) == _who(fact))
        return fact.revision == newest
    return True


def _who(fact: Any) -> tuple[str, int]:
    return fact.rollout_id, fact.attempt


@few
@given(seeds, st.data())
def test_a_response_of_the_ledger_that_is_not_in_events_is_found(seed: int, data: st.DataObject) -> None:
    logs = Maker(seed).make()
    call = data.draw(st.sampled_from([c for c in logs.of(CallSeen) if c.response_id]))
    logs.facts.append(LedgerLine(call.rollout_id, call.attempt, call.response_id, 9))
    logs.facts = [f for f in logs.facts if f != call]
    assert logs.audit().counts[Finding.LEDGER_CALL_MISSING] == 1


@few
@given(seeds, st.data())
def test_a_call_under_two_events_is_found(seed: int, data: st.DataObject) -> None:
    logs = Maker(seed).make()
    call = data.draw(st.sampled_from([c for c in logs.of(CallSeen) if c.response_id]))
    logs.facts.append(replace(call, event_id=call.event_id + "'", offset=call.offset + 10**7))
    assert logs.audit().counts[Finding.CALL_DOUBLED] >= 1


@few
@given(seeds, st.data())
def test_a_call_twice_in_a_trajectory_is_found(seed: int, data: st.DataObject) -> None:
    logs = Maker(seed).make()
    index = data.draw(st.sampled_from([i for i, f in enumerate(logs.facts) if isinstance(f, TrajectorySeen)]))
    old: Any = logs.facts[index]
    new = replace(old, calls=(*old.calls, old.calls[0]), revision=5)
    logs.facts.append(new)
    assert logs.audit().counts[Finding.CALL_DOUBLED] == 1


@few
@given(seeds, st.data())
def test_rewards_that_name_calls_count_only_where_all_do(seed: int, data: st.DataObject) -> None:
    logs = Maker(seed).make()
    reward = data.draw(st.sampled_from(logs.of(RewardSeen)))
    part = replace(reward, event_id="part", key="part", call_id="c", value=7.0)
    assert replace(logs, facts=[*logs.facts, part]).audit().clean
    named = [replace(f, call_id="c") if isinstance(f, RewardSeen) else f for f in logs.facts]
    assert replace(logs, facts=named).audit().clean


@few
@given(seeds, st.data())
def test_a_revision_with_two_contents_is_found(seed: int, data: st.DataObject) -> None:
    logs = Maker(seed).make()
    trajectory = data.draw(st.sampled_from(logs.of(TrajectorySeen)))
    logs.facts.append(replace(trajectory, content=b"other"))
    assert logs.audit().counts[Finding.REVISION_DIFFERS] >= 1


def _with_training(seed: int) -> tuple[Logs, TrainedSeen]:
    logs = Maker(seed).make(n_groups=8, n_versions=4)
    trained = logs.of(TrainedSeen)
    assume(trained)
    return logs, trained[0]


@few
@given(seeds)
def test_a_rollout_trained_again_in_the_same_lineage_is_found(seed: int) -> None:
    logs, one = _with_training(seed)
    logs.world.versions[9] = VersionSeen(9, max(logs.world.versions), 10**6, 10**6 + 1)
    logs.facts.append(replace(one, version=9))
    assert logs.audit().counts[Finding.TRAINED_TWICE] == 1


@few
@given(seeds)
def test_a_rollout_listed_twice_by_one_version_is_found(seed: int) -> None:
    logs, one = _with_training(seed)
    logs.facts.append(one)
    assert logs.audit().counts[Finding.TRAINED_TWICE] == 1


@few
@given(seeds)
def test_training_again_after_a_rollback_is_no_finding(seed: int) -> None:
    logs, one = _with_training(seed)
    parent = logs.world.versions[one.version].parent
    logs.world.versions[9] = VersionSeen(9, parent, one.batch_offset, one.batch_offset + 1)
    logs.facts.append(replace(one, version=9))
    assert logs.audit().clean


@few
@given(seeds)
def test_a_validation_rollout_in_a_manifest_is_found(seed: int) -> None:
    logs = Maker(seed).make()
    kept = [t for t in logs.of(TrajectorySeen) if t.purpose == "validate"]
    assume(kept)
    logs.facts.append(TrainedSeen(kept[0].rollout_id, kept[0].attempt, 0, 1, kept[0].group_id, 0, 0))
    assert logs.audit().counts[Finding.VALIDATION_TRAINED] == 1


@few
@given(seeds)
def test_a_manifest_that_names_a_rollout_of_no_batch_is_found(seed: int) -> None:
    logs, one = _with_training(seed)
    logs.facts.append(replace(one, rollout_id="nobody"))
    assert logs.audit().counts[Finding.TRAINED_UNFOUNDED] == 1


def _change_entry(change: Callable[[BatchEntry], BatchEntry]) -> Callable[[Logs], None]:
    def apply(logs: Logs) -> None:
        said = next(said for _, said in logs.batches if said)
        version, entries = said[0]
        said[0] = (version, [change(entry) for entry in entries])

    return apply


def _forget_batch(logs: Logs) -> None:
    logs.batches[0][1].clear()


def _overlapping_version(logs: Logs) -> None:
    newest = max(logs.world.versions)
    logs.world.versions[9] = VersionSeen(9, newest, 0, 1)


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        (_change_entry(lambda e: replace(e, rollouts=e.rollouts[1:])), Finding.BATCH_UNACCOUNTED),
        (_change_entry(lambda e: replace(e, group_id="other")), Finding.MANIFEST_WRONG),
        (_change_entry(lambda e: replace(e, outcome="dropped", reason=None)), Finding.DROP_WITHOUT_REASON),
        (_forget_batch, Finding.BATCH_UNACCOUNTED),
        (_overlapping_version, Finding.RANGE_BROKEN),
    ],
)
def test_a_batch_that_the_manifests_do_not_account_for_is_found(
    damage: Callable[[Logs], None], finding: Finding
) -> None:
    logs = next(logs for seed in range(100) if (logs := Maker(seed).make()).batches[:1] and logs.batches[0][1])
    damage(logs)
    assert logs.audit().counts[finding] >= 1


def test_what_the_next_stage_has_not_reached_is_pending_and_no_finding() -> None:
    logs = Maker(3).make()
    logs.world.assembled_to, logs.world.grouped_to = {}, {}
    logs.facts = [f for f in logs.facts if not isinstance(f, TrajectorySeen | MemberSeen | TrainedSeen)]
    report = logs.audit()
    assert report.clean
    assert report.pending["not_assembled"] == len({_who(e) for e in logs.of(EndedSeen)})
    assert not report.settled()


def test_what_retention_has_taken_is_no_finding() -> None:
    logs = Maker(3).make()
    logs.world.events = Extent({0: 10**9}, {0: 10**9})
    logs.world.events_since_ms = 10**6
    logs.facts = [f for f in logs.facts if not isinstance(f, CallSeen | RewardSeen | EndedSeen)]
    report = logs.audit()
    assert report.clean, "\n".join(report.lines())
    assert report.figures["attempts_beyond_retention"] > 0
    assert report.figures["ledger_responses_beyond_retention"] == report.figures["ledger_responses"] > 0


def test_every_finding_has_a_meaning_and_reports_keep_few_examples() -> None:
    assert set(MEANING) == set(Finding)
    report, other = Report(), Report()
    for n in range(50):
        report.find(Finding.CALL_LOST, str(n))
        other.find(Finding.CALL_LOST, str(n))
    report.add(other)
    assert report.counts[Finding.CALL_LOST] == 100
    assert len(report.examples[Finding.CALL_LOST]) == 20
    assert b'"clean": false' in report.to_json()
    assert any("FINDING call_lost" in line for line in report.lines())


def test_the_docs_list_every_finding_with_its_meaning() -> None:
    text = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    table = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", text, re.M))
    assert table == {str(finding): meaning for finding, meaning in MEANING.items()}
