"""The gateway before a real vLLM: agents see what a direct connection shows, Kafka holds what the engine reported."""

import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from leyden.avro import Event, LLMCall, RolloutEnded, RolloutStarted, new_id, unpack_floats, unpack_ids
from leyden.infra.local.stack import RunningStack

from .streams import chunks

pytestmark = [pytest.mark.engine, pytest.mark.kafka]
ReadEvents = Callable[[RunningStack, str, int], list[Event]]

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]},
    },
}
# The tiny model cannot decide to call a tool; here it can write nothing else.
CALLS_WEATHER = {
    "tools": [WEATHER],
    "structured_outputs": {"choice": ['<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>']},
    "max_tokens": 100,
}
HELLO = [{"role": "user", "content": "Say hello."}]
# Differ between two equal calls.
VOLATILE = ("id", "created")


def post(url: str, **body: Any) -> httpx.Response:
    """One chat completion, greedy and seeded."""
    body = {"model": "policy", "messages": HELLO, "temperature": 0, "max_tokens": 12, "seed": 1} | body
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)


def same_for_all(answer: dict[str, Any]) -> dict[str, Any]:
    """Without what no two calls share: ids and times, also of tool calls."""
    text = json.dumps({k: v for k, v in answer.items() if k not in VOLATILE})
    return json.loads(
        text, object_hook=lambda o: {k: v for k, v in o.items() if not str(v).startswith("chatcmpl-tool")}
    )


def outline(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """A stream without where it was cut: vLLM puts as many tokens into a chunk as there are when it is sent."""
    stream = [same_for_all(chunk) for chunk in stream]
    choices = [choice for chunk in stream for choice in chunk["choices"]]
    deltas = [choice.pop("delta") for choice in choices]
    return {
        "first": (stream[0], deltas[0]),
        "content": "".join(delta.get("content") or "" for delta in deltas),
        "arguments": "".join(
            call["function"].get("arguments") or "" for delta in deltas for call in delta.get("tool_calls", ())
        ),
        "token_ids": [token for choice in choices for token in choice.pop("token_ids", None) or ()],
        "logprobs": [one for choice in choices for one in (choice.pop("logprobs", None) or {}).get("content", ())],
        "shapes": {tuple(chunk) for chunk in stream} | {tuple(choice) for choice in choices},
        "ends": [choice for choice in choices if choice["finish_reason"]],
        "usage": [chunk["usage"] for chunk in stream if chunk.get("usage")],
        "empty deltas": any(not delta and not end["finish_reason"] for delta, end in zip(deltas, choices, strict=True)),
    }


def running_requests(vllm_url: str) -> float:
    """What the engine is generating now."""
    lines = httpx.get(f"{vllm_url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running{"))


def the_call(events: list[Event]) -> LLMCall:
    """The only call of a rollout that the gateway opened."""
    started, call = events[0].body, events[1].body
    assert isinstance(started, RolloutStarted)
    assert isinstance(call, LLMCall)
    return call


ASKED = [
    {},
    {"logprobs": True, "top_logprobs": 2},
    {"logprobs": True},
    {"return_token_ids": True},
    CALLS_WEATHER,
    CALLS_WEATHER | {"logprobs": True},
    {"stop": ["e"], "n": 1, "user": None},
]


@pytest.mark.parametrize("asked", ASKED)
def test_plain_answer_is_that_of_a_direct_connection(
    gateway: RunningStack, vllm_url: str, asked: dict[str, Any]
) -> None:
    direct, through = post(vllm_url, **asked), post(gateway.gateway_url, **asked)
    assert direct.status_code == through.status_code == 200
    assert same_for_all(through.json()) == same_for_all(direct.json())
    assert not [name for name in through.headers if "version" in name]


@pytest.mark.parametrize("asked", [*ASKED, {"stream_options": {"include_usage": True}}])
def test_streamed_answer_is_that_of_a_direct_connection(
    gateway: RunningStack, vllm_url: str, asked: dict[str, Any]
) -> None:
    direct, through = post(vllm_url, stream=True, **asked), post(gateway.gateway_url, stream=True, **asked)
    assert direct.status_code == through.status_code == 200
    assert outline(chunks(through)) == outline(chunks(direct))
    assert "leyden-version" not in through.text


@pytest.mark.parametrize("stream", [False, True])
def test_event_holds_ids_and_logprobs_as_the_engine_reports_them(
    gateway: RunningStack, vllm_url: str, read_events: ReadEvents, stream: bool
) -> None:
    direct = post(vllm_url, return_token_ids=True, logprobs=True).json()
    answer = post(gateway.gateway_url, stream=stream)
    call = the_call(read_events(gateway, answer.headers["x-leyden-rollout"], 3))
    (choice,) = direct["choices"]
    assert unpack_ids(call.prompt_ids).tolist() == direct["prompt_token_ids"]
    assert unpack_ids(call.completion_ids).tolist() == choice["token_ids"]
    expected = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    np.testing.assert_allclose(unpack_floats(call.logprobs), expected, atol=1e-4)
    assert (call.n_prompt_tokens, call.n_completion_tokens) == (len(direct["prompt_token_ids"]), 12)
    assert (call.status, call.finish_reason, call.stream) == ("completed", "length", stream)
    assert (call.version_start, call.version_end) == (0, 0)
    assert json.loads(call.response)["choices"][0]["message"]["content"] == choice["message"]["content"]


def test_tokens_that_show_no_text_stay_aligned_in_a_stream(
    gateway: RunningStack, vllm_url: str, read_events: ReadEvents
) -> None:
    """Half of the tiny model's tokens are parts of characters: many chunks have ids and an empty delta."""
    asked = {"stream": True, "temperature": 1.5, "max_tokens": 80, "seed": 7, "ignore_eos": True}
    with_ids = chunks(post(vllm_url, return_token_ids=True, **asked))
    answer = post(gateway.gateway_url, **asked)
    call = the_call(read_events(gateway, answer.headers["x-leyden-rollout"], 3))
    assert call.n_completion_tokens == len(call.logprobs) // 4 == 80
    shown = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks(answer))
    assert shown == "".join(c["choices"][0]["delta"].get("content") or "" for c in with_ids)
    assert json.loads(call.response)["choices"][0]["message"]["content"] == shown


def test_openai_client_reads_plain_streamed_and_tool_answers(gateway: RunningStack) -> None:
    client = openai.OpenAI(base_url=f"{gateway.gateway_url}/rollout/{new_id()}/attempt/1/v1", api_key="none")
    ask: dict[str, Any] = {"model": "policy", "messages": HELLO, "max_tokens": 40, "seed": 3}
    create: Any = client.chat.completions.create
    plain = create(**ask)
    assert plain.choices[0].finish_reason in ("length", "stop")
    deltas = [chunk.choices[0].delta.content or "" for chunk in create(**ask, stream=True)]
    assert "".join(deltas) == plain.choices[0].message.content
    forced = create(**ask | {"max_tokens": 100}, tools=[WEATHER], extra_body=CALLS_WEATHER)
    (tool,) = forced.choices[0].message.tool_calls
    assert tool.type == "function"
    assert json.loads(tool.function.arguments) == {"city": "Oslo"}
    client.close()


def test_path_names_rollout_attempt_agent_and_outranking_parameters(
    gateway: RunningStack, read_events: ReadEvents
) -> None:
    rollout = new_id()
    base = f"{gateway.gateway_url}/rollout/{rollout}/attempt/2/agent/writer/set/temperature=0,max_tokens=3"
    answer = post(base, temperature=1.3, max_tokens=50)
    assert answer.json()["usage"]["completion_tokens"] == 3
    started, event = read_events(gateway, rollout, 2)
    assert isinstance(started.body, RolloutStarted)
    assert (started.body.purpose, started.body.origin) == ("serve", "gateway")
    assert isinstance(event.body, LLMCall)
    assert (event.attempt, event.body.agent) == (2, "writer")
    assert (event.body.temperature, event.body.max_tokens) == (0.0, 3)
    assert json.loads(event.body.request)["temperature"] == 1.3
    assert event.body.response_id == answer.json()["id"]


def test_call_without_identity_is_a_rollout_of_its_own_that_ends(
    gateway: RunningStack, read_events: ReadEvents
) -> None:
    answer = post(gateway.gateway_url)
    events = read_events(gateway, answer.headers["x-leyden-rollout"], 3)
    ended = events[2].body
    assert isinstance(ended, RolloutEnded)
    assert (ended.status, ended.n_calls) == ("succeeded", 1)


def test_engines_own_error_reaches_the_agent_word_for_word(gateway: RunningStack, vllm_url: str) -> None:
    for wrong in ({"temperature": -3}, {"top_logprobs": 2}, {"max_tokens": 100_000}, {"messages": [{"role": 5}]}):
        direct, through = post(vllm_url, **wrong), post(gateway.gateway_url, **wrong)
        assert through.status_code == direct.status_code >= 400
        assert through.json() == direct.json()


def test_client_that_goes_away_aborts_the_engine_and_leaves_what_was_generated(
    gateway: RunningStack, vllm_url: str, read_events: ReadEvents
) -> None:
    rollout = new_id()
    url = f"{gateway.gateway_url}/rollout/{rollout}/attempt/1/v1/chat/completions"
    body = {"model": "policy", "messages": HELLO, "stream": True, "max_tokens": 1900, "ignore_eos": True}
    with httpx.stream("POST", url, json=body, timeout=60) as response:
        answer = response.iter_lines()
        for _ in range(10):
            next(answer)
    call = the_call(read_events(gateway, rollout, 2))
    assert call.status == "abandoned"
    assert 0 < call.n_completion_tokens == len(call.logprobs) // 4 < 1900
    deadline = time.monotonic() + 10
    while running_requests(vllm_url) and time.monotonic() < deadline:
        pass
    assert running_requests(vllm_url) == 0
