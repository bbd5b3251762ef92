"""A streamed answer of the engine, taken apart while it passes; its end is held back until the event is safe."""

from typing import Any

import orjson

from ...avro import now_us, pack_floats, pack_ids
from .capture import Captured, CaptureError, aligned_logprobs, hide
from .request import Asked

_VERSION_COMMENT = b": leyden-version-end "


class StreamCapture:
    """Feed it what the engine sends; it returns what the agent may have now.

    From the chunk with `finish_reason` on everything is kept in `held`: many clients go on at that chunk and never
    wait for `[DONE]`. Token ids are counted by chunk, also of chunks that show no text (a token that ends in the middle
    of a character), which the agent would not have got and does not get.
    """

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._asked_for_all = asked.sees_token_ids or asked.sees_logprobs
        self._rest = b""
        self._held: list[bytes] = []
        self._prompt_ids: list[int] | None = None
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._merged = asked.shape.merged()
        self.done = False  # [DONE] was seen
        self.error: str | None = None  # the engine's own error event
        self.version_end: int | None = None
        self.first_token_us: int | None = None

    @property
    def held(self) -> bytes:
        """The end of the answer, to be sent once the call's event is safe."""
        return b"".join(self._held)

    @property
    def complete(self) -> bool:
        """The answer came to a proper end, with all that training needs."""
        ended = self.done and self.error is None and self._merged.finish_reason is not None
        return ended and self._prompt_ids is not None

    def feed(self, data: bytes) -> bytes:
        """Take what arrived; returns whole events for the agent. Raises CaptureError."""
        *events, self._rest = (self._rest + data).split(b"\n\n")
        out = []
        for event in events:
            passed = self._event(event)
            if not passed:
                continue
            (self._held if self._merged.finish_reason is not None or self.done else out).append(passed + b"\n\n")
        return b"".join(out)

    def captured(self) -> Captured:
        """What was generated so far."""
        return Captured(
            self._merged.response_id,
            self._merged.finish_reason,
            pack_ids(self._prompt_ids or []),
            pack_ids(self._ids),
            pack_floats(self._logprobs),
            self._merged.to_json() if self._merged.response_id else b"",
        )

    def _event(self, event: bytes) -> bytes:
        if event.startswith(_VERSION_COMMENT):
            self.version_end = int(event[len(_VERSION_COMMENT) :])
            return b""
        if not event.startswith(b"data:"):
            return event
        data = event[5:].strip()
        if data == b"[DONE]":
            self.done = True
            return event
        try:
            chunk = orjson.loads(data)
            if isinstance(problem := chunk.get("error"), dict):
                self.error = str(problem.get("message"))
                return event
            return self._chunk(chunk)
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise CaptureError(f"the engine's stream has no aligned token ids and logprobs: {error!r}") from error

    def _chunk(self, chunk: dict[str, Any]) -> bytes:
        if (prompt_ids := self._asked.shape.prompt_ids(chunk)) is not None:
            self._prompt_ids = prompt_ids
        choices = chunk["choices"]
        choice = choices[0] if choices else None
        if choice is not None:
            ids = choice.get("token_ids") or []
            self._logprobs += aligned_logprobs(self._asked.shape, choice, ids)
            self._ids += ids
            if ids and self.first_token_us is None:
                self.first_token_us = now_us()
        hide(chunk, choice, self._asked)
        self._merged.add(chunk, choice)
        if choice is not None and not self._asked_for_all and self._asked.shape.is_blank(choice):
            return b""  # sent for the sake of its ids or logprobs alone
        return b"data: " + orjson.dumps(chunk)
