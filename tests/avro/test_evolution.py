"""Schemas evolve: every committed version can be followed, and both sides of a change go on reading."""

import copy
import itertools
import json
from typing import Any

import pytest
from leyden import avro
from leyden.avro import evolution
from leyden.avro.errors import DecodeError
from leyden.avro.schemas import SchemaStore, committed_texts

REWARD_EVENT = avro.Event("e", "r", 1, 5, avro.Reward(1.0, "s", "k"))


def by_record() -> dict[str, list[Any]]:
    versions: dict[str, list[Any]] = {}
    for text in committed_texts():
        raw = json.loads(text)
        versions.setdefault(raw["name"], []).append(raw)
    return versions


def test_each_committed_version_may_follow_each_earlier_one() -> None:
    for name, versions in by_record().items():
        for old, new in itertools.combinations(versions, 2):
            assert evolution.problems(old, new) == [], name


def changed_event(change: str) -> Any:
    raw = copy.deepcopy(by_record()["Event"][-1])
    reward = next(branch for branch in raw["fields"][-1]["type"] if branch["name"] == "Reward")
    if change == "optional field":
        reward["fields"].append({"name": "weight", "type": ["null", "double"], "default": None})
    elif change == "field without default":
        reward["fields"].append({"name": "weight", "type": "double"})
    elif change == "removed field":
        del reward["fields"][0]
    elif change == "other type":
        reward["fields"][0]["type"] = "string"
    elif change == "other order":
        reward["fields"].reverse()
    elif change == "removed branch":
        raw["fields"][-1]["type"].pop()
    return raw


def test_an_optional_field_is_allowed() -> None:
    assert evolution.problems(by_record()["Event"][-1], changed_event("optional field")) == []


@pytest.mark.parametrize(
    "change", ["field without default", "removed field", "other type", "other order", "removed branch"]
)
def test_a_change_that_breaks_a_reader_is_named(change: str) -> None:
    assert evolution.problems(by_record()["Event"][-1], changed_event(change))


def test_an_old_reader_reads_a_new_record_once_it_can_learn_the_schema() -> None:
    text = json.dumps(changed_event("optional field"))
    newer = SchemaStore([*committed_texts(), text])
    fp = newer.current("leyden.Event").fingerprint
    data = codec_with(newer)
    with pytest.raises(DecodeError, match="unknown schema fingerprint"):
        avro.decode(data, avro.Event)
    learning = SchemaStore(committed_texts(), learn=lambda asked: text if asked == fp else None)
    assert avro.decode(data, avro.Event, learning) == REWARD_EVENT


def codec_with(store: SchemaStore) -> bytes:
    """The reward as a producer with that store's schema writes it (its class here lacks the new field)."""
    return avro.encode(REWARD_EVENT, store)


def test_a_new_reader_reads_old_records() -> None:
    newer = SchemaStore([*committed_texts(), json.dumps(changed_event("optional field"))])
    assert avro.decode(avro.encode(REWARD_EVENT), avro.Event, newer) == REWARD_EVENT
