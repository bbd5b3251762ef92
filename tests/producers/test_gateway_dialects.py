"""Routes that are chats to the engine, through the gateway before a real vLLM: what agent and event get of them."""

import json
from collections.abc import Callable
from typing import Any, cast

import anthropic
import httpx
import openai
import pytest
from leyden.avro import Event, LLMCall, new_id, unpack_floats, unpack_ids
from leyden.infra.local.stack import RunningStack

pytestmark = [pytest.mark.engine, pytest.mark.kafka]
ReadEvents = Callable[[RunningStack, str, int], list[Event]]


def direct_chat(url: str, text: str, max_tokens: int) -> dict[str, Any]:
    """The same as a chat, with its token ids."""
    body = {"model": "policy", "messages": [{"role": "user", "content": text}], "temperature": 0, "seed": 1}
    body |= {"max_tokens": max_tokens, "return_token_ids": True, "logprobs": True}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()


def responses_client(gateway: RunningStack, rollout: str) -> openai.OpenAI:
    """The official client on a rollout of its own."""
    return openai.OpenAI(base_url=f"{gateway.gateway_url}/rollout/{rollout}/attempt/1/v1", api_key="none")


def messages_client(gateway: RunningStack, rollout: str) -> Any:
    """As above; this client writes /v1 itself. Its methods' types know no parameters that come in a dictionary."""
    return anthropic.Anthropic(base_url=f"{gateway.gateway_url}/rollout/{rollout}/attempt/1", api_key="none")


@pytest.mark.parametrize("stream", [False, True])
def test_responses_are_answered_and_captured_as_the_chat_that_they_are(
    gateway: RunningStack, vllm_url: str, read_events: ReadEvents, stream: bool
) -> None:
    rollout, text = new_id(), "Once upon"
    chat = direct_chat(vllm_url, text, 12)
    asked: dict[str, Any] = {"model": "policy", "input": text, "temperature": 0, "max_output_tokens": 12}
    with responses_client(gateway, rollout) as client:
        if stream:
            *_, last = client.responses.create(**asked, extra_body={"seed": 1}, stream=True)
            assert last.type == "response.incomplete"
            response = last.response
        else:
            response = client.responses.create(**asked, extra_body={"seed": 1})
    call = read_events(gateway, rollout, 2)[1].body
    assert isinstance(call, LLMCall)
    assert (call.status, call.route, call.stream) == ("completed", "/v1/responses", stream)
    assert call.response_id == response.id
    assert response.output_text == chat["choices"][0]["message"]["content"]
    assert (response.status, response.model) == ("incomplete", "policy")
    assert json.loads(call.request)["messages"] == [{"role": "user", "content": text}]
    assert json.loads(call.response)["choices"][0]["message"]["content"] == response.output_text
    assert unpack_ids(call.completion_ids).tolist() == chat["choices"][0]["token_ids"]
    assert len(unpack_floats(call.logprobs)) == len(chat["choices"][0]["token_ids"])
    assert unpack_ids(call.prompt_ids).tolist() == chat["prompt_token_ids"]


def test_responses_refusals_reach_the_client_as_its_errors(gateway: RunningStack) -> None:
    """Of the dialect, of what cannot be captured, and of the engine."""
    with responses_client(gateway, new_id()) as client:
        for param, value in (
            ("previous_response_id", "r"),
            ("max_output_tokens", 1 << 30),
            ("temperature", -1),
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                client.responses.create(**{"model": "policy", "input": "x", param: value})
            assert refused.value.param == param


@pytest.mark.parametrize("stream", [False, True])
def test_messages_are_answered_and_captured_as_the_chat_that_they_are(
    gateway: RunningStack, vllm_url: str, read_events: ReadEvents, stream: bool
) -> None:
    rollout, text = new_id(), "Once upon"
    chat = direct_chat(vllm_url, text, 12)
    asked: dict[str, Any] = {"model": "policy", "max_tokens": 12, "extra_body": {"temperature": 0}}
    asked["messages"] = [{"role": "user", "content": text}]
    with messages_client(gateway, rollout) as client:
        if stream:
            with client.messages.stream(**asked) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(**asked)
    call = read_events(gateway, rollout, 2)[1].body
    assert isinstance(call, LLMCall)
    assert (call.status, call.route, call.stream) == ("completed", "/v1/messages", stream)
    assert call.response_id == message.id
    assert [block.text for block in message.content if block.type == "text"] == [
        chat["choices"][0]["message"]["content"]
    ]
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 12)
    assert unpack_ids(call.completion_ids).tolist() == chat["choices"][0]["token_ids"]
    assert len(unpack_floats(call.logprobs)) == len(chat["choices"][0]["token_ids"])
    assert unpack_ids(call.prompt_ids).tolist() == chat["prompt_token_ids"]


def test_messages_refusals_reach_the_client_as_its_errors(gateway: RunningStack) -> None:
    """Of the dialect, of what cannot be captured, and of the engine."""
    with messages_client(gateway, new_id()) as client:
        for name, value in (
            ("tools", [{"type": "bash_20250124", "name": "bash"}]),
            ("extra_body", {"temperature": -1}),
        ):
            asked: dict[str, Any] = {"model": "policy", "max_tokens": 4, "messages": [{"role": "user", "content": "x"}]}
            with pytest.raises(anthropic.BadRequestError) as refused:
                client.messages.create(**asked | {name: value})
            assert cast(Any, refused.value.body)["error"]["type"] == "invalid_request_error"
