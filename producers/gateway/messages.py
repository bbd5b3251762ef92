"""`/v1/messages` as a chat: its requests translated. The way back is in `messages_answer.py`."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from .messages_answer import MessageStream, error_of, message_id, message_of
from .refusals import RefusedError

_SAME = ("model", "temperature", "top_p", "top_k", "metadata")
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_SERVER_SIDE = {"mcp_servers": "MCP servers", "container": "containers"}
# The engine's first chunk then carries the number of input tokens, which `message_start` tells.
_USAGE = {"include_usage": True, "continuous_usage_stats": True}
# A hash that differs from call to call: with it no prompt would extend the one before.
_BILLING = "x-anthropic-billing-header"


class Messages:
    """A `Dialect`."""

    route = "/v1/messages"

    def request(self, body: dict[str, Any]) -> dict[str, Any]:
        """The chat request. Raises RefusedError for what is no text, runs on the API's own servers, or is malformed."""
        _refuse_server_side(body)
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise _refused("messages", "must be a list with at least one message")
        chat = {name: value for name in _SAME if (value := body.get(name)) is not None}
        chat["messages"] = list(_system(body.get("system")))
        for at, message in enumerate(messages):
            chat["messages"] += _message(message, f"messages[{at}]")
        chat["max_tokens"] = _max_tokens(body)
        last = chat["messages"][-1] if chat["messages"] else {"role": None}
        if last["role"] == "assistant" and last["content"] and "tool_calls" not in last:
            # A prefilled answer is continued, not followed by another one.
            chat |= {"add_generation_prompt": False, "continue_final_message": True}
        if (stop := body.get("stop_sequences")) is not None:
            chat["stop"] = stop
        if isinstance(metadata := body.get("metadata"), dict) and metadata.get("user_id") is not None:
            chat["user"] = metadata["user_id"]
        if (stream := body.get("stream")) is not None:
            chat["stream"] = stream
        if stream is True:
            chat["stream_options"] = _USAGE
        return chat | _thinking(body.get("thinking")) | _format(body.get("output_config")) | _tools(body)

    def answer(self, chat: bytes, body: Mapping[str, Any]) -> bytes:
        """The message, from the JSON of a `chat.completion`."""
        return orjson.dumps(message_of(orjson.loads(chat)))

    def stream(self, body: Mapping[str, Any]) -> MessageStream:
        """The message as events."""
        return MessageStream()

    def error(self, status: int, error: bytes) -> bytes:
        """An error's JSON, from the OpenAI-shaped one."""
        return orjson.dumps(error_of(status, error))

    def response_id(self, chat_id: str) -> str:
        """`chatcmpl-1` is `msg_1`."""
        return message_id(chat_id)


def _refused(where: str, why: str) -> RefusedError:
    return RefusedError(400, f"{where}: {why}", param=where)


def _refuse_server_side(body: Mapping[str, Any]) -> None:
    for name, what in _SERVER_SIDE.items():
        if body.get(name):
            raise _refused(name, f"there are no {what} behind this route; give the model tools of type custom")


def _max_tokens(body: Mapping[str, Any]) -> int:
    value = body.get("max_tokens")
    if value is None:
        raise _refused("max_tokens", "Field required")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _refused("max_tokens", "must be an integer from 1")
    return value


def _thinking(thinking: Any) -> dict[str, Any]:
    if thinking is None:
        return {}
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if kind == "disabled":
        return {"reasoning_effort": "none"}
    if kind == "adaptive":  # leaves it to the model, so nothing is asked of it
        return {}
    raise _refused("thinking", f"type {kind!r} has no thinking blocks to show here; use 'disabled' or leave it out")


def _format(output_config: Any) -> dict[str, Any]:
    wanted = output_config.get("format") if isinstance(output_config, dict) else None
    if wanted is None:
        return {}
    if not isinstance(wanted, dict) or wanted.get("type") != "json_schema":
        raise _refused("output_config.format", "must be of type json_schema")
    schema = {"name": "output", "schema": wanted.get("schema")}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _system(system: Any) -> Iterator[dict[str, Any]]:
    texts = [text for text in _texts(system or "", "system") if text and not text.startswith(_BILLING)]
    if texts:
        yield {"role": "system", "content": "\n".join(texts)}


def _message(message: Any, where: str) -> Iterator[dict[str, Any]]:
    """The chat's messages for one of these."""
    role = message.get("role") if isinstance(message, dict) else None
    if role == "user":
        yield from _user(_blocks(message.get("content"), f"{where}.content"))
    elif role == "assistant":
        yield _assistant(_blocks(message.get("content"), f"{where}.content"))
    elif role == "system":
        yield from _system(message.get("content"))
    else:
        raise _refused(f"{where}.role", f"{role!r} is none of user, assistant, system")


def _user(blocks: list[tuple[str, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Results first, wherever they stand: a chat wants them right behind the calls that they answer."""
    texts = []
    for where, block in blocks:
        if block["type"] == "tool_result":
            yield _tool_result(block, where)
        else:
            texts.append(_text(block, where))
    if texts or not blocks:
        yield {"role": "user", "content": "\n".join(texts)}


def _tool_result(block: dict[str, Any], where: str) -> dict[str, Any]:
    content = "\n".join(_texts(block.get("content") or "", f"{where}.content"))
    if block.get("is_error") and not content.lower().startswith("error"):
        content = f"Error: {content}"  # a chat has no flag for it
    return {"role": "tool", "tool_call_id": _string(block, "tool_use_id", where), "content": content}


def _assistant(blocks: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Texts are joined without a seam: they were one text when they were sampled."""
    texts, calls = [], []
    for where, block in blocks:
        if block["type"] == "tool_use":
            calls.append(_tool_call(block, where))
        elif block["type"] not in ("thinking", "redacted_thinking"):
            texts.append(_text(block, where))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    return message | {"content": message["content"] or None, "tool_calls": calls} if calls else message


def _tool_call(block: dict[str, Any], where: str) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise _refused(f"{where}.input", "must be an object")
    function = {"name": _string(block, "name", where), "arguments": orjson.dumps(arguments).decode()}
    return {"id": _string(block, "id", where), "type": "function", "function": function}


def _blocks(content: Any, where: str) -> list[tuple[str, dict[str, Any]]]:
    """Content blocks, each with its place for error messages."""
    if isinstance(content, str):
        return [(where, {"type": "text", "text": content})]
    if not isinstance(content, list):
        raise _refused(where, "must be a string or a list of content blocks")
    for at, block in enumerate(content):
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise _refused(f"{where}[{at}]", "must be a content block with a type")
    return [(f"{where}[{at}]", block) for at, block in enumerate(content)]


def _texts(content: Any, where: str) -> list[str]:
    return [_text(block, place) for place, block in _blocks(content, where)]


def _text(block: dict[str, Any], where: str) -> str:
    if block["type"] != "text":
        raise _refused(where, f"content of type {block['type']!r} is not captured here, only text")
    return _string(block, "text", where)


def _string(block: Mapping[str, Any], name: str, where: str) -> str:
    if not isinstance(value := block.get(name), str):
        raise _refused(f"{where}.{name}", "must be a string")
    return value


def _tools(body: Mapping[str, Any]) -> dict[str, Any]:
    tools, choice = body.get("tools") or [], body.get("tool_choice")
    if not isinstance(tools, list):
        raise _refused("tools", "must be a list")
    chat: dict[str, Any] = {}
    if tools:
        chat["tools"] = [_tool(tool, f"tools[{at}]") for at, tool in enumerate(tools)]
    if choice is not None:
        kind = choice.get("type") if isinstance(choice, dict) else None
        if kind == "tool":
            name = _string(choice, "name", "tool_choice")
            chat["tool_choice"] = {"type": "function", "function": {"name": name}}
        elif isinstance(kind, str) and kind in _TOOL_CHOICES:
            chat["tool_choice"] = _TOOL_CHOICES[kind]
        else:
            raise _refused("tool_choice.type", f"{kind!r} is none of auto, any, tool, none")
        if choice.get("disable_parallel_tool_use") is True:
            chat["parallel_tool_calls"] = False
    return chat


def _tool(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise _refused(where, "must be an object")
    if (kind := tool.get("type")) not in (None, "custom"):
        raise _refused(where, f"tool {kind!r} is defined by the API, not here; describe it as one of type custom")
    if not isinstance(schema := tool.get("input_schema"), dict):
        raise _refused(f"{where}.input_schema", "must be an object")
    function = {"name": _string(tool, "name", where), "parameters": schema}
    function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": function}
