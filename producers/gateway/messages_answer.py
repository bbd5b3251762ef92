"""A chat's answer as that of `/v1/messages`: whole, streamed, or an error."""

from collections.abc import Mapping
from typing import Any

import orjson

from .chat import MergedChat

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
_UNPARSED = "INVALID_JSON"


def message_id(chat_id: str) -> str:
    """The message's id, from the chat's."""
    return "msg_" + chat_id.removeprefix("chatcmpl-")


def message_of(chat: Mapping[str, Any]) -> dict[str, Any]:
    """The message, from a `chat.completion`. Raises KeyError, TypeError, ValueError where it is none."""
    (choice,) = chat["choices"]
    content = _content(choice["message"])
    stop_reason, stop_sequence = _stop(choice, content)
    return _head(chat) | {"content": content, "stop_reason": stop_reason, "stop_sequence": stop_sequence}


def error_of(status: int, error: bytes) -> dict[str, Any]:
    """The error, from the OpenAI-shaped one; what has another shape is quoted."""
    try:
        message = orjson.loads(error)["error"]["message"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = error.decode(errors="replace")
    kind = _ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(message)}}


class MessageStream:
    """A `ChunkTranslator`.

    Text passes as it comes. Tool calls are added up and follow whole when the answer ends, which is when an agent may
    act on them: arguments that turn out to be no JSON make clients raise in the middle of a stream, and the streamed
    message is then the plain one, in whatever order the engine's deltas come.
    Nothing of the end is sent before `data: [DONE]`, so that what is held back of the chat is held back here.
    """

    def __init__(self) -> None:
        self._merged = MergedChat()
        self._in_text = False
        self._over = False

    def feed(self, events: bytes) -> bytes:
        """Whole events of a chat stream become whole events for the agent."""
        return b"".join(self._event(event) for event in events.split(b"\n\n") if event)

    def _event(self, event: bytes) -> bytes:
        if not event.startswith(b"data:"):
            return event + b"\n\n"  # a comment
        data = event[5:].strip()
        if self._over:
            return b""
        if data == b"[DONE]":
            return self._end()
        chunk = orjson.loads(data)
        if isinstance(problem := chunk.get("error"), dict):
            return self._broken(problem.get("code"), data)
        return self._chunk(chunk)

    def _chunk(self, chunk: dict[str, Any]) -> bytes:
        out = b""
        if self._merged.response_id is None:
            start = _head(chunk) | {"content": [], "stop_reason": None, "stop_sequence": None}
            out = _sse("message_start", message=start)
        choice = chunk["choices"][0] if chunk["choices"] else None
        self._merged.add(chunk, choice)
        if choice is not None and (text := choice["delta"].get("content")):
            if not self._in_text:
                self._in_text = True
                out += _block_start(0, {"type": "text", "text": ""})
            out += _delta(0, {"type": "text_delta", "text": text})
        # Long arguments must not make the connection look idle.
        return out or (_sse("ping") if self._merged.finish_reason is None else b"")

    def _end(self) -> bytes:
        if self._merged.finish_reason is None:
            return self._broken(500, b'{"error": {"message": "the answer ended before its end"}}')
        self._over = True
        message = message_of(orjson.loads(self._merged.to_json()))
        out = b""
        for index, block in enumerate(message["content"]):
            if block["type"] == "tool_use":
                out += _block_start(index, block | {"input": {}})
                arguments = orjson.dumps(block["input"]).decode()
                out += _delta(index, {"type": "input_json_delta", "partial_json": arguments})
            elif not self._in_text:
                out += _block_start(index, block)
            out += _sse("content_block_stop", index=index)
        delta = {name: message[name] for name in ("stop_reason", "stop_sequence")}
        return out + _sse("message_delta", delta=delta, usage=message["usage"]) + _sse("message_stop")

    def _broken(self, status: Any, error: bytes) -> bytes:
        self._over = True
        status = status if isinstance(status, int) and status >= 400 else 500
        return b"event: error\ndata: " + orjson.dumps(error_of(status, error)) + b"\n\n"


def _head(chat: Mapping[str, Any]) -> dict[str, Any]:
    """What a message begins with; also that of its first event."""
    known = {"id": message_id(chat["id"]), "type": "message", "role": "assistant", "model": chat["model"]}
    return known | {"usage": _usage(chat.get("usage") or {})}


def _usage(usage: Mapping[str, Any]) -> dict[str, int]:
    """Zeros where the engine has not said. Cached tokens count apart from the other input."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "input_tokens": (usage.get("prompt_tokens") or 0) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.get("completion_tokens") or 0,
    }


def _content(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Text first, then the calls; never empty, as clients read the first block."""
    calls = [
        {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": _input(call["function"])}
        for call in message.get("tool_calls") or ()
    ]
    text = message.get("content") or ""
    return [{"type": "text", "text": text}, *calls] if text or not calls else calls


def _input(function: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments. What is no JSON object is quoted under a name of its own: the agent's own check of its tool's
    input answers that, and the model may try again."""
    arguments = function.get("arguments") or "{}"
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {_UNPARSED: arguments}


def _stop(choice: Mapping[str, Any], content: list[dict[str, Any]]) -> tuple[str | None, str | None]:
    """(stop_reason, stop_sequence); no reason where the engine's has no word here, like that of an aborted call."""
    reason = _STOP_REASONS.get(choice.get("finish_reason") or "")
    if reason not in ("end_turn", "tool_use"):
        return reason, None
    calls = [block for block in content if block["type"] == "tool_use"]
    if isinstance(sequence := choice.get("stop_reason"), str) and not (calls and _UNPARSED not in calls[-1]["input"]):
        return "stop_sequence", sequence  # also when it cut a call short, which must not run
    # A call that was forced by name ends with `stop`.
    return ("tool_use" if calls else "end_turn"), None


def _sse(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind} | fields) + b"\n\n"


def _block_start(index: int, block: dict[str, Any]) -> bytes:
    return _sse("content_block_start", index=index, content_block=block)


def _delta(index: int, delta: dict[str, Any]) -> bytes:
    return _sse("content_block_delta", index=index, delta=delta)
