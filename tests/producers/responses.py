"""Scripted chats, and what `/v1/responses` makes of them checked against the official types."""

import json
from typing import Any, get_args

from leyden.producers.gateway.responses import Responses
from openai.types import responses as r
from pydantic import BaseModel

TOOL = {"type": "function", "name": "add", "description": "a sum", "parameters": {"type": "object"}, "strict": True}
CHAT_TOOL = {"type": "function", "function": {k: v for k, v in TOOL.items() if k != "type"}}
EVENTS = {get_args(cls.model_fields["type"].annotation)[0]: cls for cls in get_args(get_args(r.ResponseStreamEvent)[0])}


def strictly(model: type[BaseModel], data: dict[str, Any]) -> Any:
    """`data` as the official type, with all that it requires and nothing that it does not know."""
    found = model.model_validate(data)
    unknown(found)
    return found


def unknown(value: Any) -> None:
    """Fails where a part of a model has fields that its type does not know."""
    if isinstance(value, BaseModel):
        assert not value.model_extra, (type(value), value.model_extra)
        value = list(vars(value).values())
    for part in value if isinstance(value, list) else ():
        unknown(part)


def logprob(token: str) -> dict[str, Any]:
    """A token's logprob as a chat has it."""
    top = {"token": token, "logprob": -0.5, "bytes": list(token.encode())}
    return top | {"top_logprobs": [top]}


def completion(finish: str = "stop", logprobs: list[Any] | None = None, **message: Any) -> dict[str, Any]:
    """A plain chat answer."""
    message = {"role": "assistant", "content": None, "tool_calls": []} | message
    choice = {"index": 0, "message": message, "finish_reason": finish}
    choice["logprobs"] = {"content": logprobs} if logprobs is not None else None
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12, "prompt_tokens_details": None}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 9, "model": "policy"}
    return head | {"choices": [choice], "usage": usage}


def call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A tool call of a plain chat answer."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def chunk(delta: dict[str, Any], finish: str | None = None, logprobs: list[Any] | None = None) -> bytes:
    """One event of a chat's stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    choice["logprobs"] = {"content": logprobs} if logprobs is not None else None
    return event({"choices": [choice]})


def event(body: dict[str, Any]) -> bytes:
    """A chunk as it travels."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 9, "model": "policy"}
    return b"data: " + json.dumps(head | body).encode() + b"\n\n"


USAGE = event({"choices": [], "usage": completion()["usage"]})
DONE = b"data: [DONE]\n\n"
FIRST = chunk({"role": "assistant", "content": ""})


def parsed(stream: bytes) -> list[dict[str, Any]]:
    """The events of a translated stream, each checked against its official type."""
    found = []
    texts = [text for text in stream.decode().split("\n\n")[:-1] if not text.startswith(":")]
    for at, text in enumerate(texts):
        name, data = text.split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert (name, at) == (f"event: {body['type']}", body["sequence_number"])
        # The type has no room for the key on which the official clients raise.
        strictly(EVENTS[body["type"]], {k: v for k, v in body.items() if (body["type"], k) != ("error", "error")})
        found.append(body)
    return found


def answered(chat: dict[str, Any], **body: Any) -> dict[str, Any]:
    """The plain answer, checked against its official type."""
    response = json.loads(Responses().answer(json.dumps(chat).encode(), {"input": "hi"} | body))
    strictly(r.Response, response)
    return response
