"""A chat's answer as the object of the Responses API."""

from collections.abc import Mapping, Sequence
from typing import Any

Item = dict[str, Any]

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_BROKEN_OFF = ("abort", "error")
# What a server answers where the request leaves it open; all fields of the contract are there, null or not.
_SETTINGS = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "prompt_cache_retention": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}


def response_id(chat_id: str) -> str:
    """`chatcmpl-1` is `resp_1`."""
    return "resp_" + _stem(chat_id)


def begun(chat: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """The response to `body` before anything was sampled; `chat` is an answer or a chunk of one."""
    settings = {name: default if body.get(name) is None else body[name] for name, default in _SETTINGS.items()}
    settings["text"] = _SETTINGS["text"] | settings["text"]
    settings["reasoning"] = _SETTINGS["reasoning"] | settings["reasoning"]
    settings["tools"] = [{"description": None, "parameters": None, "strict": None} | tool for tool in settings["tools"]]
    return settings | {
        "id": response_id(chat["id"]),
        "object": "response",
        "created_at": chat["created"],
        "model": chat["model"],
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "output": [],
        "service_tier": "default",  # the one that there is, whatever was asked for
        "usage": None,
    }


def ended(chat: Mapping[str, Any], body: Mapping[str, Any], order: Sequence[str] = ()) -> dict[str, Any]:
    """The response to `body`, from a `chat.completion`; its items stand in the `order` of their ids, where given."""
    (choice,) = chat["choices"]
    response, reason = begun(chat, body), choice["finish_reason"]
    if reason in _INCOMPLETE:
        response |= {"status": "incomplete", "incomplete_details": {"reason": _INCOMPLETE[reason]}}
    elif reason in _BROKEN_OFF:
        response |= {"status": "failed", "error": error(f"the engine ended the answer with {reason!r}")}
    else:
        response["status"] = "completed"
    items = _output(chat["id"], choice)
    items.sort(key=lambda item: order.index(item["id"]) if item["id"] in order else len(order))
    if response["status"] != "completed":
        items[-1]["status"] = "incomplete"
    return response | {"output": items, "usage": _usage(chat.get("usage"))}


def error(message: str) -> dict[str, Any]:
    """Why a response failed; the contract has no better code for what happens in the engine."""
    return {"code": "server_error", "message": message}


def reasoning(chat_id: str, text: str) -> Item:
    """The item of what the model thought: all of it, so no summary."""
    content = [{"type": "reasoning_text", "text": text}]
    return {
        "id": "rs_" + _stem(chat_id),
        "type": "reasoning",
        "summary": [],
        "content": content,
        "encrypted_content": None,
        "status": "completed",
    }


def message(chat_id: str, text: str, logprobs: Sequence[Mapping[str, Any]]) -> Item:
    """The item of what the model said. Its logprobs are those of all sampled tokens, as in the chat's answer."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": [_logprob(entry) for entry in logprobs]}
    return {
        "id": "msg_" + _stem(chat_id),
        "type": "message",
        "role": "assistant",
        "content": [part],
        "status": "completed",
    }


def function_call(call_id: str, name: str, arguments: str) -> Item:
    """The item of a function that the model wants to be called."""
    return {
        "id": f"fc_{call_id}",
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }


def _output(chat_id: str, choice: Mapping[str, Any]) -> list[Item]:
    said = choice["message"]
    calls = [
        function_call(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in said.get("tool_calls") or ()
    ]
    thought = [reasoning(chat_id, said["reasoning"])] if said.get("reasoning") else []
    if not said.get("content") and (calls or thought):
        return thought + calls
    logprobs = (choice.get("logprobs") or {}).get("content") or []
    return [*thought, message(chat_id, said.get("content") or "", logprobs), *calls]


def _usage(usage: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    prompt, completion = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": prompt.get("cached_tokens") or 0, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": completion.get("reasoning_tokens") or 0},
        "total_tokens": usage["total_tokens"],
    }


def _logprob(entry: Mapping[str, Any]) -> dict[str, Any]:
    tops = entry.get("top_logprobs") or ()
    return _token(entry) | {"top_logprobs": [_token(top) for top in tops]}


def _token(entry: Mapping[str, Any]) -> dict[str, Any]:
    found = entry.get("bytes")
    return {
        "token": entry["token"],
        "bytes": list(entry["token"].encode()) if found is None else found,
        "logprob": entry["logprob"],
    }


def _stem(chat_id: str) -> str:
    return chat_id.removeprefix("chatcmpl-")
