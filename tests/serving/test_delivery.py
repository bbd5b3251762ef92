"""From a published candidate to the engine: promoter and reloader over real Kafka and MinIO."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from leyden.avro import Checkpoint, decode
from leyden.infra.checkpoint_log import CheckpointWriter, read_lineage
from leyden.infra.kafka import read_all
from leyden.infra.topics import CHECKPOINTS
from leyden.serving import gc, lineage_report, rollback
from leyden.serving.rollback import RollbackError
from leyden.serving.store import CacheInUseError

pytestmark = [pytest.mark.kafka, pytest.mark.minio]
MakeWeights = Callable[[int], Path]
# The fixtures `stand` (Deployment) and `fake_engine` (FakeEngine) are in conftest.py, which tests cannot import.


def until(condition: Callable[[], object], *steps: Callable[[], object], deadline_s: float = 20.0) -> None:
    """Take the steps in turn until the condition holds."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come to hold"
        for step in steps:
            step()


def live(stand: Any) -> int | None:
    found = read_lineage(stand.settings()).live
    return found.version if found else None


def promote(stand: Any, version: int, **more: Any) -> None:
    """Have a promoter make `version` live."""
    promoter = stand.promoter(**more)
    until(lambda: live(stand) == version, lambda: promoter.step(0.1))


def announced_live(stand: Any) -> list[int]:
    """The versions that were ever announced live, void or not; compaction keeps the last."""
    messages = read_all(stand.settings().kafka, stand.settings().prefix + CHECKPOINTS)
    records = [decode(message.value() or b"", Checkpoint) for message in messages]
    return [record.version for record in records if record.state == "live"]


def test_a_candidate_becomes_live_and_is_loaded_from_verified_files(
    stand: Any, fake_engine: Any, new_weights: MakeWeights
) -> None:
    published = new_weights(1)
    stand.publish(1, None, published)
    promoter, reloader = stand.promoter(), stand.reloader(fake_engine.url)
    assert reloader.why_not_ready() is not None
    until(lambda: reloader.why_not_ready() is None, lambda: promoter.step(0.05), reloader.step)
    [(version, folder)] = fake_engine.loaded
    assert version == 1
    for path in published.iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes()
    line = json.loads((folder.parent / "reloads.jsonl").read_text())
    assert line["version"] == 1
    assert 0 <= line["seconds"]["announcement_to_serving"] < 20


def test_a_candidate_is_fetched_while_its_gates_are_asked(
    stand: Any, fake_engine: Any, new_weights: MakeWeights
) -> None:
    entry = stand.publish(1, None, new_weights(1))
    reloader = stand.reloader(fake_engine.url)
    folder = stand.folder / "cache" / f"00000001-{entry.run_id}"
    until(folder.exists, reloader.step)
    assert fake_engine.loaded == []
    promote(stand, 1)
    until(lambda: fake_engine.loaded == [(1, folder)], reloader.step)


def test_the_newest_of_several_candidates_becomes_live_at_once(stand: Any, new_weights: MakeWeights) -> None:
    for version in (1, 2, 3):
        stand.publish(version, version - 1 or None, new_weights(version))
    promote(stand, 3)
    assert announced_live(stand) == [3]


def test_a_candidate_without_all_of_its_files_stays_a_candidate(stand: Any, new_weights: MakeWeights) -> None:
    stand.publish(1, None, new_weights(1))
    broken = stand.publish(2, 1, new_weights(2))
    stand.objects.remove([broken.folder + "serve/model.safetensors"])
    promote(stand, 1)
    promoter = stand.promoter()
    for _ in range(10):
        promoter.step(0.05)
    assert live(stand) == 1


@pytest.mark.parametrize("harm", ["digest", "size", "absent"])
def test_files_that_are_not_the_manifests_never_reach_the_engine_until_they_are_right(
    stand: Any, fake_engine: Any, new_weights: MakeWeights, harm: str
) -> None:
    entry = stand.publish(1, None, new_weights(1))
    key = entry.folder + "serve/model.safetensors"
    right = stand.objects.get(key)
    promote(stand, 1)
    if harm == "absent":
        stand.objects.remove([key])
    else:
        stand.objects.put(key, right[:-1] + (b"" if harm == "size" else bytes([right[-1] ^ 1])))
    reloader = stand.reloader(fake_engine.url)
    until(lambda: reloader._failures.count >= 2, reloader.step)
    assert fake_engine.loaded == []
    assert reloader.why_not_ready() is not None
    stand.objects.put(key, right)
    until(lambda: fake_engine.version == 1, reloader.step)


def test_a_file_damaged_on_disk_is_fetched_again_by_the_next_reloader(
    stand: Any, fake_engine: Any, new_weights: MakeWeights
) -> None:
    stand.publish(1, None, new_weights(1))
    promote(stand, 1)
    reloader = stand.reloader(fake_engine.url)
    until(lambda: fake_engine.version == 1, reloader.step)
    stand.close()
    path = fake_engine.loaded[0][1] / "model.safetensors"
    right = path.read_bytes()
    path.write_bytes(right[:-1] + b"?")
    fake_engine.restart()
    reloader = stand.reloader(fake_engine.url)
    until(lambda: fake_engine.version == 1, reloader.step)
    assert path.read_bytes() == right


def test_a_restarted_engine_is_not_ready_before_it_runs_live_again(
    stand: Any, fake_engine: Any, new_weights: MakeWeights
) -> None:
    stand.publish(1, None, new_weights(1))
    promote(stand, 1)
    reloader = stand.reloader(fake_engine.url)
    until(lambda: reloader.why_not_ready() is None, reloader.step)
    fake_engine.restart()
    until(lambda: reloader.why_not_ready() is not None, reloader._look)
    until(lambda: reloader.why_not_ready() is None, reloader.step)
    assert [version for version, _ in fake_engine.loaded] == [1, 1]


def test_an_engine_that_is_away_is_loaded_when_it_comes(stand: Any, fake_engine: Any, new_weights: MakeWeights) -> None:
    stand.publish(1, None, new_weights(1))
    promote(stand, 1)
    reloader = stand.reloader("http://127.0.0.1:1")
    until(lambda: reloader.why_not_ready() == "the engine does not answer", reloader.step)
    stand.close()
    reloader = stand.reloader(fake_engine.url)
    until(lambda: reloader.why_not_ready() is None, reloader.step)
    assert [version for version, _ in fake_engine.loaded] == [1]


def test_a_checkpoint_that_the_engine_refuses_is_tried_again_and_the_next_one_is_loaded(
    stand: Any, fake_engine: Any, new_weights: MakeWeights
) -> None:
    stand.publish(1, None, new_weights(1))
    promote(stand, 1)
    fake_engine.refuse = "tensor holds NaN or infinity"
    reloader = stand.reloader(fake_engine.url)
    until(lambda: reloader._failures.count >= 2, reloader.step)
    assert fake_engine.loaded == []
    fake_engine.refuse = None
    stand.publish(2, 1, new_weights(2))
    promote(stand, 2)
    until(lambda: fake_engine.version == 2, reloader.step)
    assert reloader.why_not_ready() is None


def test_a_rollback_is_served_from_disk_and_the_abandoned_line_never_comes_back(
    stand: Any, fake_engine: Any, new_weights: MakeWeights
) -> None:
    reloader = stand.reloader(fake_engine.url)
    for version in (1, 2, 3):
        stand.publish(version, version - 1 or None, new_weights(version))
        promote(stand, version)
        until(lambda version=version: fake_engine.version == version, reloader.step)
    done = rollback.main(stand.settings(), None)
    assert (done.target.version, [r.version for r in done.abandoned]) == (2, [3])
    done = rollback.main(stand.settings(), 1)
    assert (done.target.version, [r.version for r in done.abandoned]) == (1, [2])
    until(lambda: fake_engine.version == 1, reloader.step)
    assert reloader.why_not_ready() is None
    stand.publish(4, 3, new_weights(4))
    stand.publish(5, 1, new_weights(5))
    promote(stand, 5)
    rows = {row.version: row.state for row in lineage_report.main(stand.settings())}
    assert rows == {1: "past", 2: "rolled_back", 3: "rolled_back", 4: "abandoned", 5: "live"}


def test_a_rollback_to_what_cannot_be_served_any_more_changes_nothing(stand: Any, new_weights: MakeWeights) -> None:
    first = stand.publish(1, None, new_weights(1))
    stand.publish(2, 1, new_weights(2))
    promote(stand, 2, collect=False)
    stand.objects.remove([first.folder + "serve/model.safetensors"])
    with pytest.raises(RollbackError, match=r"cannot be served any more.*serve/model\.safetensors"):
        rollback.main(stand.settings(), None)
    with pytest.raises(RollbackError, match="has no version 7; known: 1, 2"):
        rollback.main(stand.settings(), 7)
    assert live(stand) == 2


@pytest.mark.parametrize(
    ("adapters", "gone", "why"),
    [
        (True, ("parameters", "state"), "it trained adapters, and resume/parameters is gone"),
        (True, ("state",), "it trained adapters, and resume/state is gone"),
        (False, ("state",), "resume/state is gone and 1 other files are there"),
        (False, ("parameters", "state"), None),  # full weights are served whole: the learner goes on from those
        (True, (), None),
    ],
)
def test_a_rollback_to_what_the_learner_could_not_go_on_from_changes_nothing(
    stand: Any, new_weights: MakeWeights, adapters: bool, gone: tuple[str, ...], why: str | None
) -> None:
    first = stand.publish(1, None, new_weights(1), adapters=adapters)
    stand.publish(2, 1, new_weights(2), adapters=adapters)
    promote(stand, 2, collect=False)
    stand.objects.remove([f"{first.folder}resume/{name}" for name in gone])
    if why is None:
        assert rollback.main(stand.settings(), 1).target.version == 1
        return
    with pytest.raises(RollbackError, match=f"the learner could not go on from it: .*{why}"):
        rollback.main(stand.settings(), 1)
    assert live(stand) == 2


def test_a_promotion_that_a_rollback_overtakes_is_repaired_for_those_who_start_later(
    stand: Any, new_weights: MakeWeights
) -> None:
    stand.publish(1, None, new_weights(1))
    stand.publish(2, 1, new_weights(2))
    promoter = stand.promoter()
    until(lambda: live(stand) == 2, lambda: promoter.step(0.1))
    late = read_lineage(stand.settings()).live
    assert late is not None
    rollback.main(stand.settings(), 1)
    CheckpointWriter(stand.settings()).write([late])
    assert announced_live(stand)[-1] == 2
    until(lambda: announced_live(stand)[-1] == 1, lambda: promoter.step(0.1))


def test_promotions_collect_what_no_rule_keeps_and_manifests_stay(stand: Any, new_weights: MakeWeights) -> None:
    rules = {"keep_serve": 2, "keep_resume": 1, "rollback_depth": 1}
    for version in (1, 2, 3, 4):
        stand.publish(version, version - 1 or None, new_weights(version))
        promote(stand, version, **rules)
    left = {(part.version, part.name) for part in gc.stored_parts("policy", stand.objects)}
    assert left == {(3, "serve"), (3, "resume"), (4, "serve"), (4, "resume")}
    assert [row.version for row in lineage_report.main(stand.settings())] == [1, 2, 3, 4]
    assert gc.main(stand.settings(**rules)) == []


def test_two_reloaders_never_share_a_cache(stand: Any, fake_engine: Any) -> None:
    stand.reloader(fake_engine.url)
    with pytest.raises(CacheInUseError):
        stand.reloader(fake_engine.url)


def test_the_last_few_versions_stay_on_disk(stand: Any, fake_engine: Any, new_weights: MakeWeights) -> None:
    reloader = stand.reloader(fake_engine.url, keep_versions=2)
    for version in (1, 2, 3):
        stand.publish(version, version - 1 or None, new_weights(version))
        promote(stand, version)
        until(lambda version=version: fake_engine.version == version, reloader.step)
    cache = fake_engine.loaded[0][1].parent
    # Besides them lie the files of the last one that went, to be written over.
    names = sorted(path.name.partition("-")[0] for path in cache.iterdir() if path.is_dir())
    assert names == ["00000002", "00000003", "spare.part"]
