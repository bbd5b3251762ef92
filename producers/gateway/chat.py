"""`/v1/chat/completions`: messages in, a message out."""

from collections.abc import Mapping
from typing import Any

import orjson

from .refusals import RefusedError
from .shape import refuse_uncapturable

_TEXT_PARTS = ("text", "refusal")


class MergedChat:
    """The chunks of a stream added up: texts and tool-call arguments are joined, of all else the last value is kept."""

    def __init__(self) -> None:
        self.response_id: str | None = None
        self.finish_reason: str | None = None
        self._top: dict[str, Any] = {}
        self._choice: dict[str, Any] = {}
        self._role = "assistant"
        self._texts: dict[str, list[str]] = {"content": []}
        self._tool_calls: dict[int, dict[str, Any]] = {}
        self._logprobs: list[Any] = []

    def add(self, chunk: dict[str, Any], choice: dict[str, Any] | None) -> None:
        """One chunk and its only choice, as the agent sees them. Raises KeyError, TypeError on other shapes."""
        self.response_id = chunk["id"]
        self._top |= {k: v for k, v in chunk.items() if k not in ("choices", "object") and v is not None}
        if choice is None:
            return
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self._logprobs += (choice.get("logprobs") or {}).get("content") or []
        if (stop_reason := choice.get("stop_reason")) is not None:
            self._choice["stop_reason"] = stop_reason
        for name, value in choice["delta"].items():
            if name == "role":
                self._role = value or self._role
            elif name == "tool_calls":
                for part in value or ():
                    self._add_tool_call(part)
            elif isinstance(value, str):
                self._texts.setdefault(name, []).append(value)

    def _add_tool_call(self, part: dict[str, Any]) -> None:
        call = self._tool_calls.setdefault(
            part["index"], {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
        )
        call["id"] = part.get("id") or call["id"]
        function = part.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""

    def to_json(self) -> bytes:
        """A `chat.completion`."""
        texts = {name: "".join(parts) for name, parts in self._texts.items()}
        message: dict[str, Any] = {"role": self._role} | texts
        if self._tool_calls:
            message["tool_calls"] = [call for _, call in sorted(self._tool_calls.items())]
            message["content"] = message["content"] or None
        logprobs = {"content": self._logprobs} if self._logprobs else None
        choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": self.finish_reason}
        return orjson.dumps(self._top | {"object": "chat.completion", "choices": [choice | self._choice]})


class Chat:
    """A `Shape`."""

    route = "/v1/chat/completions"
    ask_logprobs: Mapping[str, Any] = {"logprobs": True, "top_logprobs": 0}

    def refuse_uncapturable(self, body: Mapping[str, Any]) -> None:
        """Raises RefusedError for other modalities than text, hidden tokens, and what no route captures."""
        refuse_uncapturable(body)
        if body.get("audio"):
            raise RefusedError(400, "audio: audio answers have no token ids", param="audio")
        if body.get("include_reasoning") is False:
            raise RefusedError(
                400, "include_reasoning=false hides sampled tokens from the capture", param="include_reasoning"
            )
        if body.get("logprobs") not in (None, True, False):
            raise RefusedError(400, "logprobs must be true or false", param="logprobs")
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise RefusedError(400, "messages must be a list with at least one message", param="messages")
        for at, message in enumerate(messages):
            content = message.get("content") if isinstance(message, dict) else None
            for part in content if isinstance(content, list) else ():
                kind = part.get("type") if isinstance(part, dict) else None
                if kind not in _TEXT_PARTS:
                    raise RefusedError(
                        400, f"content of type {kind!r} is not captured, only text", param=f"messages[{at}]"
                    )

    def wants_logprobs(self, body: Mapping[str, Any]) -> bool:
        """top_logprobs without logprobs is the client's mistake: the engine says so, in its own words."""
        return self.sees_logprobs(body) or bool(body.get("top_logprobs") or body.get("logprob_token_ids"))

    def sees_logprobs(self, body: Mapping[str, Any]) -> bool:
        """The agent gets to see the logprobs."""
        return body.get("logprobs") is True

    def prompt_ids(self, answer: Mapping[str, Any]) -> list[int] | None:
        """They stand beside the choices."""
        return answer.get("prompt_token_ids")

    def logprobs(self, choice: Mapping[str, Any]) -> list[float]:
        """One a sampled token."""
        return [entry["logprob"] for entry in (choice.get("logprobs") or {}).get("content") or []]

    def is_blank(self, choice: Mapping[str, Any]) -> bool:
        """An empty delta in the middle of the answer."""
        return not choice["delta"] and choice.get("finish_reason") is None

    def merged(self) -> MergedChat:
        """An empty sum of chunks."""
        return MergedChat()
