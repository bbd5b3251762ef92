"""What this gateway knows of attempts: calls in flight and done, ended or not. Bounded; nothing is kept per call."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from ...avro import now_ms
from .identity import is_single
from .refusals import RefusedError

Key = tuple[str, int]
# How far ahead the clock of whoever makes ids may be; an id from later on says nothing about when it was made.
_CLOCK_SKEW_MS = 60_000


@dataclass(slots=True)
class _Attempt:
    n_in_flight: int = 0
    n_safe: int = 0  # calls whose event is in Kafka
    started: bool = False  # its RolloutStarted is in Kafka or on its way
    closed: bool = False
    idle: asyncio.Event | None = None  # made by whoever waits


class Attempts:
    """The register. Used from the event loop alone.

    `n_calls` of a settled attempt is known only where this process saw it from its first call on: rollout ids are
    UUIDv7, so an id made after this process began, and after the newest attempt that it had to forget, is such a one.
    A rollout of a single call leaves nothing here: it is over with its call, and its id admits no other.
    """

    def __init__(self, limit: int, alone: bool, known_from_ms: int | None = None) -> None:
        self._limit = limit
        self._alone = alone
        self._known_from_ms = now_ms() if known_from_ms is None else known_from_ms
        self._attempts: OrderedDict[Key, _Attempt] = OrderedDict()
        self._newest: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def begin(self, key: Key) -> bool:
        """A call begins; True where nobody has written the attempt's RolloutStarted. Raises RefusedError (410)."""
        attempt = self._get(key)
        if attempt.closed:
            raise RefusedError(410, f"attempt {key[1]} of rollout {key[0]} has ended", code="attempt_ended")
        attempt.n_in_flight += 1
        first, attempt.started = not attempt.started, True
        return first

    def finish(self, key: Key, safe: bool) -> None:
        """A call is over; `safe`: its event is in Kafka."""
        attempt = self._get(key)
        attempt.n_in_flight -= 1
        attempt.n_safe += safe
        if attempt.n_in_flight == 0 and attempt.idle is not None:
            attempt.idle.set()

    def started(self, key: Key) -> None:
        """Somebody's RolloutStarted was seen in the log."""
        self._get(key).started = True

    def close(self, key: Key) -> None:
        """The attempt takes no more calls."""
        self._get(key).closed = True

    def newest(self, rollout_id: str) -> int:
        """The rollout's newest attempt as far as it is known here, else 1."""
        return self._newest.get(rollout_id, 1)

    async def settle(self, key: Key, timeout_s: float) -> bool:
        """Close the attempt and wait for its calls; False where some are still under way after `timeout_s`."""
        attempt = self._get(key)
        attempt.closed = True
        if attempt.n_in_flight == 0:
            return True
        attempt.idle = attempt.idle or asyncio.Event()
        try:
            async with asyncio.timeout(timeout_s):
                await attempt.idle.wait()
        except TimeoutError:
            return False
        return True

    def n_calls(self, key: Key) -> int | None:
        """How many calls the attempt has in Kafka; None where this process cannot know."""
        made_ms = _made_ms(key[0])
        if not self._alone or made_ms is None or made_ms <= self._known_from_ms:
            return None
        return self._get(key).n_safe

    def _get(self, key: Key) -> _Attempt:
        attempt = self._attempts.get(key)
        if attempt is not None:
            self._attempts.move_to_end(key)
            return attempt
        if is_single(key[0]):
            return _Attempt()
        if len(self._attempts) >= self._limit:
            self._forget_oldest()
        attempt = self._attempts[key] = _Attempt()
        self._newest[key[0]] = max(key[1], self._newest.get(key[0], 1))
        return attempt

    def _forget_oldest(self) -> None:
        for _ in range(len(self._attempts)):
            key, forgotten = next(iter(self._attempts.items()))
            if forgotten.n_in_flight == 0:
                break
            self._attempts.move_to_end(key)  # so that long calls are not passed over again each time
        else:
            return
        del self._attempts[key]
        if self._newest.get(key[0]) == key[1]:
            del self._newest[key[0]]
        if forgotten.n_safe and (made_ms := _made_ms(key[0])) is not None:
            self._known_from_ms = max(self._known_from_ms, made_ms)


def _made_ms(rollout_id: str) -> int | None:
    """When a UUIDv7 of 32 hex digits was made; None for other ids, and for those that claim a time to come."""
    if len(rollout_id) != 32 or rollout_id[12] != "7":
        return None
    try:
        made_ms = int(rollout_id, 16) >> 80
    except ValueError:
        return None
    return made_ms if made_ms <= now_ms() + _CLOCK_SKEW_MS else None
