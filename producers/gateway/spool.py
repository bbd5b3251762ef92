"""Events on disk while Kafka is away: ordered, framed with a checksum, fsynced, in files that are drained whole."""

import fcntl
import logging
import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from struct import Struct

from ...infra.errors import LeydenError
from . import metrics

log = logging.getLogger(__name__)
Record = tuple[bytes, bytes]
"""Key and value of a Kafka record."""

_FRAME = Struct("<III")  # bytes of the key, bytes of the value, crc32 of both


class SpoolError(LeydenError):
    """The spool's folder cannot be used; the message says why."""


class Spool:
    """A queue of segments, `{number:012d}.events`. Thread-safe: one thread appends, another drains.

    Order on append: write, fsync, then return; a record whose frame is cut off was never confirmed to anybody, and what
    could not be written whole is taken back. Order on draining: a segment is removed when Kafka has all of it, so a
    crash between sends it again (equal event ids).
    """

    def __init__(self, folder: Path, max_bytes: int, segment_bytes: int) -> None:
        self._folder, self._max_bytes, self._segment_bytes = folder, max_bytes, segment_bytes
        self._lock = threading.Lock()
        self._file: FileIO | None = None  # of the newest segment, while it takes records
        folder.mkdir(parents=True, exist_ok=True)
        self._guard = (folder / "lock").open("wb")
        try:
            fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._guard.close()
            raise SpoolError(f"spool {folder}: another gateway uses it; give each its own spool_dir") from error
        # Bytes that count, by segment, oldest first.
        self._segments = {path: path.stat().st_size for path in sorted(folder.glob("*.events"))}
        self._next = int(next(reversed(self._segments)).stem) + 1 if self._segments else 0
        self._bytes = sum(self._segments.values())
        self._report()

    @property
    def empty(self) -> bool:
        """Nothing waits for Kafka."""
        return not self._segments

    @property
    def full(self) -> bool:
        """No new call should begin; the events of calls already under way may still be appended."""
        return self._bytes >= self._max_bytes

    def append(self, records: Sequence[Record]) -> None:
        """Add records, on disk when this returns. Raises OSError, and then none of them counts."""
        data = b"".join(_frame(key, value) for key, value in records)
        with self._lock:
            file = self._file or self._open_segment()
            path = next(reversed(self._segments))
            try:
                _write(file, data)
                os.fsync(file.fileno())
            except OSError:
                try:
                    file.truncate(self._segments[path])
                finally:
                    self._seal()
                raise
            self._segments[path] += len(data)
            self._bytes += len(data)
            if self._segments[path] >= self._segment_bytes:
                self._seal()
        self._report()

    def oldest(self) -> tuple[Path, list[Record]] | None:
        """The oldest segment, closed to further records, with all that can be read of it; None where there is none."""
        with self._lock:
            if not self._segments:
                return None
            path, n_bytes = next(iter(self._segments.items()))
            if self._file is not None and len(self._segments) == 1:
                self._seal()
        data = path.read_bytes()[:n_bytes]
        records = list(read_frames(data))
        n_read = sum(_FRAME.size + len(key) + len(value) for key, value in records)
        if n_read < len(data):
            self._set_aside(path, n_read, len(data))
        return path, records

    def remove(self, path: Path) -> None:
        """Forget a segment that Kafka has."""
        with self._lock:
            path.unlink()
            self._bytes -= self._segments.pop(path)
        self._report()

    def close(self) -> None:
        """Close files; the folder may be opened again."""
        with self._lock:
            self._seal()
            self._guard.close()

    def _open_segment(self) -> FileIO:
        path = self._folder / f"{self._next:012d}.events"
        self._next += 1
        path.touch(exist_ok=False)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)  # the file's name, too, must survive a power cut
        finally:
            os.close(folder)
        self._segments[path] = 0
        # Unbuffered: a buffer would keep what the disk refused and write it later.
        self._file = path.open("ab", buffering=0)
        return self._file

    def _seal(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _set_aside(self, path: Path, n_read: int, n_bytes: int) -> None:
        """A frame cut off by a crash is expected; the unreadable rest is kept for whoever wants to look."""
        aside = path.with_suffix(".unreadable")
        if not aside.exists():
            aside.write_bytes(path.read_bytes()[n_read:])
            metrics.SPOOL_CORRUPT.inc()
            log.error(
                "spool %s: bytes %d to %d are no whole record, kept as %s", path.name, n_read, n_bytes, aside.name
            )

    def _report(self) -> None:
        metrics.SPOOL_BYTES.set(self._bytes)


def _write(file: FileIO, data: bytes) -> None:
    """All of it: an unbuffered write may take only a part."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _frame(key: bytes, value: bytes) -> bytes:
    return _FRAME.pack(len(key), len(value), zlib.crc32(value, zlib.crc32(key))) + key + value


def read_frames(data: bytes) -> Iterator[Record]:
    """Records up to the first frame that is cut off or whose checksum differs."""
    at = 0
    while at + _FRAME.size <= len(data):
        n_key, n_value, crc = _FRAME.unpack_from(data, at)
        begin, end = at + _FRAME.size, at + _FRAME.size + n_key + n_value
        if end > len(data) or zlib.crc32(data[begin:end]) != crc:
            return
        yield data[begin : begin + n_key], data[begin + n_key : end]
        at = end
