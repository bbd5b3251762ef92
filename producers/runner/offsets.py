"""Which offset of a partition may be committed when work is finished out of order."""


class OffsetTracker:
    """Of one partition: the committed position never passes a task that is not done."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._next = -1
        self._committed = -1

    def take(self, offset: int) -> None:
        """Work on this offset begins."""
        self._open.add(offset)
        self._next = max(self._next, offset + 1)

    def done(self, offset: int) -> None:
        """It is finished."""
        self._open.discard(offset)

    def position(self) -> int | None:
        """The position to commit, where it has moved since the last call; else None."""
        position = min(self._open, default=self._next)
        if position <= self._committed or position < 0:
            return None
        # The first call only sets the mark where nothing is done yet.
        self._committed = position
        return position
