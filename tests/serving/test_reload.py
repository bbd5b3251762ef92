"""Hot reload of a real vLLM: what it serves is the checkpoint, streams stay open, bad files change nothing."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from leyden.infra.settings import EngineSettings
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.engine
Tensors = dict[str, torch.Tensor]
MakeCheckpoint = Callable[[str, Callable[[Tensors], object]], Path]
# Longer than five blocks of the prefix cache.
PROMPT = torch.randint(3, 259, (180,), generator=torch.Generator().manual_seed(0)).tolist()
TOLERANCE = 1e-3


class Engine:
    """A client of the vLLM under test."""

    def __init__(self, url: str, token: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=60.0)
        self._token = token

    def reload(self, version: int, folder: Path) -> httpx.Response:
        headers = {"authorization": f"Bearer {self._token}"}
        return self.http.post("/leyden/reload", json={"version": version, "path": str(folder)}, headers=headers)

    def completion(self, **more: Any) -> httpx.Response:
        request = {"model": "policy", "prompt": PROMPT, "max_tokens": 1, "temperature": 0.0} | more
        answer = self.http.post("/v1/completions", json=request)
        answer.raise_for_status()
        return answer

    def prompt_logprobs(self) -> torch.Tensor:
        rows = self.completion(prompt_logprobs=0).json()["choices"][0]["prompt_logprobs"]
        return torch.tensor([row[str(PROMPT[i])]["logprob"] for i, row in enumerate(rows) if row is not None])

    def greedy(self) -> tuple[list[int], torch.Tensor]:
        """(ids, logprobs) of a short answer; this request may use the prefix cache, unlike `prompt_logprobs`."""
        request = {"max_tokens": 8, "logprobs": 0, "return_token_ids": True, "ignore_eos": True}
        choice = self.completion(**request).json()["choices"][0]
        return choice["token_ids"], torch.tensor(choice["logprobs"]["token_logprobs"])


def logprobs(folder: Path, ids: list[int]) -> torch.Tensor:
    """Of each id after the first, by Transformers in fp32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        rows = torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)
    return rows[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


@pytest.fixture
def engine(fresh_engine: EngineSettings) -> Iterator[Engine]:
    """A client of the session's vLLM, which serves the base model at the start of the test."""
    client = Engine(fresh_engine.url, fresh_engine.reload_token.get_secret_value())
    yield client
    client.http.close()


def test_logprobs_after_a_reload_are_those_of_the_new_checkpoint(
    engine: Engine, tiny_model_dir: Path, new_weights: Callable[[int], Path]
) -> None:
    folder = new_weights(1)
    base, new = logprobs(tiny_model_dir, PROMPT), logprobs(folder, PROMPT)
    assert (base - new).abs().max() > 0.1
    assert (engine.prompt_logprobs() - base).abs().max() < TOLERANCE
    answer = engine.reload(1, folder).json()
    assert (answer["version"], answer["error"]) == (1, None)
    assert (engine.prompt_logprobs() - new).abs().max() < TOLERANCE
    engine.reload(0, tiny_model_dir)
    assert (engine.prompt_logprobs() - base).abs().max() < TOLERANCE


def test_after_a_reload_no_cached_prefix_of_the_old_weights_is_used(
    engine: Engine, new_weights: Callable[[int], Path]
) -> None:
    folder = new_weights(1)
    engine.greedy()
    assert engine.reload(1, folder).status_code == 200
    ids, served = engine.greedy()
    assert (served - logprobs(folder, PROMPT + ids)[len(PROMPT) - 1 :]).abs().max() < TOLERANCE


def test_an_open_stream_survives_a_reload_and_each_token_is_of_one_of_the_two_versions(
    engine: Engine, tiny_model_dir: Path, new_weights: Callable[[int], Path]
) -> None:
    folder = new_weights(1)
    request = {"max_tokens": 400, "ignore_eos": True, "stream": True, "logprobs": 0, "return_token_ids": True}
    request |= {"model": "policy", "prompt": PROMPT, "temperature": 1.0, "seed": 7}
    with engine.http.stream("POST", "/v1/completions", json=request) as answer:
        lines = answer.iter_lines()
        seen = [next(lines) for _ in range(6)]
        assert engine.reload(1, folder).status_code == 200
        seen += list(lines)
    assert answer.headers["x-leyden-version-start"] == "0"
    assert [line for line in seen if line][-2:] == [": leyden-version-end 1", "data: [DONE]"]
    choices = [json.loads(line[6:])["choices"][0] for line in seen if line.startswith("data: {")]
    ids = [token for choice in choices for token in choice["token_ids"]]
    rows = [choice["logprobs"]["token_logprobs"] for choice in choices if choice["logprobs"]]
    served = torch.tensor([value for row in rows for value in row])
    assert len(ids) == len(served) == 400
    old, new = (logprobs(path, PROMPT + ids)[len(PROMPT) - 1 :] for path in (tiny_model_dir, folder))
    by_old, by_new = (served - old).abs() < TOLERANCE, (served - new).abs() < TOLERANCE
    switch = int((~by_old).nonzero()[0])
    assert 0 < switch < 400
    assert bool(by_new[switch:].all())


def test_a_plain_answer_names_its_versions(engine: Engine, new_weights: Callable[[int], Path]) -> None:
    engine.reload(4, new_weights(1))
    headers = engine.completion().headers
    assert (headers["x-leyden-version-start"], headers["x-leyden-version-end"]) == ("4", "4")


def missing(tensors: Tensors) -> None:
    del tensors["model.norm.weight"]


def unknown(tensors: Tensors) -> None:
    tensors["model.surprise"] = torch.ones(3)


def wrong_shape(tensors: Tensors) -> None:
    tensors["model.norm.weight"] = torch.ones(3)


def not_a_number(tensors: Tensors) -> None:
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = float("nan")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (missing, "1 tensors missing: model.norm.weight"),
        (unknown, "1 tensors unknown: model.surprise"),
        (wrong_shape, "model.norm.weight is [3], not ["),
        (not_a_number, "tensor model.layers.1.mlp.up_proj.weight holds NaN or infinity"),
        (None, "model.safetensors: "),
    ],
    ids=["missing", "unknown", "wrong_shape", "nan", "truncated"],
)
def test_a_bad_checkpoint_is_refused_with_the_reason_and_the_engine_untouched(
    engine: Engine, checkpoint: MakeCheckpoint, change: Callable[[Tensors], None] | None, why: str
) -> None:
    before = engine.prompt_logprobs()
    folder = checkpoint("bad", change or (lambda tensors: None))
    if change is None:
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-100])
    answer = engine.reload(9, folder)
    assert answer.status_code == 422
    assert why in answer.json()["error"]
    assert engine.http.get("/leyden/version").json()["version"] == 0
    assert torch.equal(engine.prompt_logprobs(), before)


def test_a_client_that_goes_away_ends_its_generation(engine: Engine) -> None:
    request = {"model": "policy", "prompt": PROMPT, "max_tokens": 800, "ignore_eos": True, "stream": True}
    before = metric(engine, "vllm:generation_tokens_total{")
    with engine.http.stream("POST", "/v1/completions", json=request) as answer:
        next(answer.iter_lines())
    deadline = time.monotonic() + 20
    while metric(engine, "vllm:num_requests_running{") > 0:
        assert time.monotonic() < deadline
    assert metric(engine, "vllm:generation_tokens_total{") - before < 700


def metric(engine: Engine, name: str) -> float:
    lines = engine.http.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))
