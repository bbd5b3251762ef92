"""Whether a call was sampled from what the trainer computes: the softmax of logits / temperature."""

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from ..avro import LLMCall
from ..infra.errors import DecodeError

# vLLM takes a lower temperature for greedy decoding, which ignores the first group of parameters below, and raises
# others to the least that it computes with.
GREEDY_BELOW = 1e-5
LEAST_TEMPERATURE = 0.01


def reported_at(temperature: float) -> float:
    """The temperature of the logprobs that the engine reports; those of greedy calls are at 1."""
    return 1.0 if temperature < GREEDY_BELOW else max(temperature, LEAST_TEMPERATURE)


def _other_than(neutral: float) -> Callable[[Any], bool]:
    return lambda value: value is not None and value != neutral


def _positive(value: Any) -> bool:
    return value is not None and value > 0


def _is_given(value: Any) -> bool:
    return value is not None


# Whether a value of the request reshapes the distribution. As in vLLM 0.32: the sampler (v1/sample/sampler.py) applies
# all of these, and the model runner the mask of a grammar, before it takes `processed_logprobs`.
_RANDOM_ONLY: Mapping[str, Callable[[Any], bool]] = {"top_k": _positive, "min_p": _positive}
_ALWAYS: Mapping[str, Callable[[Any], bool]] = {
    "presence_penalty": _other_than(0),
    "frequency_penalty": _other_than(0),
    "repetition_penalty": _other_than(1),
    "logit_bias": bool,
    "allowed_token_ids": _is_given,
    "bad_words": bool,
    "min_tokens": _positive,  # keeps the end of the answer from being sampled
    "thinking_token_budget": _is_given,
    "structured_outputs": _is_given,
    "watermarking": bool,
    "vllm_xargs": bool,  # what logits processors of the deployment's own are told
}


def reshaping(call: LLMCall) -> list[str]:
    """The parameters of a call's request that made the engine sample from a reshaped distribution.

    The logprobs that the engine reported are those of that distribution, the trainer's are not, so that their ratio
    would be wrong for each token. `top_p` is taken from the event, which knows what the request's path has overridden.
    Raises DecodeError where the recorded request cannot be read.
    """
    try:
        body: dict[str, Any] = orjson.loads(call.request)
        found = [name for name, reshapes in _ALWAYS.items() if reshapes(body.get(name))]
        if call.temperature >= GREEDY_BELOW:
            found += ["top_p"] if call.top_p < 1 else []
            found += [name for name, reshapes in _RANDOM_ONLY.items() if reshapes(body.get(name))]
        return found + _grammars(body)
    except (orjson.JSONDecodeError, AttributeError, TypeError) as error:
        raise DecodeError(f"the recorded request of call {call.call_id} is not one: {error}") from error


def _grammars(body: Mapping[str, Any]) -> list[str]:
    """What makes the engine mask tokens by a grammar, besides `structured_outputs`."""
    found: list[str] = []
    if (wanted := body.get("response_format")) is not None and wanted.get("type") != "text":
        found.append("response_format")
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools and choice != "none":
        if choice not in (None, "auto"):
            found.append("tool_choice")
        if any(tool.get("function", {}).get("strict") is True for tool in tools):
            found.append("tools.strict")
        if body.get("parallel_tool_calls") is False:
            found.append("parallel_tool_calls")
    return found
