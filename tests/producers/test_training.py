"""The pure parts of a training session."""

from itertools import islice

import leyden
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leyden.avro import Trajectory
from leyden.infra.local.stack import settings_env
from leyden.infra.local.state import settings_of
from leyden.learner.settings import LearnerSettings
from leyden.producers.agents import AgentError, import_root, load, spec_of
from leyden.producers.training.algorithm import LightningRL, environment
from leyden.producers.training.results import RolloutResult, mean_reward, result_of
from leyden.producers.training.session import NothingToTrainError, require_trainable, teaches
from leyden.producers.training.tasks import endless, group_of_tasks


def result(group: str, status: str = "succeeded", reward: float | None = 1.0) -> RolloutResult:
    return RolloutResult("r", group, status, reward, None, 1, 0, 0)


def test_rollouts_of_a_group_share_group_and_payload_and_nothing_else() -> None:
    tasks = group_of_tasks({"b": 1, "a": 2}, 3, policy="p", purpose="train", timeout_s=1.0, max_attempts=2)
    assert len({t.rollout_id for t in tasks}) == 3
    assert len({(t.group_id, t.task_digest, t.payload, t.group_size) for t in tasks}) == 1
    same = group_of_tasks({"a": 2, "b": 1}, 1, policy="p", purpose="train", timeout_s=1.0, max_attempts=2)[0]
    assert (same.task_digest == tasks[0].task_digest, same.group_id == tasks[0].group_id) == (True, False)
    with pytest.raises(ValueError, match="JSON"):
        group_of_tasks({1, 2}, 1, policy="p", purpose="train", timeout_s=1.0, max_attempts=1)


@given(st.integers(1, 12), st.integers(0, 3))
def test_each_epoch_has_every_item_once_and_a_seed_fixes_the_order(n: int, seed: int) -> None:
    drawn = list(islice(endless(range(n), seed), 3 * n))
    assert all(sorted(drawn[i * n : (i + 1) * n]) == list(range(n)) for i in range(3))
    assert drawn == list(islice(endless(range(n), seed), 3 * n))


def test_no_tasks_is_an_error_and_not_an_endless_wait() -> None:
    with pytest.raises(ValueError, match="no tasks"):
        next(endless([], 0))


def test_unrewarded_rollouts_are_no_zeros_in_the_mean() -> None:
    assert mean_reward([result("g", reward=1.0), result("g", reward=None), result("g", reward=0.0)]) == 0.5
    assert mean_reward([result("g", reward=None)]) is None


def test_a_round_that_the_learner_would_never_see_is_an_error() -> None:
    require_trainable([result("g"), result("g", reward=0.0), result("h", "failed", None)])
    with pytest.raises(NothingToTrainError, match="failed"):
        require_trainable([result("g"), result("g", "failed", None), result("h")])


def test_a_round_in_which_every_group_did_alike_waits_for_no_version() -> None:
    assert not teaches([result("g"), result("g"), result("h", reward=0.0), result("h", reward=0.0)])
    assert not teaches([result("g"), result("g", "failed", 0.0)])
    assert teaches([result("g"), result("g", reward=0.0), result("h")])


def test_a_result_is_what_the_trajectory_says() -> None:
    trajectory = Trajectory(
        *("g", "r", 2, 0, "succeeded", True, "train", "policy", 8, "d", 0.5, 2, 9, 3, 4, 10, 20, 1, 5, 9),
        *([], [], [], b'{"q": 1}'),
    )
    made = result_of(trajectory)
    assert (made.rollout_id, made.reward, made.task, made.n_calls) == ("r", 0.5, {"q": 1}, 2)
    assert (made.oldest_version, made.newest_version, made.replies()) == (3, 4, [])


def test_the_learner_takes_every_setting_of_the_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = LightningRL(advantage="rloo", loss="truncated_is", groups_per_step=3, learning_rate=1e-4, lora_rank=4)
    for name, value in environment(wanted).items():
        monkeypatch.setenv(name, value)
    taken = LearnerSettings.load()
    assert (taken.advantage, taken.loss, taken.groups_per_step) == ("rloo", "truncated_is", 3)
    assert taken.learning_rate == 1e-4
    assert taken.lora is not None
    assert (taken.lora.rank, taken.lora.alpha) == (4, 8)


def test_a_running_stack_is_described_by_its_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEYDEN_KAFKA__BOOTSTRAP", "elsewhere:1")
    there = settings_of({"LEYDEN_PREFIX": "x.", "LEYDEN_OBJECTS__SECRET_KEY": "s", "LEYDEN_GATEWAY_URL": "http://g"})
    assert (there.prefix, there.objects.secret_key.get_secret_value()) == ("x.", "s")
    assert settings_env(there)["LEYDEN_OBJECTS__SECRET_KEY"] == "s"


def test_agents_are_found_by_name_and_what_has_none_is_refused() -> None:
    def inner(task: object, llm: object) -> None:
        """Cannot be imported by anybody else."""

    assert spec_of(mean_reward) == "leyden.producers.training.results:mean_reward"
    assert import_root(mean_reward) is None
    with pytest.raises(AgentError, match="top of a module"):
        spec_of(inner)
    with pytest.raises(AgentError, match="takes"):
        leyden.rollout(lambda task: None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(AgentError, match="no function"):
        load("leyden.producers.training.results:nothing")
