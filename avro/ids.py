"""Identifiers: UUIDv7 as 32 hex digits (RFC 9562), so that they sort by time."""

import os
import time

_RANDOM_BITS = 74


def new_id() -> str:
    """A fresh UUIDv7, 32 hex digits."""
    ms = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big") & ((1 << _RANDOM_BITS) - 1)
    value = (ms & ((1 << 48) - 1)) << 80 | 0x7 << 76 | (random >> 62) << 64 | 0b10 << 62 | random & ((1 << 62) - 1)
    return f"{value:032x}"


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def now_us() -> int:
    """Microseconds since the epoch."""
    return time.time_ns() // 1_000
