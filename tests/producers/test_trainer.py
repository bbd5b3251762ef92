"""The whole loop on the tiny model: a user's script trains, every role runs as a process of its own."""

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import leyden
import pytest
from leyden.avro import Event, LLMCall, Note, TransitionBatch, decode
from leyden.infra import kafka, manifest, topics
from leyden.infra.local.stack import settings_env
from leyden.infra.objects import ObjectStore
from leyden.infra.settings import EngineSettings, RoleSettings

AGENT = """
import leyden
from openai import OpenAI

client = OpenAI()

def agent(task, llm):
    reply = client.chat.completions.create(
        model=llm.model, messages=[{"role": "user", "content": task["question"]}], max_tokens=6, temperature=1.0
    ).choices[0].message
    leyden.emit(message="asked", name="trace")
    return (len(reply.content or "") % 3) / 2
"""


@pytest.fixture
def agent_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A user's module, not installed anywhere."""
    (tmp_path / "user_agent.py").write_text(AGENT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    yield import_module("user_agent")
    del sys.modules["user_agent"]


@pytest.mark.engine
@pytest.mark.kafka
@pytest.mark.minio
def test_fit_trains_a_version_a_round_from_its_own_samples_and_never_on_validation(
    deployment: RoleSettings,
    fresh_engine: EngineSettings,
    tiny_model_dir: Path,
    agent_module: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deployment = deployment.model_copy(update={"engine": fresh_engine})
    for name, value in settings_env(deployment).items():
        monkeypatch.setenv(name, value)
    ledger, told = tmp_path / "ledger.jsonl", list[leyden.Progress]()
    trainer = leyden.Trainer(
        model=tiny_model_dir,
        algorithm=leyden.LightningRL(groups_per_step=2, group_size=4, learning_rate=1e-3),
        n_steps=2,
        slots=4,
        state_dir=tmp_path / "state",
        env={"LEYDEN_LEDGER": str(ledger), "LEYDEN_THREADS": "1", "LEYDEN_PRECISION": "fp32"},
        on_progress=told.append,
        timeout_s=60.0,
        step_timeout_s=120.0,
    )
    questions = [{"question": f"question {i}"} for i in range(3)]
    fit = trainer.fit(agent_module.agent, questions, questions[:2])

    assert [(s.step, s.version, s.n_rollouts, s.n_failed) for s in fit.steps] == [(1, 1, 8, 0), (2, 2, 8, 0)]
    assert [version for version, _ in fit.validation] == [0, 2]
    assert {p.phase for p in told} == {"rollouts", "training", "served", "validation"}
    events = [
        decode(m.value() or b"", Event) for m in kafka.read_all(deployment.kafka, deployment.prefix + topics.EVENTS)
    ]
    calls = [e.body for e in events if isinstance(e.body, LLMCall)]
    assert len(calls) == 2 * 8 + 2 * 2
    assert {c.response_id for c in calls} == {
        json.loads(line)["response_id"] for line in ledger.read_text().splitlines()
    }
    assert sum(isinstance(e.body, Note) for e in events) == len(calls)
    # Greedy for validation although the agent asks for 1.0; each round sampled from the version before its update.
    assert sorted((c.temperature, c.version_start) for c in calls) == sorted(
        [(0.0, 0)] * 2 + [(1.0, 0)] * 8 + [(1.0, 1)] * 8 + [(0.0, 2)] * 2
    )
    batches = [
        decode(m.value() or b"", TransitionBatch)
        for m in kafka.read_all(deployment.kafka, deployment.prefix + topics.BATCHES)
    ]
    assert sorted(b.purpose for b in batches) == ["train"] * 4
    objects = ObjectStore(deployment.objects)
    assert manifest.versions("policy", objects) == [0, 1, 2]
    consumed = [e for v in (1, 2) for e in manifest.load("policy", v, objects)[0].batches]
    assert {e.group_id for e in consumed} == {b.group_id for b in batches}
