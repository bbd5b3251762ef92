"""Avro single-object encoding of the records: marker C3 01, 8-byte schema fingerprint, body (Avro spec 1.12)."""

import io
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from fastavro import schemaless_reader, schemaless_writer

from . import records
from .errors import DecodeError
from .head_compiler import IRREGULAR, UnsupportedSchemaError, compile_head
from .records import EventHead, LLMCallHead, NoteHead, Record
from .schemas import SchemaStore, committed_store

MARKER = b"\xc3\x01"
HEADER_BYTES = 10
R = TypeVar("R", bound=Record)

COMMITTED: SchemaStore = committed_store()

_CLASSES: dict[str, type[Record]] = {
    cls.SCHEMA: cls
    for cls in vars(records).values()
    if isinstance(cls, type)
    and issubclass(cls, Record)
    and hasattr(cls, "SCHEMA")
    and not cls.__name__.endswith("Head")
}
_HEADS: dict[str, type[Record]] = _CLASSES | {
    "leyden.LLMCall": LLMCallHead,
    "leyden.Note": NoteHead,
    "leyden.Event": EventHead,
}
# Fields that hold a record without a union of several records around it: fastavro gives a plain dict there.
_PLAIN: dict[str, type[Record]] = {"parked": records.Reference, "token_span": records.TokenSpan}
_LISTS: dict[str, type[Record]] = {"rewards": records.MergedReward, "members": records.Member}


@cache
def _names(cls: type[Record]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls))  # pyright: ignore[reportArgumentType]


def _datum(record: Record) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in _names(type(record)):
        value = getattr(record, name)
        if name == "body":
            value = (value.SCHEMA, _datum(value))
        elif name in _LISTS:
            value = [_datum(item) for item in value]
        elif name in _PLAIN and value is not None:
            value = _datum(value)
        out[name] = value
    return out


def _build(cls: type[R], datum: dict[str, Any], classes: dict[str, type[Record]]) -> R:
    """Fields that this process does not know are left out, those that the writer did not know take their default."""
    kwargs: dict[str, Any] = {}
    for name in _names(cls):
        if name not in datum:
            continue
        value = datum[name]
        if name == "body":
            branch, inner = value
            value = _build(classes[branch], inner, classes)
        elif name in _LISTS:
            value = [_build(_LISTS[name], item, classes) for item in value]
        elif name in _PLAIN and value is not None:
            value = _build(_PLAIN[name], value, classes)
        kwargs[name] = value
    return cls(**kwargs)


def encode(record: Record, store: SchemaStore = COMMITTED) -> bytes:
    """Single-object encoding with the newest committed schema of the record's class."""
    schema = store.current(record.SCHEMA)
    out = io.BytesIO()
    out.write(MARKER)
    out.write(schema.fingerprint)
    schemaless_writer(out, schema.parsed, _datum(record))
    return out.getvalue()


def _read(data: bytes, schema: Any) -> tuple[Any, int]:
    """The datum and how many bytes it took; fails unless writing it again gives the same bytes.

    fastavro takes a negative union index for one from the end and a negative length for "all": bytes that no writer
    produced could otherwise decode to something. Writing again is the one check that covers all of that.
    """
    stream = io.BytesIO(data)
    stream.seek(HEADER_BYTES)
    try:
        datum = schemaless_reader(stream, schema, None, return_record_name=True, return_record_name_override=True)
        end = stream.tell()
        again = io.BytesIO()
        schemaless_writer(again, schema, datum)
    except Exception as error:
        raise DecodeError(f"not a record of its schema: {type(error).__name__}: {error}") from error
    if again.getvalue() != data[HEADER_BYTES:end]:
        raise DecodeError("not a record of its schema: the bytes are not what a writer would have written")
    return datum, end


def _schema_of(data: bytes, store: SchemaStore) -> Any:
    if len(data) < HEADER_BYTES or data[:2] != MARKER:
        raise DecodeError(f"no single-object marker: {len(data)} bytes beginning with {data[:4].hex() or 'nothing'}")
    return store.by_fingerprint(data[2:HEADER_BYTES])


def decode(data: bytes, expect: type[R], store: SchemaStore = COMMITTED) -> R:
    """Decode one record of class `expect`. Raises DecodeError, with the reason, for anything else."""
    record = decode_any(data, store)
    if not isinstance(record, expect):
        raise DecodeError(f"expected a {expect.__name__}, found a {type(record).__name__}")
    return record


def decode_any(data: bytes, store: SchemaStore = COMMITTED) -> Record:
    """Decode one record of any class. Raises DecodeError, with the reason, for anything that is none."""
    schema = _schema_of(data, store)
    if schema.name not in _CLASSES:
        raise DecodeError(f"a record of the schema {schema.name}, which this version does not know")
    datum, end = _read(data, schema.parsed)
    if end != len(data):
        raise DecodeError(f"{len(data) - end} bytes behind the end of the record")
    return _checked_build(_CLASSES[schema.name], datum, _CLASSES)


_fast_heads: dict[bytes, Callable[[bytes], EventHead]] = {}


def _compile(head: Any) -> Callable[[bytes], EventHead]:
    try:
        return compile_head(head, _HEADS, HEADER_BYTES)
    except UnsupportedSchemaError as error:
        reason = str(error)

        def unsupported(_: bytes) -> EventHead:
            raise ValueError(reason)

        return unsupported


def decode_head(data: bytes, store: SchemaStore = COMMITTED) -> EventHead:
    """Decode what stands first in an Event: routing fields and the head of its body; payloads stay unread.

    The payload behind the head is not looked at, so a record whose payload is broken passes here and fails in `decode`.
    """
    schema = _schema_of(data, store)
    if schema.name != "leyden.Event":
        raise DecodeError(f"expected an Event, found a {schema.name}")
    fast = _fast_heads.get(schema.fingerprint)
    if fast is None:
        fast = _fast_heads[schema.fingerprint] = _compile(schema.head)
    try:
        return fast(data)
    except IRREGULAR:
        # Not what a writer makes: the general decoder says what is wrong, or knows better.
        datum, _ = _read(data, schema.head)
    return _checked_build(EventHead, datum, _HEADS)


def _checked_build(cls: type[R], datum: Any, classes: dict[str, type[Record]]) -> R:
    try:
        return _build(cls, datum, classes)
    except (KeyError, TypeError) as error:
        raise DecodeError(f"a record of another {cls.__name__} than this version can read: {error}") from error
