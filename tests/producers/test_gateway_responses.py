"""`/v1/responses` by way of chats: what is asked of the engine, and what the agent is answered."""

import json
from typing import Any

import pytest
from leyden.producers.gateway.chat import Chat
from leyden.producers.gateway.refusals import RefusedError, error_body
from leyden.producers.gateway.responses import Responses
from openai.types import responses as r

from .responses import CHAT_TOOL, DONE, FIRST, TOOL, USAGE, answered, call, chunk, completion, logprob, parsed, strictly

USER = {"role": "user", "content": "hi"}


def chat_request(**body: Any) -> dict[str, Any]:
    """The chat that a request becomes."""
    return Responses().request({"model": "policy", "input": "hi"} | body)


def test_settings_become_those_of_a_chat() -> None:
    wanted = chat_request(
        instructions="be brief",
        tools=[TOOL],
        tool_choice={"type": "function", "name": "add"},
        parallel_tool_calls=False,
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=20,
        reasoning={"effort": "low", "summary": "auto"},
        stream=True,
        include=["message.output_text.logprobs", "reasoning.encrypted_content"],
        top_logprobs=2,
        seed=3,
        store=True,
        metadata={"a": "b"},
        user=None,
    )
    assert wanted == {
        "model": "policy",
        "messages": [{"role": "system", "content": "be brief"}, USER],
        "tools": [CHAT_TOOL],
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "parallel_tool_calls": False,
        "temperature": 0.5,
        "top_p": 0.9,
        "max_completion_tokens": 20,
        "reasoning_effort": "low",
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "top_logprobs": 2,
        "seed": 3,
    }
    Chat().refuse_uncapturable(wanted)


def test_what_is_left_open_is_left_open() -> None:
    assert chat_request() == {"model": "policy", "messages": [USER]}
    assert chat_request(tools=[], tool_choice="auto", text={"format": {"type": "text"}}) == chat_request()
    assert chat_request(include=["message.output_text.logprobs"])["top_logprobs"] == 0


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"type": "json_object"}, {"type": "json_object"}),
        (
            {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True, "description": None},
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}},
        ),
    ],
)
def test_text_format_becomes_a_response_format(wanted: dict[str, Any], expected: dict[str, Any]) -> None:
    assert chat_request(text={"format": wanted})["response_format"] == expected
    assert answered(completion(content="{}"), text={"format": wanted})["text"]["format"] == wanted


def test_items_become_messages() -> None:
    two = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    said = [{"type": "output_text", "text": "c", "annotations": []}, {"type": "refusal", "refusal": "d"}]
    items = [
        {"role": "developer", "content": "rules"},
        {"type": "message", "role": "user", "content": two[:1]},
        {"type": "message", "role": "user", "content": two},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": said},
        {"role": "assistant", "content": "again"},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}", "id": "fc_1"},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "one"},
        {"type": "function_call_output", "call_id": "2", "output": two[1:]},
    ]
    assert chat_request(input=items)["messages"] == [
        {"role": "developer", "content": "rules"},
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "cd"},
        {"role": "assistant", "content": "again", "tool_calls": [call("1", "f", "{}"), call("2", "g", "{}")]},
        {"role": "tool", "tool_call_id": "1", "content": "one"},
        {"role": "tool", "tool_call_id": "2", "content": "b"},
    ]


def test_reasoning_that_was_only_summed_up_was_never_written_by_the_model() -> None:
    summed_up = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "s"}]}
    assert chat_request(input=[USER, summed_up])["messages"] == [USER]


@pytest.mark.parametrize(
    "message",
    [
        {"content": "text"},
        {"content": None, "tool_calls": [call("1", "f", "{}"), call("2", "g", '{"a": 1}')]},
        {"content": "text", "reasoning": "thought", "tool_calls": [call("1", "f", "{}")]},
        {"content": None, "reasoning": "thought"},
    ],
)
def test_an_answer_sent_back_as_input_is_the_message_that_it_was(message: dict[str, Any]) -> None:
    output = answered(completion(**message))["output"]
    assert chat_request(input=[USER, *output])["messages"] == [USER, {"role": "assistant"} | message]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": {"id": "conv_1"}}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"messages": [USER]}, "messages"),
        ({"n": 2}, "n"),
        ({"logprobs": False}, "logprobs"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": ["text"]}, "input[0]"),
        ({"input": [USER, {"id": "msg_1"}]}, "input[1]"),
        ({"input": [USER, {"id": "msg_1", "type": "item_reference"}]}, "input[1]"),
        ({"input": [{"type": "computer_call_output"}]}, "input[0]"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": ["input_text"]}]}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].text"),
        ({"input": [{"role": "user"}]}, "input[0]"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": {}}]}, "input[0].arguments"),
        ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}, "input[0]"),
        ({"input": [{"type": "reasoning", "summary": [], "content": "x"}]}, "input[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [CHAT_TOOL]}, "tools[0].name"),
        ({"tools": ["add"]}, "tools[0]"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format"),
        ({"text": {"format": "json_schema"}}, "text.format"),
        ({"stream": "yes"}, "stream"),
        ({"max_output_tokens": True}, "max_output_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"instructions": [USER]}, "instructions"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(RefusedError) as refused:
        chat_request(**body)
    error = json.loads(refused.value.body)["error"]
    assert (refused.value.status, error["param"]) == (400, param)
    assert param in error["message"] or param in str(refused.value)


def test_refused_tool_is_named() -> None:
    with pytest.raises(RefusedError, match="web_search"):
        chat_request(tools=[{"type": "web_search"}])


def test_error_about_the_chat_names_the_agents_field() -> None:
    error = Responses().error(400, error_body(400, "too many", param="max_tokens"))
    assert json.loads(error)["error"]["param"] == "max_output_tokens"
    for other in (error_body(404, "no such model", param="model"), b"<html>", b"[]"):
        assert Responses().error(404, other) == other


def test_plain_answer_repeats_the_settings_and_counts_tokens() -> None:
    asked = {"tools": [TOOL], "temperature": 0, "instructions": "i", "metadata": {"a": "b"}, "truncation": "auto"}
    asked |= {"max_output_tokens": 9, "user": "u", "service_tier": "auto", "reasoning": {"effort": "low"}}
    found = answered(completion(content="text"), **asked, tool_choice="required", parallel_tool_calls=False)
    assert {name: found[name] for name in ("tool_choice", "parallel_tool_calls")} == {
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    expected = asked | {"service_tier": "default", "reasoning": {"effort": "low", "summary": None}}
    assert {name: found[name] for name in expected} == expected
    assert (found["id"], found["status"], found["created_at"]) == ("resp_1", "completed", 9)
    assert found["id"] == Responses().response_id("chatcmpl-1")
    usage = strictly(r.ResponseUsage, found["usage"])
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (5, 7, 12)


def test_answer_without_text_is_an_empty_message() -> None:
    (item,) = answered(completion(content=""))["output"]
    assert (item["type"], item["content"][0]["text"]) == ("message", "")


def test_logprobs_stand_at_the_text() -> None:
    (item,) = answered(completion(content="ab", logprobs=[logprob("a"), logprob("b") | {"bytes": None}]))["output"]
    assert item["content"][0]["logprobs"] == [logprob("a"), logprob("b")]


@pytest.mark.parametrize(
    ("finish", "status", "reason"),
    [
        ("length", "incomplete", "max_output_tokens"),
        ("content_filter", "incomplete", "content_filter"),
        ("abort", "failed", None),
    ],
)
def test_answer_that_was_cut_says_so(finish: str, status: str, reason: str | None) -> None:
    plain = answered(completion(finish, content="te", tool_calls=[call("1", "f", '{"')]))
    assert (plain["status"], (plain["incomplete_details"] or {}).get("reason")) == (status, reason)
    assert [item["status"] for item in plain["output"]] == ["completed", "incomplete"]
    assert bool(plain["error"]) == (status == "failed")
    chunks = FIRST + chunk({"content": "te"}) + chunk({"tool_calls": [{"index": 0} | call("1", "f", '{"')]}, finish)
    last = [e for e in parsed(Responses().stream({}).feed(chunks + USAGE + DONE)) if "response" in e][-1]
    assert (last["type"], last["response"]) == (f"response.{status}", plain)
