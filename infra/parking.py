"""Records too large for Kafka: the whole record goes to the object store, its header with a Reference to Kafka."""

import hashlib
from dataclasses import replace
from typing import TypeVar

from ..avro import Event, LLMCall, Reference, Trajectory, decode, encode
from ..avro.schemas import SchemaStore
from .errors import ObjectLostError
from .objects import ObjectStore
from .topics import MAX_RECORD_BYTES

R = TypeVar("R", Event, Trajectory)


def park(record: R, objects: ObjectStore, limit_bytes: int = MAX_RECORD_BYTES) -> bytes:
    """The record encoded for Kafka: itself where it fits, else a header whose `parked` names the object.

    The object's key is its digest, so that parking the same record again writes the same object and gives equal bytes.
    Raises ObjectStoreError when the store is away and ValueError for a large record that has nothing to park.
    """
    whole = encode(record)
    if len(whole) <= limit_bytes:
        return whole
    digest = hashlib.sha256(whole).digest()
    key = f"parked/{digest.hex()}"
    objects.put(key, whole)
    reference = Reference(uri=f"s3://{objects.bucket}/{key}", sha256=digest, n_bytes=len(whole))
    if isinstance(record, Trajectory):
        header: Event | Trajectory = replace(record, calls=[], notes=[], task=None, parked=reference)
    elif isinstance(record.body, LLMCall):
        empty = dict.fromkeys(("prompt_ids", "completion_ids", "logprobs", "request", "response"), b"")
        header = replace(record, body=replace(record.body, **empty, parked=reference))
    else:
        raise ValueError(
            f"an event of {len(whole)} bytes with a {type(record.body).__name__} is over the limit of {limit_bytes}"
        )
    return encode(header)


def unpark(record: R, objects: ObjectStore, store: SchemaStore | None = None) -> R:
    """The whole record: itself, or what its reference names.

    Raises ObjectLostError when that is gone or altered, ObjectStoreError when the store is away, DecodeError.
    """
    reference = record.parked if isinstance(record, Trajectory) else getattr(record.body, "parked", None)
    if reference is None:
        return record
    whole = objects.get(reference.uri.removeprefix(f"s3://{objects.bucket}/"))
    if hashlib.sha256(whole).digest() != reference.sha256:
        raise ObjectLostError(f"object {reference.uri} is not what its digest says ({len(whole)} bytes)")
    return decode(whole, type(record), store) if store else decode(whole, type(record))
