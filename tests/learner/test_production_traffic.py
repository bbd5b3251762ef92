"""From a session that the gateway opened and a reward posted for it to a trained version: every stage but Kafka."""

from dataclasses import replace

import pytest
from leyden.avro import COMMITTED, Event, LLMCall, Reward, RolloutExpired, Trajectory, TransitionBatch, decode, encode
from leyden.infra.lineage import Lineage
from leyden.learner.material import Material, MaterialMaker
from leyden.learner.plan import Admitted, Dropped, Message, Standing, judge
from leyden.learner.settings import LearnerSettings
from leyden.learner.trajectories import Found
from leyden.producers.gateway.events import started
from leyden.producers.gateway.identity import Identity
from leyden.stream.assemble_stage import AssembleStage
from leyden.stream.assembly import Limits
from leyden.stream.group_stage import GroupStage

from ..stream.rollouts import called
from ..stream.simulation import Simulation

OPTED_IN = LearnerSettings(train_on_serve=True)


def session(name: str, reward: float | None, top_p: float = 1.0) -> list[bytes]:
    """A session with one call that nobody ends: it idles out, and its reward comes after that."""
    call = called(name, 1, version=0)
    assert isinstance(call.body, LLMCall)
    call = replace(call, body=replace(call.body, top_p=top_p))
    events = [started(Identity(name, 1, known=False), "policy"), call]
    log = [encode(event) for event in events]
    log.append(encode(Event(f"{name}-expiry", name, 1, 5000, RolloutExpired(1, "idle"))))
    if reward is not None:
        log.append(encode(Event(f"{name}-reward", name, 1, 9000, Reward(reward, "user", "reward"))))
    return log


def batch_of(log: list[bytes], train_on_serve: bool = True) -> tuple[list[TransitionBatch], list[Trajectory]]:
    assembled = Simulation(AssembleStage(Limits(3_600_000, 86_400_000, 5_000), COMMITTED), log).run().published
    trajectories = [t for t in assembled if isinstance(t, Trajectory)]
    stage = GroupStage(3_600_000, 2, train_on_serve, COMMITTED)
    batches = Simulation(stage, [encode(t) for t in trajectories]).run().published
    return [b for b in batches if isinstance(b, TransitionBatch)], trajectories


def verdict(batch: TransitionBatch, settings: LearnerSettings) -> Admitted | Dropped:
    standing = Standing(Lineage("policy"), 0, {}, settings.max_staleness, settings.train_on_serve)
    return judge(Message(0, batch), standing)


def material(name: str, reward: float, reward_baseline: float | None, top_p: float = 1.0) -> Material:
    (batch,), trajectories = batch_of(session(name, reward, top_p))
    admitted = verdict(batch, OPTED_IN)
    assert isinstance(admitted, Admitted)
    found: Found = {(0, offset): trajectory for offset, trajectory in enumerate(trajectories)}
    return MaterialMaker(OPTED_IN, lambda encoded: decode(encoded, Event)).make(admitted, found, reward_baseline)


def test_an_idle_session_with_a_reward_becomes_a_batch_that_is_admitted() -> None:
    (batch,), _ = batch_of(session("chat", 1.0))
    assert (batch.purpose, batch.group_size) == ("serve", 1)
    assert [(m.status, m.reward) for m in batch.members] == [("expired", 1.0)]
    assert isinstance(verdict(batch, OPTED_IN), Admitted)


def test_without_a_reward_it_is_no_batch() -> None:
    assert batch_of(session("chat", None))[0] == []


def test_both_stages_have_to_opt_in() -> None:
    assert batch_of(session("chat", 1.0), train_on_serve=False)[0] == []
    (batch,), _ = batch_of(session("chat", 1.0))
    refused = verdict(batch, LearnerSettings())
    assert isinstance(refused, Dropped)
    assert refused.reason == "serve"


def test_the_first_session_starts_the_baseline_and_the_next_one_is_trained_against_it() -> None:
    first = material("first", 0.0, None)
    assert [(e.outcome, e.reason) for e in first.entries] == [("dropped", "no_baseline")]
    assert first.reward_baseline == 0.0
    second = material("second", 1.0, first.reward_baseline)
    assert [(e.outcome, e.reason) for e in second.entries] == [("trained", None)]
    (tree,) = second.trees
    assert tree.row_advantage.tolist() == [1.0, 1.0]
    assert second.reward_baseline == pytest.approx(0.05)


def test_a_session_whose_sampling_cannot_be_reproduced_is_not_trained_and_still_moves_the_baseline() -> None:
    made = material("nucleus", 1.0, 0.0, top_p=0.9)
    assert [(e.outcome, e.reason) for e in made.entries] == [("dropped", "sampling_not_reproducible")]
    assert (made.trees, made.reshaped) == ((), (("top_p",),))
    assert made.reward_baseline == pytest.approx(0.05)
