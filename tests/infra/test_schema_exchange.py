"""Schemas of newer producers: found where they are, not asked for with every record where they are not."""

import json

import pytest
from leyden.avro import decode_any
from leyden.avro.errors import DecodeError
from leyden.avro.schemas import committed_texts, parse
from leyden.infra.objects import ObjectStore
from leyden.infra.schema_exchange import learning_store
from leyden.infra.settings import ObjectSettings


class Counting(ObjectStore):
    """An object store in memory that counts what it is asked for."""

    def __init__(self) -> None:
        super().__init__(ObjectSettings())
        self.objects: dict[str, bytes] = {}
        self.asked: list[str] = []

    def get_or_none(self, key: str) -> bytes | None:
        self.asked.append(key)
        return self.objects.get(key)


def test_unknown_schema_is_asked_for_once_and_again_only_after_a_while() -> None:
    objects, now = Counting(), [1000.0]
    store = learning_store(objects, lambda: now[0])
    garbage = b"\xc3\x01" + b"12345678" + b"rest"
    for _ in range(100):
        with pytest.raises(DecodeError, match="unknown schema fingerprint"):
            decode_any(garbage, store)
    assert len(objects.asked) == 1
    now[0] += 61
    with pytest.raises(DecodeError, match="unknown schema fingerprint"):
        decode_any(garbage, store)
    assert len(objects.asked) == 2


def test_schema_that_comes_later_is_found_and_no_more_asked_for() -> None:
    objects, now = Counting(), [1000.0]
    store = learning_store(objects, lambda: now[0])
    text = json.dumps(json.loads(committed_texts()[0]) | {"name": "Newer"})
    newer = parse(text)
    with pytest.raises(DecodeError):
        store.by_fingerprint(newer.fingerprint)
    objects.objects[f"schemas/{newer.fingerprint.hex()}.avsc"] = text.encode()
    now[0] += 61
    for _ in range(3):
        assert store.by_fingerprint(newer.fingerprint).name == newer.name
    assert len(objects.asked) == 2


def test_memory_of_unknown_schemas_is_bounded() -> None:
    objects = Counting()
    store = learning_store(objects, lambda: 0.0)
    for _ in range(2):
        for n in range(1001):
            with pytest.raises(DecodeError):
                store.by_fingerprint(n.to_bytes(8, "big"))
    assert len(objects.asked) == 2002  # the oldest was forgotten each time, as by a queue of 1000
