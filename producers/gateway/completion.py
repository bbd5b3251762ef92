"""`/v1/completions`: a text or token ids in, their continuation out."""

from collections.abc import Mapping
from typing import Any

import orjson

from .refusals import RefusedError
from .shape import refuse_uncapturable


class MergedCompletion:
    """The chunks of a stream added up: texts are joined, everything else keeps its last value."""

    def __init__(self) -> None:
        self.response_id: str | None = None
        self.finish_reason: str | None = None
        self._top: dict[str, Any] = {}
        self._text: list[str] = []
        self._logprobs: dict[str, list[Any]] = {}
        self._stop_reason: Any = None

    def add(self, chunk: dict[str, Any], choice: dict[str, Any] | None) -> None:
        """One chunk and its only choice, as the agent sees them. Raises KeyError, TypeError on other shapes."""
        self.response_id = chunk["id"]
        self._top |= {k: v for k, v in chunk.items() if k != "choices" and v is not None}
        if choice is None:
            return
        self._text.append(choice["text"])
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if (stop_reason := choice.get("stop_reason")) is not None:  # 0 is one: a token's id
            self._stop_reason = stop_reason
        for name, values in (choice.get("logprobs") or {}).items():
            self._logprobs.setdefault(name, []).extend(values)

    def to_json(self) -> bytes:
        """A `text_completion`."""
        choice = {
            "index": 0,
            "text": "".join(self._text),
            "logprobs": self._logprobs or None,
            "finish_reason": self.finish_reason,
            "stop_reason": self._stop_reason,
        }
        return orjson.dumps(self._top | {"choices": [choice]})


class Completion:
    """A `Shape`."""

    route = "/v1/completions"
    ask_logprobs: Mapping[str, Any] = {"logprobs": 0}

    def refuse_uncapturable(self, body: Mapping[str, Any]) -> None:
        """Raises RefusedError for several prompts, an echoed prompt, and what no route captures."""
        refuse_uncapturable(body)
        if body.get("best_of") not in (None, 1):
            raise RefusedError(
                400, f"best_of={body['best_of']!r} hides sampled tokens from the capture", param="best_of"
            )
        if body.get("echo"):
            raise RefusedError(400, "echo mixes the prompt's tokens with the sampled ones", param="echo")
        prompt = body.get("prompt")
        if not isinstance(prompt, str | list) or not prompt:
            raise RefusedError(400, "prompt must be a text or a list of token ids", param="prompt")
        if isinstance(prompt, list) and len(prompt) > 1 and not all(type(token) is int for token in prompt):
            raise RefusedError(400, f"{len(prompt)} prompts: one a call is captured", param="prompt")

    def wants_logprobs(self, body: Mapping[str, Any]) -> bool:
        """`logprobs` is a number here, 0 included."""
        return body.get("logprobs") is not None or bool(body.get("logprob_token_ids"))

    def sees_logprobs(self, body: Mapping[str, Any]) -> bool:
        """The agent gets to see the logprobs."""
        return body.get("logprobs") is not None

    def prompt_ids(self, answer: Mapping[str, Any]) -> list[int] | None:
        """They stand in the choice."""
        choices = answer["choices"]
        return choices[0].get("prompt_token_ids") if choices else None

    def logprobs(self, choice: Mapping[str, Any]) -> list[float]:
        """One a sampled token. Raises ValueError where one is missing."""
        values = (choice.get("logprobs") or {}).get("token_logprobs") or []
        if None in values:
            raise ValueError("a sampled token without a logprob")
        return values

    def is_blank(self, choice: Mapping[str, Any]) -> bool:
        """None is: the engine sends a chunk for every token, also of one that shows no text yet."""
        return False

    def merged(self) -> MergedCompletion:
        """An empty sum of chunks."""
        return MergedCompletion()
