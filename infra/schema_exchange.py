"""Schemas by fingerprint in the object store, so that an older worker reads what a newer producer writes."""

import time
from collections.abc import Callable

from ..avro.schemas import SchemaStore, committed_store
from .objects import ObjectStore

# Producers publish before they write, so an absent schema hardly ever comes later.
_UNKNOWN_FOR_S = 60.0
_MAX_UNKNOWN = 1000


def _key(fp: bytes) -> str:
    return f"schemas/{fp.hex()}.avsc"


def publish(store: SchemaStore, objects: ObjectStore) -> None:
    """Put every committed schema there; a producer does so before its first record."""
    for schema in store.known():
        objects.put(_key(schema.fingerprint), schema.text.encode())


def learning_store(objects: ObjectStore, clock_s: Callable[[], float] = time.monotonic) -> SchemaStore:
    """The committed schemas, asking the object store for any other: once a minute for one that is not there."""
    unknown: dict[bytes, float] = {}  # until when, oldest first

    def learn(fp: bytes) -> str | None:
        if clock_s() < unknown.get(fp, 0.0):
            return None
        unknown.pop(fp, None)
        text = objects.get_or_none(_key(fp))
        if text is not None:
            return text.decode()
        if len(unknown) >= _MAX_UNKNOWN:
            del unknown[next(iter(unknown))]
        unknown[fp] = clock_s() + _UNKNOWN_FOR_S
        return None

    return committed_store(learn)
