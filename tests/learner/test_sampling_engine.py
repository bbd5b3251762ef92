"""What the engine really does: its logprobs are the trainer's exactly where a call counts as reproducible."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import torch
from leyden.avro import LLMCall
from leyden.learner.sampling import reported_at, reshaping
from transformers import AutoModelForCausalLM

from ..stream.rollouts import called

pytestmark = pytest.mark.engine
PROMPT = list(range(5, 25))


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32).eval()


@torch.no_grad()
def trainer_logprobs(model: Any, completion: list[int], temperature: float) -> torch.Tensor:
    ids = torch.tensor([PROMPT + completion])
    logits = model(ids).logits[0, len(PROMPT) - 1 : -1].float() / reported_at(temperature)
    return logits.log_softmax(-1)[torch.arange(len(completion)), torch.tensor(completion)]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"temperature": 0.7},
        {"temperature": 0.003},
        {"temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.5},
        {"top_k": 0, "min_p": 0, "top_p": 1, "repetition_penalty": 1, "stop": ["zzz"], "guided_regex": "a+"},
        {"top_p": 0.5},
        {"top_k": 5},
        {"min_p": 0.5},
        {"presence_penalty": 1.5},
        {"frequency_penalty": 1.5},
        {"repetition_penalty": 1.5},
        {"logit_bias": {"9": 8}},
        {"allowed_token_ids": [9, 10, 11]},
        {"min_tokens": 8},
        {"structured_outputs": {"choice": ["a", "b"]}},
        {"response_format": {"type": "json_object"}},
        {"temperature": 0, "presence_penalty": 1.5},
    ],
    ids=str,
)
def test_logprobs_of_engine_and_trainer_agree_unless_a_parameter_is_named(
    fresh_engine: Any, model: Any, asked: dict[str, Any]
) -> None:
    request = {"model": "policy", "prompt": PROMPT, "temperature": 1, "max_tokens": 12, "seed": 1} | asked
    answer = httpx.post(
        f"{fresh_engine.url}/v1/completions", json=request | {"logprobs": 0, "return_token_ids": True}, timeout=60
    )
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    ours = trainer_logprobs(model, choice["token_ids"], request["temperature"])
    gap = float((torch.tensor(choice["logprobs"]["token_logprobs"]) - ours).abs().max())
    call = called("r", 1).body
    assert isinstance(call, LLMCall)
    call = replace(
        call, request=orjson.dumps(request), temperature=request["temperature"], top_p=request.get("top_p", 1)
    )
    named = reshaping(call)
    assert (gap > 1e-3) == bool(named), f"{named}: logprobs differ by up to {gap}"
