"""The table's rows: what is remembered of a key that closed, or that is open but no longer holds the offset back."""

import struct
from dataclasses import dataclass

_FIXED = struct.Struct("<BBiqqqI")
_VERSION = 1
MAX_IDS = 4096


@dataclass(frozen=True, slots=True)
class Row:
    """One key of one stage.

    At or below `applied_offset` everything is contained; above it, an id of `ids` is a duplicate, all else is new.
    `kept` is what the stage needs to have its state again.
    """

    closed: bool
    revision: int  # of the last output; -1: none yet
    applied_offset: int
    deadline_ms: int  # of an open key; 0 once it is closed
    written_ms: int  # event time of the last item
    ids: bytes  # 8 bytes an item, newest last, at most MAX_IDS of them
    kept: bytes

    def encode(self) -> bytes:
        """Bytes for table and changelog."""
        ids = self.ids[-8 * MAX_IDS :]
        head = _FIXED.pack(
            _VERSION, self.closed, self.revision, self.applied_offset, self.deadline_ms, self.written_ms, len(ids)
        )
        return head + ids + self.kept

    @classmethod
    def decode(cls, data: bytes) -> "Row":
        """Raises ValueError for a row of another version."""
        version, closed, revision, applied, deadline, written, n_ids = _FIXED.unpack_from(data)
        if version != _VERSION:
            raise ValueError(f"a table row of version {version}, this worker reads {_VERSION}")
        ids_end = _FIXED.size + n_ids
        return cls(bool(closed), revision, applied, deadline, written, data[_FIXED.size : ids_end], data[ids_end:])


def pack_offsets(offsets: list[int]) -> bytes:
    """Ascending offsets as varint differences: one to three bytes each."""
    out = bytearray()
    last = 0
    for offset in offsets:
        delta, last = offset - last, offset
        while delta > 0x7F:
            out.append(delta & 0x7F | 0x80)
            delta >>= 7
        out.append(delta)
    return bytes(out)


def unpack_offsets(data: bytes) -> list[int]:
    """Inverse of pack_offsets."""
    offsets: list[int] = []
    last = value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
            continue
        last += value
        offsets.append(last)
        value = shift = 0
    return offsets
