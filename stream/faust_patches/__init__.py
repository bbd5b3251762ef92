"""Repairs of Faust and aiokafka, one file a fault, applied explicitly by the stream apps."""

from . import zstd


def apply_all() -> None:
    """Apply every repair. Harmless to repeat."""
    zstd.apply()
