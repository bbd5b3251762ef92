"""A decoder of one head schema as straight-line Python: what the stream runs for each event, three times faster.

It accepts only bytes that a writer would have written (shortest varints, lengths inside the data, valid UTF-8, unions
in range) and raises one of IRREGULAR for all else; the caller then asks the general decoder, which knows the reason.
"""

import struct
from collections.abc import Callable
from dataclasses import MISSING, fields
from itertools import count
from typing import Any

IRREGULAR = (ValueError, IndexError, struct.error, TypeError)
_MAX_VARINT_BYTES = 10


class UnsupportedSchemaError(ValueError):
    """The schema has a type that no head has; the general decoder takes it."""


def _more(data: bytes, at: int, first: int) -> tuple[int, int]:
    """The rest of a varint of several bytes: (value before zigzag, where it ends)."""
    value, shift = first & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if byte == 0 or value >> 64 or shift > 7 * _MAX_VARINT_BYTES:
        raise ValueError("a varint that no writer makes")
    return value, at


class _Source:
    """Collects the lines of the decoder."""

    def __init__(self, classes: dict[str, type]) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {"_more": _more, "_double": struct.Struct("<d").unpack_from}
        self._classes = classes
        self._serial = count()

    def put(self, depth: int, *lines: str) -> None:
        self.lines += ["    " * depth + line for line in lines]

    def long(self, depth: int) -> str:
        var = f"v{next(self._serial)}"
        self.put(depth, f"{var} = d[i]", "i += 1", f"if {var} > 127:", f"    {var}, i = _more(d, i, {var})")
        self.put(depth, f"{var} = ({var} >> 1) ^ -({var} & 1)")
        return var

    def value(self, schema: Any, depth: int) -> str:
        """Lines that decode `schema`; the name of the variable that holds the result."""
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(schema, list):
            return self.union(schema, depth)
        if kind in ("int", "long"):
            return self.long(depth)
        if kind in ("string", "bytes"):
            size = self.long(depth)
            self.put(depth, f"j = i + {size}", f"if {size} < 0 or j > n:", "    raise ValueError")
            self.put(depth, f"{size} = d[i:j]" if kind == "bytes" else f"{size} = str(d[i:j], 'utf-8')", "i = j")
            return size
        var = f"v{next(self._serial)}"
        if kind == "double":
            self.put(depth, f"{var} = _double(d, i)[0]", "i += 8")
        elif kind == "boolean":
            self.put(depth, f"{var} = d[i]", "i += 1", f"if {var} > 1:", "    raise ValueError", f"{var} = {var} == 1")
        elif kind == "record":
            self.record(schema, var, depth)
        else:
            raise UnsupportedSchemaError(f"type {kind}")
        return var

    def union(self, branches: list[Any], depth: int) -> str:
        out = f"u{next(self._serial)}"
        index = self.long(depth)
        for n, branch in enumerate(branches):
            self.put(depth, f"{'el' if n else ''}if {index} == {n}:")
            result = "None" if branch == "null" else self.value(branch, depth + 1)
            self.put(depth + 1, f"{out} = {result}")
        self.put(depth, "else:", "    raise ValueError")
        return out

    def record(self, schema: dict[str, Any], var: str, depth: int) -> None:
        name = schema["name"]
        cls = self._classes[name]
        decoded = {field["name"]: self.value(field["type"], depth) for field in schema["fields"]}
        arguments = []
        for field in fields(cls):
            if field.name in decoded:
                arguments.append(f"{field.name}={decoded[field.name]}")
            elif field.default is MISSING and field.default_factory is MISSING:
                raise UnsupportedSchemaError(f"{name} has no {field.name}")
        alias = name.replace(".", "_")
        self.names[alias] = cls
        self.put(depth, f"{var} = {alias}({', '.join(arguments)})")


def compile_head(schema: Any, classes: dict[str, type], start: int) -> Callable[[bytes], Any]:
    """A function from bytes to an instance of the schema's class; the body of the record begins at `start`.

    The function raises one of IRREGULAR. Raises UnsupportedSchemaError for a schema with other types than heads have.
    """
    source = _Source(classes)
    source.put(0, "def decode(d):")
    source.put(1, f"i = {start}", "n = len(d)")
    result = source.value(schema, 1)
    source.put(1, f"return {result}")
    exec("\n".join(source.lines), source.names)
    return source.names["decode"]
