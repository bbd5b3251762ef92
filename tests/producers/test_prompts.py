"""Prompt templates as versioned resources."""

import json

import leyden
import pytest
from leyden.infra import deployment as infra_deployment
from leyden.infra.settings import RoleSettings
from leyden.producers.identity import RESOURCES
from leyden.producers.prompts import PromptError


def test_placeholders_are_filled_and_a_missing_one_is_named() -> None:
    prompt = leyden.PromptTemplate("greet", "Hello {name}")
    assert prompt.format(name="Ada") == "Hello Ada"
    with pytest.raises(PromptError, match="name"):
        prompt.format()


def test_versions_count_up_and_never_change(deployment: RoleSettings) -> None:
    infra_deployment.apply(deployment)
    with pytest.raises(PromptError, match="ever published"):
        leyden.PromptTemplate.live("greet", deployment)
    first = leyden.PromptTemplate("greet", "Hello {name}").publish(deployment)
    again = leyden.PromptTemplate("greet", "Hello {name}").publish(deployment)
    second = leyden.PromptTemplate("greet", "Good day {name}").publish(deployment)
    other = leyden.PromptTemplate("part", "Bye").publish(deployment)
    assert [p.version for p in (first, again, second, other)] == [1, 1, 2, 1]
    assert leyden.PromptTemplate.live("greet", deployment) == second


def test_a_rollout_keeps_the_version_that_its_task_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    given = leyden.PromptTemplate("greet", "Hello {name}", 7)
    monkeypatch.setenv(RESOURCES, json.dumps({"greet": given.to_json()}))
    assert leyden.PromptTemplate.live("greet") == given
