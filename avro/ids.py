"""Identifiers: UUIDs of RFC 9562 as 32 hex digits; version 7 sorts by time, version 8 is derived from a name."""

import os
import time
from hashlib import blake2b

_RANDOM_BITS = 74


def new_id() -> str:
    """A fresh UUIDv7, 32 hex digits."""
    ms = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big") & ((1 << _RANDOM_BITS) - 1)
    value = (ms & ((1 << 48) - 1)) << 80 | 0x7 << 76 | (random >> 62) << 64 | 0b10 << 62 | random & ((1 << 62) - 1)
    return f"{value:032x}"


def named_id(name: str) -> str:
    """The UUIDv8 of a name: the same in every process, and never taken for a UUIDv7, which tells a time."""
    digest = int.from_bytes(blake2b(name.encode(errors="surrogatepass"), digest_size=16).digest(), "big")
    value = digest & ~(0xF << 76 | 0b11 << 62) | 0x8 << 76 | 0b10 << 62
    return f"{value:032x}"


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def now_us() -> int:
    """Microseconds since the epoch."""
    return time.time_ns() // 1_000
