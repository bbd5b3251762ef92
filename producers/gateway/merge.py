"""The chunks of a stream added up to the answer that a plain call would have given."""

from typing import Any

import orjson


class MergedAnswer:
    """Add chunks in order; texts and tool-call arguments are joined, everything else keeps its last value."""

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
