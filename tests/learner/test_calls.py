"""Calls are read from where they lie: an outage of the object store is waited out, a loss is not."""

from collections.abc import Callable
from threading import Event as StopEvent

import pytest
from leyden.avro import COMMITTED, Event, LLMCall, decode
from leyden.infra.errors import DecodeError, ObjectLostError, ObjectStoreError
from leyden.infra.objects import ObjectStore
from leyden.infra.parking import park
from leyden.infra.settings import ObjectSettings
from leyden.learner import publisher
from leyden.learner.calls import call_reader

from ..stream.rollouts import called


class FailingStore(ObjectStore):
    """A fake store in memory; its first reads fail with the given errors."""

    def __init__(self, *errors: ObjectStoreError) -> None:
        super().__init__(ObjectSettings())
        self.errors = list(errors)
        self.held: dict[str, bytes] = {}

    def put(self, key: str, data: bytes) -> None:
        self.held[key] = data

    def get(self, key: str) -> bytes:
        if self.errors:
            raise self.errors.pop(0)
        return self.held[key]


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Callable[[ObjectStore], Callable[[bytes], Event]]:
    monkeypatch.setattr(publisher, "PAUSE_S", 0.0)
    return lambda store: call_reader(store, COMMITTED, StopEvent())


def test_a_store_that_is_away_is_waited_for(reader: Callable[[ObjectStore], Callable[[bytes], Event]]) -> None:
    store = FailingStore(ObjectStoreError("away"), ObjectStoreError("still away"))
    encoded = park(called("r", 1), store, limit_bytes=10)
    body = reader(store)(encoded).body
    assert isinstance(body, LLMCall)
    assert body.completion_ids
    assert not store.errors


def test_what_is_gone_or_altered_is_lost_at_once(reader: Callable[[ObjectStore], Callable[[bytes], Event]]) -> None:
    gone, altered = FailingStore(ObjectLostError("gone")), FailingStore()
    encoded = park(called("r", 1), gone, limit_bytes=10)
    altered.held = dict.fromkeys(gone.held, b"something else")
    for store in (gone, altered):
        with pytest.raises(ObjectLostError):
            reader(store)(encoded)


def test_a_broken_payload_is_an_error_of_its_own(reader: Callable[[ObjectStore], Callable[[bytes], Event]]) -> None:
    encoded = park(called("r", 1), FailingStore())
    assert isinstance(decode(encoded, Event), Event)
    with pytest.raises(DecodeError):
        reader(FailingStore())(encoded[:-3])
