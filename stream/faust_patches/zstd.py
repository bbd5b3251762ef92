"""aiokafka reads zstd only with cramjam installed; zstandard, which Leyden has anyway, does the same.

Upstream: aiokafka 0.14 `codec.py`, extra `aiokafka[zstd]`. Can go when cramjam is a dependency.
"""

from typing import Any

import zstandard
from aiokafka import codec
from aiokafka.record import default_records
from aiokafka.record._crecords import default_records as c_default_records


def _decode(payload: Any) -> bytes:
    # Producers do not write the uncompressed size into the frame's header, so only the stream interface fits.
    return zstandard.ZstdDecompressor().decompressobj().decompress(bytes(payload))


def apply() -> None:
    """Give aiokafka a zstd decoder. Harmless to repeat."""
    codec.has_zstd = lambda: True
    for module in (codec, default_records, c_default_records):
        module.zstd_decode = _decode  # pyright: ignore[reportAttributeAccessIssue]
