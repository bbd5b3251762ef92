"""What a Responses request says, as the messages of a chat."""

from collections.abc import Mapping
from typing import Any

from .refusals import RefusedError

_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_ROLES = ("user", "assistant", "system", "developer")


def messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The chat's messages. Raises RefusedError for items that are no text or lie on a server that keeps answers.

    What one answer gave as several items (its reasoning, its text, its calls) is one assistant message again, as in a
    chat's history: only then can the prompt of the next call begin with the tokens of this one.
    """
    items = body.get("input")
    if not isinstance(items, str | list) or items == []:
        raise RefusedError(400, "input must be a text or a list with at least one item", param="input")
    chat: list[dict[str, Any]] = []
    if body.get("instructions"):
        chat.append({"role": "system", "content": body["instructions"]})
    if isinstance(items, str):
        return [*chat, {"role": "user", "content": items}]
    for at, item in enumerate(items):
        _add(chat, item, f"input[{at}]")
    return chat


def _add(chat: list[dict[str, Any]], item: Any, where: str) -> None:
    if not isinstance(item, dict):
        raise RefusedError(400, f"{where} must be an object", param=where)
    kind = item.get("type") or ("message" if "role" in item else "item_reference")
    if kind == "message":
        _add_message(chat, item, where)
    elif kind == "function_call":
        function = {"name": _text(item, "name", where), "arguments": _text(item, "arguments", where)}
        call = {"id": _text(item, "call_id", where), "type": "function", "function": function}
        _turn(chat, new=False).setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        call_id = _text(item, "call_id", where)
        chat.append({"role": "tool", "tool_call_id": call_id, "content": _content(item.get("output"), where)})
    elif kind == "reasoning":
        _add_reasoning(chat, item, where)
    elif kind == "item_reference":
        raise RefusedError(400, f"{where}: the gateway keeps no items to refer to; send the item itself", param=where)
    else:
        raise RefusedError(
            400,
            f"{where}: items of type {kind!r} are not captured, only messages, reasoning and functions",
            param=where,
        )


def _add_message(chat: list[dict[str, Any]], item: Mapping[str, Any], where: str) -> None:
    role = item.get("role")
    if role not in _ROLES:
        raise RefusedError(400, f"{where}: role must be one of {', '.join(_ROLES)}", param=where)
    content = _content(item.get("content"), where)
    if role != "assistant":
        chat.append({"role": role, "content": content})
        return
    # Its parts are one text: that is how the model wrote them.
    text = content if isinstance(content, str) else "".join(part[part["type"]] for part in content)
    turn = _turn(chat, new=bool(chat) and chat[-1].get("content") is not None)
    turn["content"] = text


def _add_reasoning(chat: list[dict[str, Any]], item: Mapping[str, Any], where: str) -> None:
    """Reasoning goes back in plain text; without any it was a summary at most, which the model never wrote."""
    parts = item.get("content") or []
    if not parts and item.get("encrypted_content"):
        raise RefusedError(
            400, f"{where}: encrypted reasoning can be read by its own server alone; leave the item out", param=where
        )
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise RefusedError(400, f"{where}.content must be a list of parts", param=where)
    if text := "".join(_text(part, "text", where) for part in parts):
        last = chat[-1] if chat else {}
        turn = _turn(chat, new=last.get("content") is not None or "tool_calls" in last)
        turn["reasoning"] = turn.get("reasoning", "") + text


def _turn(chat: list[dict[str, Any]], new: bool) -> dict[str, Any]:
    """The assistant's message that is being put together."""
    if new or not chat or chat[-1]["role"] != "assistant":
        chat.append({"role": "assistant", "content": None})
    return chat[-1]


def _content(content: Any, where: str) -> str | list[dict[str, Any]]:
    """A text, or several where the chat's template has to see them apart."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RefusedError(400, f"{where}: content must be a text or a list of parts", param=where)
    parts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if (name := _TEXT_PARTS.get(kind) if isinstance(kind, str) else None) is None:
            raise RefusedError(400, f"{where}: content of type {kind!r} is not captured, only text", param=where)
        parts.append({"type": name, name: _text(part, name, where)})
    return parts if len(parts) > 1 else "".join(part[part["type"]] for part in parts)


def _text(item: Mapping[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise RefusedError(400, f"{where}.{name} must be a text", param=f"{where}.{name}")
    return value
