"""Repairs of Faust and aiokafka, one file a fault; what is no class to inherit from is applied by `apply_all`."""

from . import zstd


def apply_all() -> None:
    """Apply every repair that changes a library in place. Harmless to repeat."""
    zstd.apply()
