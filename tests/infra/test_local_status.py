"""leyden status, env and doctor: what they say of a stack that runs, of one that was killed, of none."""

from pathlib import Path

import pytest
from leyden.infra import deployment as make
from leyden.infra.local import state
from leyden.infra.local.doctor import examine
from leyden.infra.local.ports import free_port
from leyden.infra.local.stack import RoleSpec, StackError, StackSpec, start
from leyden.infra.local.status import status
from leyden.infra.settings import EngineSettings, RoleSettings


@pytest.fixture
def nowhere() -> EngineSettings:
    return EngineSettings(url=f"http://127.0.0.1:{free_port()}")


def test_without_a_stack_it_says_so(tmp_path: Path) -> None:
    lines: list[str] = []
    assert not status(tmp_path, lines.append)
    assert lines == [f"no stack in {tmp_path}"]
    with pytest.raises(StackError, match="leyden up"):
        state.exports(tmp_path)


@pytest.mark.kafka
def test_it_shows_processes_versions_and_what_does_not_answer(
    deployment: RoleSettings, nowhere: EngineSettings, tmp_path: Path
) -> None:
    make.apply(deployment)
    settings = deployment.model_copy(update={"engine": nowhere})
    lines: list[str] = []
    with start(StackSpec(tmp_path, settings, kafka=False, objects=False, apply_topics=False)) as stack:
        stack.add_role(RoleSpec("idle", ("sleep", "600")))
        stack.wait_ready("idle")
        assert f"export LEYDEN_PREFIX={deployment.prefix}" in state.exports(tmp_path)
        status(tmp_path, lines.append)
    text = "\n".join(lines)
    assert "idle         ready" in text
    assert "engine       does not answer" in text
    assert "policy       policy: live none" in text


def test_the_doctor_looks_at_everything_the_stack_needs_and_fetches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEYDEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    findings = {finding.what: finding for finding in examine(tmp_path)}
    assert {"python", "java", "maven", "go", "uv", "memory", "cache", "state", "ports"} <= findings.keys()
    assert not findings["maven"].ok
    assert "apt-get install maven" in findings["maven"].says
    assert not (tmp_path / "cache").exists()
