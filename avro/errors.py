"""The root of all of Leyden's errors, and the one that the contract itself raises."""


class LeydenError(Exception):
    """Root of all errors that Leyden raises on purpose: what is wrong, where, and what to do."""


class DecodeError(LeydenError):
    """Bytes that are not a record of the event contract; the message says why."""
