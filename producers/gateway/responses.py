"""`/v1/responses`: items in, items out; a chat to the engine. Nothing is kept, as with `store=False` elsewhere."""

from collections.abc import Mapping
from typing import Any

import orjson

from .refusals import RefusedError
from .responses_answer import ended, response_id
from .responses_input import messages
from .responses_stream import ResponseStream

# What of the API is understood, and its JSON types. All else is refused, as by OpenAI's server: a setting that quietly
# did nothing would make the answers, and what is trained on them, other than the agent's author believes.
_FIELDS: dict[str, tuple[type, ...]] = {
    "background": (bool,),
    "include": (list,),
    "input": (str, list),
    "instructions": (str,),
    "max_output_tokens": (int,),
    "max_tool_calls": (int,),  # counts calls of built-in tools, of which there are none
    "metadata": (dict,),
    "model": (str,),
    "parallel_tool_calls": (bool,),
    "prompt_cache_key": (str,),
    "prompt_cache_options": (dict,),
    "prompt_cache_retention": (str,),
    "reasoning": (dict,),
    "safety_identifier": (str,),
    "service_tier": (str,),
    "store": (bool,),
    "stream": (bool,),
    "stream_options": (dict,),  # about padding against eavesdroppers, which servers may leave out
    "temperature": (int, float),
    "text": (dict,),
    "tool_choice": (str, dict),
    "tools": (list,),
    "top_logprobs": (int,),
    "top_p": (int, float),
    "truncation": (str,),  # the engine refuses an input that is too long, under "auto" too
    "user": (str,),
}
_TYPES = {str: "a text", list: "a list", dict: "an object", bool: "true or false", int: "an integer", float: "a number"}
# What the engine takes beyond OpenAI's fields, under the same names in its chats and its own responses.
_ENGINE_FIELDS = (
    "cache_salt",
    "chat_template_kwargs",
    "frequency_penalty",
    "ignore_eos",
    "include_stop_str_in_output",
    "logit_bias",
    "min_p",
    "presence_penalty",
    "priority",
    "repetition_penalty",
    "seed",
    "skip_special_tokens",
    "stop",
    "stop_token_ids",
    "structured_outputs",
    "top_k",
    "vllm_xargs",
)
_SAME_IN_CHAT = ("model", "parallel_tool_calls", "stream", "temperature", "top_p", *_ENGINE_FIELDS)
_STATEFUL = {
    "background": "an answer is not kept to be fetched later; leave it out and wait, or stream",
    "context_management": "the gateway rewrites no input; shorten it in the agent",
    "conversation": "the gateway keeps no conversations; send all of it as input",
    "previous_response_id": "the gateway keeps no answers; send the whole conversation as input",
    "prompt": "the gateway keeps no prompts; send its text as instructions or input",
}
_LOGPROBS = "message.output_text.logprobs"
# As errors about the chat name them, and as the agent wrote them.
_PARAMS = {"max_completion_tokens": "max_output_tokens", "max_tokens": "max_output_tokens", "messages": "input"}
_PARAMS |= {"response_format": "text.format", "reasoning_effort": "reasoning.effort"}


class Responses:
    """A `Dialect`."""

    route = "/v1/responses"

    def request(self, body: dict[str, Any]) -> dict[str, Any]:
        """The chat request. Raises RefusedError for what needs a server's memory or tools, or is no text."""
        _check_fields(body)
        chat = {name: body[name] for name in _SAME_IN_CHAT if body.get(name) is not None}
        chat["messages"] = messages(body)
        if body.get("max_output_tokens") is not None:
            chat["max_completion_tokens"] = body["max_output_tokens"]
        if _LOGPROBS in (body.get("include") or ()) or body.get("top_logprobs"):
            chat |= {"logprobs": True, "top_logprobs": body.get("top_logprobs") or 0}
        if (effort := (body.get("reasoning") or {}).get("effort")) is not None:
            chat["reasoning_effort"] = effort
        if body.get("stream"):
            chat["stream_options"] = {"include_usage": True}
        return chat | _tools(body) | _format(body)

    def answer(self, chat: bytes, body: Mapping[str, Any]) -> bytes:
        """The plain answer to `body`, from the JSON of a `chat.completion`."""
        return orjson.dumps(ended(orjson.loads(chat), body))

    def stream(self, body: Mapping[str, Any]) -> ResponseStream:
        """The streamed answer to `body`."""
        return ResponseStream(body)

    def error(self, status: int, error: bytes) -> bytes:
        """The same JSON, where it names a field of the chat with this route's name; anything else as it is."""
        try:
            body = orjson.loads(error)
        except orjson.JSONDecodeError:  # a proxy's page, perhaps
            return error
        problem = body.get("error") if isinstance(body, dict) else None
        if not isinstance(problem, dict) or problem.get("param") not in _PARAMS:
            return error
        return orjson.dumps(body | {"error": problem | {"param": _PARAMS[problem["param"]]}})

    def response_id(self, chat_id: str) -> str:
        """The id that the agent sees in the answer, from that of the chat."""
        return response_id(chat_id)


def _check_fields(body: Mapping[str, Any]) -> None:
    for name, value in body.items():
        if value is None:
            continue
        kinds = _FIELDS.get(name)
        if value and name in _STATEFUL:
            raise RefusedError(400, f"{name}: {_STATEFUL[name]}", param=name, code="unsupported_parameter")
        if kinds is None and name not in _ENGINE_FIELDS and name not in _STATEFUL:
            raise RefusedError(400, f"Unknown parameter: {name!r}", param=name, code="unknown_parameter")
        if kinds is not None and type(value) not in kinds:
            raise RefusedError(400, f"{name} must be {' or '.join(_TYPES[kind] for kind in kinds)}", param=name)


def _tools(body: Mapping[str, Any]) -> dict[str, Any]:
    tools = [_tool(tool, f"tools[{at}]") for at, tool in enumerate(body.get("tools") or ())]
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        if choice.get("type") != "function" or not isinstance(choice.get("name"), str):
            what = f"tool_choice of type {choice.get('type')!r}"
            raise RefusedError(400, f"{what}: name a function, or say auto, none or required", param="tool_choice")
        choice = {"type": "function", "function": {"name": choice["name"]}}
    if not tools and choice in (None, "auto", "none"):  # which a chat may not choose from no tools
        return {}
    return ({"tools": tools} if tools else {}) | ({"tool_choice": choice} if choice is not None else {})


def _tool(tool: Any, where: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        raise RefusedError(
            400, f"{where}: tools of type {kind!r} are not run here, only functions are called", param=where
        )
    if not isinstance(tool.get("name"), str):
        raise RefusedError(400, f"{where}.name must be a text", param=f"{where}.name")
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in names if tool.get(name) is not None}}


def _format(body: Mapping[str, Any]) -> dict[str, Any]:
    wanted = (body.get("text") or {}).get("format")
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if wanted is None or kind == "text":
        return {}
    if kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    if kind == "json_schema":
        schema = {k: v for k, v in wanted.items() if k != "type" and v is not None}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    raise RefusedError(
        400, f"text.format of type {kind!r}: it is one of text, json_schema, json_object", param="text.format"
    )
