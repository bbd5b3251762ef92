"""Which calls were sampled from what the trainer computes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest
from leyden.avro import Event, LLMCall, decode, encode
from leyden.infra.errors import DecodeError
from leyden.learner.episodes import episode_of
from leyden.learner.sampling import reported_at, reshaping

from ..stream.rollouts import called
from .test_trajectories import trajectory

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
STRICT = {"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}


def call(request: bytes | dict[str, Any], temperature: float = 1.0, top_p: float = 1.0) -> LLMCall:
    body = called("r", 1).body
    assert isinstance(body, LLMCall)
    raw = request if isinstance(request, bytes) else orjson.dumps(request)
    return replace(body, request=raw, temperature=temperature, top_p=top_p)


@pytest.mark.parametrize(
    ("request_body", "parameters"),
    [
        ({"top_k": 5}, ["top_k"]),
        ({"min_p": 0.1}, ["min_p"]),
        ({"presence_penalty": 0.5}, ["presence_penalty"]),
        ({"frequency_penalty": -0.5}, ["frequency_penalty"]),
        ({"repetition_penalty": 1.1}, ["repetition_penalty"]),
        ({"logit_bias": {"5": 1}}, ["logit_bias"]),
        ({"allowed_token_ids": [5]}, ["allowed_token_ids"]),
        ({"bad_words": ["x"]}, ["bad_words"]),
        ({"min_tokens": 4}, ["min_tokens"]),
        ({"thinking_token_budget": 0}, ["thinking_token_budget"]),
        ({"structured_outputs": {"regex": "a+"}}, ["structured_outputs"]),
        ({"watermarking": True}, ["watermarking"]),
        ({"vllm_xargs": {"x": 1}}, ["vllm_xargs"]),
        ({"response_format": {"type": "json_object"}}, ["response_format"]),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, ["response_format"]),
        ({"tools": [TOOL], "tool_choice": "required"}, ["tool_choice"]),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, ["tool_choice"]),
        ({"tools": [TOOL, STRICT]}, ["tools.strict"]),
        ({"tools": [TOOL], "parallel_tool_calls": False}, ["parallel_tool_calls"]),
        ({"top_k": 5, "min_tokens": 4}, ["min_tokens", "top_k"]),
    ],
)
def test_a_parameter_that_reshapes_the_distribution_is_named(
    request_body: dict[str, Any], parameters: list[str]
) -> None:
    assert reshaping(call(request_body)) == parameters


@pytest.mark.parametrize(
    "request_body",
    [
        {},
        {"top_k": 0, "min_p": 0.0, "presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1},
        {"top_k": -1, "logit_bias": {}, "bad_words": [], "min_tokens": 0, "structured_outputs": None},
        {"top_k": None, "min_p": None, "repetition_penalty": None, "response_format": None, "tools": None},
        {"response_format": {"type": "text"}, "stop": ["x"], "seed": 3, "max_tokens": 9, "logprobs": True},
        {"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": True},
        {"tools": [STRICT], "tool_choice": "none"},
    ],
)
def test_a_plain_request_is_reproducible(request_body: dict[str, Any]) -> None:
    assert reshaping(call(request_body)) == []


def test_top_p_is_the_one_in_force_and_greedy_decoding_ignores_it() -> None:
    assert reshaping(call({"top_p": 0.9}, top_p=1.0)) == []  # the path has set it back
    assert reshaping(call({}, top_p=0.9)) == ["top_p"]
    assert reshaping(call({"top_k": 5}, temperature=0.0, top_p=0.9)) == []
    assert reshaping(call({"min_tokens": 2}, temperature=0.0)) == ["min_tokens"]


@pytest.mark.parametrize(
    "raw", [b"", b"no JSON", b"[]", b'{"tools": 3}', b'{"top_k": "x"}', b'{"response_format": []}']
)
def test_a_request_that_is_none_is_said_to_be_broken(raw: bytes) -> None:
    with pytest.raises(DecodeError, match="call-1"):
        reshaping(call(raw))


@pytest.mark.parametrize(("temperature", "expected"), [(0.0, 1.0), (1e-6, 1.0), (0.001, 0.01), (0.7, 0.7), (1.5, 1.5)])
def test_logprobs_are_compared_at_the_engines_temperature(temperature: float, expected: float) -> None:
    assert reported_at(temperature) == expected


def episode_calls(bodies: Sequence[dict[str, Any]]) -> tuple[list[str], int]:
    events = []
    for n, body in enumerate(bodies):
        event = called("r", n)
        assert isinstance(event.body, LLMCall)
        events.append(encode(replace(event, body=replace(event.body, request=orjson.dumps(body)))))
    whole = replace(trajectory("r"), calls=events)
    episode = episode_of(whole, 1.0, lambda encoded: decode(encoded, Event), None, 100)
    return [t.call_id for t in episode.transitions], len(episode.reshaped)


def test_only_the_call_itself_is_left_out_of_its_episode() -> None:
    assert episode_calls([{}, {"response_format": {"type": "json_object"}}, {}]) == (["call-0", "call-2"], 1)
