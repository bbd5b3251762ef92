"""Schemas by fingerprint in the object store, so that an older worker reads what a newer producer writes."""

from ..avro.schemas import SchemaStore, committed_store
from .objects import ObjectStore


def _key(fp: bytes) -> str:
    return f"schemas/{fp.hex()}.avsc"


def publish(store: SchemaStore, objects: ObjectStore) -> None:
    """Put every committed schema there; a producer does so before its first record."""
    for schema in store.known():
        objects.put(_key(schema.fingerprint), schema.text.encode())


def learning_store(objects: ObjectStore) -> SchemaStore:
    """The committed schemas, asking the object store for any other."""

    def learn(fp: bytes) -> str | None:
        text = objects.get_or_none(_key(fp))
        return text.decode() if text is not None else None

    return committed_store(learn)
