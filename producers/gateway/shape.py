"""What the gateway must know of an OpenAI route whose answers it captures."""

from collections.abc import Mapping
from typing import Any, Protocol

from .refusals import RefusedError


class Merged(Protocol):
    """The chunks of a stream added up to the answer that a plain call would have given."""

    response_id: str | None
    finish_reason: str | None

    def add(self, chunk: dict[str, Any], choice: dict[str, Any] | None) -> None:
        """One chunk and its only choice, as the agent sees them. Raises KeyError, TypeError on other shapes."""
        ...

    def to_json(self) -> bytes:
        """The plain answer."""
        ...


class Shape(Protocol):
    """Requests and answers of one route."""

    route: str
    ask_logprobs: Mapping[str, Any]
    """What a request that wants no logprobs is given so that the engine reports those of the sampled tokens."""

    def refuse_uncapturable(self, body: Mapping[str, Any]) -> None:
        """Raises RefusedError for a request whose answer has no token ids and logprobs of one sequence."""
        ...

    def wants_logprobs(self, body: Mapping[str, Any]) -> bool:
        """The agent asked for logprobs itself, rightly or wrongly: the engine then answers that in its own words."""
        ...

    def sees_logprobs(self, body: Mapping[str, Any]) -> bool:
        """The agent gets to see the logprobs."""
        ...

    def prompt_ids(self, answer: Mapping[str, Any]) -> list[int] | None:
        """The prompt's token ids of an answer or a chunk; None where it has none."""
        ...

    def logprobs(self, choice: Mapping[str, Any]) -> list[float]:
        """One a sampled token. Raises KeyError, TypeError, ValueError."""
        ...

    def is_blank(self, choice: Mapping[str, Any]) -> bool:
        """A chunk's choice that the engine would not have sent had nobody asked for ids or logprobs."""
        ...

    def merged(self) -> Merged:
        """An empty sum of chunks."""
        ...


_UNCAPTURABLE = {
    "use_beam_search": "the tokens of a beam search are not sampled from the policy",
    "prompt_embeds": "a prompt of embeddings has no token ids",
}


def refuse_uncapturable(body: Mapping[str, Any]) -> None:
    """What no route captures. Raises RefusedError."""
    n = body.get("n")
    if n is not None and (n != 1 or isinstance(n, bool)):
        raise RefusedError(400, f"n={n!r}: one choice a call is captured; send {n!r} calls", param="n")
    for name, why in _UNCAPTURABLE.items():
        if body.get(name):
            raise RefusedError(400, f"{name}: {why}", param=name)
    if body.get("stream") not in (None, True, False):
        raise RefusedError(400, "stream must be true or false", param="stream")
