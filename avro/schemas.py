"""The fingerprint store: every schema version ever committed, and a way to learn later ones."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form

from .errors import DecodeError

# Where the head of a record ends: this field is the last that a head holds. `None`: no field at all.
HEAD_ENDS_AFTER: dict[str, str | None] = {"leyden.LLMCall": "n_completion_tokens", "leyden.Note": "name"}


@dataclass(frozen=True, slots=True)
class Schema:
    """One parsed schema version with its single-object fingerprint (CRC-64-AVRO, little-endian, 8 bytes)."""

    name: str
    fingerprint: bytes
    text: str
    parsed: Any = field(repr=False)
    head: Any = field(repr=False)


def parse(text: str) -> Schema:
    """Parse the JSON text of one schema. Raises ValueError when it is not an Avro record schema."""
    raw = json.loads(text)
    parsed = parse_schema(raw, named_schemas={})
    canonical = to_parsing_canonical_form(parsed)
    return Schema(
        name=f"{raw['namespace']}.{raw['name']}",
        fingerprint=bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO")),
        text=text,
        parsed=parsed,
        head=parse_schema(_cut(json.loads(text), raw["namespace"]), named_schemas={}),
    )


def _cut(schema: Any, namespace: str) -> Any:
    """The same schema with each record of HEAD_ENDS_AFTER cut behind its last head field."""
    if isinstance(schema, list):
        return [_cut(branch, namespace) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "record":
        full_name = f"{namespace}.{schema['name']}"
        if full_name in HEAD_ENDS_AFTER:
            names = [f["name"] for f in schema["fields"]]
            last = HEAD_ENDS_AFTER[full_name]
            schema["fields"] = schema["fields"][: names.index(last) + 1] if last else []
        schema["fields"] = [{**f, "type": _cut(f["type"], namespace)} for f in schema["fields"]]
    elif schema.get("type") == "array":
        schema["items"] = _cut(schema["items"], namespace)
    return schema


class SchemaStore:
    """Schemas by fingerprint. `learn` is asked for a fingerprint that nobody here committed, until it knows it.

    A newer producer's records are readable by an older worker because producers put their schemas where `learn` looks
    (the object store, see infra.schema_exchange) before they write the first record.
    """

    def __init__(self, texts: list[str], learn: Callable[[bytes], str | None] | None = None) -> None:
        self._by_fingerprint: dict[bytes, Schema] = {}
        self._current: dict[str, Schema] = {}
        self._learn = learn
        for text in texts:
            schema = parse(text)
            self._by_fingerprint[schema.fingerprint] = schema
            self._current[schema.name] = schema

    def current(self, name: str) -> Schema:
        """The schema that this process writes for the record `name`."""
        return self._current[name]

    def known(self) -> list[Schema]:
        """All schemas of this store."""
        return list(self._by_fingerprint.values())

    def by_fingerprint(self, fp: bytes) -> Schema:
        """Raises DecodeError for a fingerprint that neither this store nor `learn` knows."""
        schema = self._by_fingerprint.get(fp)
        if schema is None and self._learn is not None and (text := self._learn(fp)) is not None:
            schema = parse(text)
            if schema.fingerprint != fp:
                raise DecodeError(f"the schema found for fingerprint {fp.hex()} has {schema.fingerprint.hex()}")
            self._by_fingerprint[fp] = schema
        if schema is None:
            raise DecodeError(f"unknown schema fingerprint {fp.hex()}: written by a newer producer or not by Leyden")
        return schema


def committed_texts() -> list[str]:
    """The texts of schemas/*.avsc, oldest version of each record first."""
    files = [
        p
        for p in resources.files(__name__.rpartition(".")[0]).joinpath("schemas").iterdir()
        if p.name.endswith(".avsc")
    ]

    def order(name: str) -> tuple[str, int]:
        record, version, _ = name.split(".")
        return record, int(version[1:])

    return [p.read_text() for p in sorted(files, key=lambda p: order(p.name))]


def committed_store(learn: Callable[[bytes], str | None] | None = None) -> SchemaStore:
    """A store of all committed schemas."""
    return SchemaStore(committed_texts(), learn)
