"""`/v1/completions` through the gateway before a real vLLM, field by field against a direct connection."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from leyden.avro import Event, LLMCall, new_id, unpack_floats, unpack_ids
from leyden.infra.local.stack import RunningStack

from .streams import chunks

pytestmark = [pytest.mark.engine, pytest.mark.kafka]
ReadEvents = Callable[[RunningStack, str, int], list[Event]]


def post(url: str, **body: Any) -> httpx.Response:
    """One completion, greedy and seeded."""
    body = {"model": "policy", "prompt": "Once upon", "temperature": 0, "max_tokens": 12, "seed": 1} | body
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60)


def same_for_all(answer: dict[str, Any]) -> dict[str, Any]:
    """Without what no two calls share."""
    return {k: v for k, v in answer.items() if k not in ("id", "created")}


def outline(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """A stream without where it was cut: vLLM puts as many tokens into a chunk as there are when it is sent."""
    stream = [same_for_all(chunk) for chunk in stream]
    choices = [choice for chunk in stream for choice in chunk["choices"]]
    logprobs = [choice.pop("logprobs", None) or {} for choice in choices]
    return {
        "text": "".join(choice.pop("text") for choice in choices),
        "token_ids": [token for choice in choices for token in choice.pop("token_ids", None) or ()],
        "prompt_ids": [choice.pop("prompt_token_ids", None) for choice in choices][:1],
        "logprobs": [value for part in logprobs for value in part.get("token_logprobs", ())],
        "shapes": {tuple(chunk) for chunk in stream} | {tuple(choice) for choice in choices},
        "ends": [choice for choice in choices if choice["finish_reason"]],
        "usage": [chunk["usage"] for chunk in stream if chunk.get("usage")],
    }


ASKED = [
    {},
    {"logprobs": 0},
    {"logprobs": 2},
    {"return_token_ids": True},
    {"prompt": [5, 6, 7]},
    {"prompt": ["one text"], "stop": ["e"], "n": 1, "user": None},
]


@pytest.mark.parametrize("asked", ASKED)
def test_plain_answer_is_that_of_a_direct_connection(
    gateway: RunningStack, vllm_url: str, asked: dict[str, Any]
) -> None:
    direct, through = post(vllm_url, **asked), post(gateway.gateway_url, **asked)
    assert direct.status_code == through.status_code == 200
    assert same_for_all(through.json()) == same_for_all(direct.json())


@pytest.mark.parametrize("asked", [*ASKED, {"stream_options": {"include_usage": True}}])
def test_streamed_answer_is_that_of_a_direct_connection(
    gateway: RunningStack, vllm_url: str, asked: dict[str, Any]
) -> None:
    direct, through = post(vllm_url, stream=True, **asked), post(gateway.gateway_url, stream=True, **asked)
    assert direct.status_code == through.status_code == 200
    assert outline(chunks(through)) == outline(chunks(direct))


@pytest.mark.parametrize("stream", [False, True])
def test_event_holds_ids_and_logprobs_as_the_engine_reports_them(
    gateway: RunningStack, vllm_url: str, read_events: ReadEvents, stream: bool
) -> None:
    (choice,) = post(vllm_url, return_token_ids=True, logprobs=0).json()["choices"]
    rollout = new_id()
    assert post(f"{gateway.gateway_url}/rollout/{rollout}/attempt/1", stream=stream).status_code == 200
    call = read_events(gateway, rollout, 2)[1].body
    assert isinstance(call, LLMCall)
    assert unpack_ids(call.prompt_ids).tolist() == choice["prompt_token_ids"]
    assert unpack_ids(call.completion_ids).tolist() == choice["token_ids"]
    np.testing.assert_allclose(unpack_floats(call.logprobs), choice["logprobs"]["token_logprobs"], atol=1e-4)
    assert (call.status, call.route, call.stream) == ("completed", "/v1/completions", stream)
    assert json.loads(call.response)["choices"][0]["text"] == choice["text"]


def test_openai_client_reads_plain_and_streamed_completions(gateway: RunningStack) -> None:
    with openai.OpenAI(base_url=f"{gateway.gateway_url}/v1", api_key="none") as client:
        plain = client.completions.create(model="policy", prompt="Once", max_tokens=8, temperature=0)
        stream = client.completions.create(model="policy", prompt="Once", max_tokens=8, temperature=0, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == plain.choices[0].text
