"""Facts on disk, spread by key over parts that fit in memory: the audit needs a part at a time."""

import pickle
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

F = TypeVar("F")
MAX_PARTS = 512
FACTS_A_PART = 200_000
"""About 150 MB as Python objects."""
BUFFERED = 256


class Spool(Generic[F]):
    """Everything under one key is in one part. The files are gone when the context ends."""

    def __init__(self, n_facts_expected: int, folder: Path | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="leyden-audit-", dir=folder)
        n_parts = max(1, min(MAX_PARTS, -(-n_facts_expected // FACTS_A_PART)))
        self._files = [(Path(self._folder.name) / str(n)).open("w+b") for n in range(n_parts)]
        self._waiting: list[list[F]] = [[] for _ in range(n_parts)]

    def add(self, key: str, fact: F) -> None:
        """Keep a fact under its key."""
        part = zlib.crc32(key.encode()) % len(self._files)
        self._waiting[part].append(fact)
        if len(self._waiting[part]) >= BUFFERED:
            self._flush(part)

    def parts(self) -> Iterator[list[F]]:
        """One part after the other; nothing may be added any more."""
        for part, file in enumerate(self._files):
            self._flush(part)
            file.seek(0)
            facts: list[F] = []
            while True:
                try:
                    facts.extend(pickle.load(file))
                except EOFError:
                    break
            yield facts

    def _flush(self, part: int) -> None:
        if self._waiting[part]:
            pickle.dump(self._waiting[part], self._files[part], protocol=5)
            self._waiting[part] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for file in self._files:
            file.close()
        self._folder.cleanup()
