"""Agents in processes of their own: results, failures, timeouts, and nothing that outlives the runner."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from leyden.producers.agents import AgentError
from leyden.producers.runner.host_client import HostClient, HostLostError
from leyden.producers.runner.wire import Outcome, Start

AGENT = """
import os, random, subprocess, sys, threading, time

def returns(task, llm):
    return task["value"]

async def returns_later(task, llm):
    return 0.5

def says(task, llm):
    import json, pathlib
    pathlib.Path(task["file"]).write_text(json.dumps(dict(os.environ)))
    return None

def raises(task, llm):
    raise RuntimeError("no tool today")

def dies(task, llm):
    os.kill(os.getpid(), 9)

def hangs(task, llm):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(task["file"], "w") as out:
        out.write(f"{os.getpid()} {child.pid}\\n")
    child.wait()

def draws(task, llm):
    return random.random()

def any_of_them(task, llm):
    return globals()[task["do"]](task, llm)
"""


@pytest.fixture(scope="module")
def agent_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("agent") / "my_agent.py"
    path.write_text(AGENT)
    return path


@pytest.fixture(scope="module")
def host(agent_file: Path) -> Iterator[HostClient]:
    """One host for all tests that leave it alive; the task says which of the agents runs."""
    client = HostClient(f"{agent_file}:any_of_them", "http://127.0.0.1:9", "key", 60.0)
    yield client
    client.close()


def start(do: str, task: Any, timeout_s: float = 30.0, key: str = "r/1") -> Start:
    env = {"LEYDEN_ROLLOUT": "r", "LEYDEN_ATTEMPT": "1", "OPENAI_BASE_URL": "http://127.0.0.1:9/rollout/r/attempt/1/v1"}
    return Start(key, {"do": do, **task}, env, env["OPENAI_BASE_URL"], "key", "policy", timeout_s)


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_the_agent_returns_comes_back(host: HostClient) -> None:
    assert host.run(start("returns", {"value": 0.25})) == Outcome("r/1", "succeeded", 0.25)
    assert host.run(start("returns", {"value": None})) == Outcome("r/1", "succeeded", None)
    assert host.run(start("returns", {"value": True})) == Outcome("r/1", "succeeded", 1.0)
    failed = host.run(start("returns", {"value": "good"}))
    assert failed.status == "failed"
    assert "a number or None" in (failed.error or "")


def test_async_agents_run(host: HostClient) -> None:
    assert host.run(start("returns_later", {})).value == 0.5


def test_an_exception_and_a_dead_process_are_failures_with_a_reason(host: HostClient) -> None:
    raised = host.run(start("raises", {}))
    assert (raised.status, raised.value) == ("failed", None)
    assert "no tool today" in (raised.error or "")
    died = host.run(start("dies", {}))
    assert (died.status, died.value) == ("failed", None)
    assert "SIGKILL" in (died.error or "")


def test_the_agent_has_its_identity_and_no_credentials(
    agent_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEYDEN_KAFKA__SASL_PASSWORD", "secret")
    monkeypatch.setenv("LEYDEN_OBJECTS__SECRET_KEY", "secret")
    with closing(HostClient(f"{agent_file}:says", "http://127.0.0.1:9", "key", 60.0)) as client:
        client.run(start("", {"file": str(tmp_path / "env")}))
    said = (tmp_path / "env").read_text()
    assert "secret" not in said
    assert "/rollout/r/attempt/1/v1" in said


def test_a_timeout_takes_the_agents_subprocesses_with_it(host: HostClient, tmp_path: Path) -> None:
    outcome = host.run(start("hangs", {"file": str(tmp_path / "pids")}, timeout_s=1.5))
    assert outcome.status == "timeout"
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    wait_until(lambda: not any(alive(pid) for pid in pids))


def test_a_kill_ends_one_run_and_not_the_others(host: HostClient, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(host.run, start("hangs", {"file": str(tmp_path / key)}, 60.0, key)) for key in ("one", "two")
        ]
        wait_until(lambda: (tmp_path / "one").exists() and (tmp_path / "two").exists())
        host.kill("one")
        assert runs[0].result(10).status == "cancelled"
        assert not runs[1].done()
        host.kill("two")
        assert runs[1].result(10).status == "cancelled"


def test_rollouts_draw_different_random_numbers(host: HostClient) -> None:
    assert len({host.run(start("draws", {})).value for _ in range(3)}) == 3


def test_an_agent_that_cannot_be_imported_is_refused_with_the_reason(agent_file: Path) -> None:
    with pytest.raises(AgentError, match="no function missing"):
        HostClient(f"{agent_file}:missing", "http://127.0.0.1:9", "key", 60.0)


def test_a_host_that_dies_fails_its_runs_and_takes_them_along(agent_file: Path, tmp_path: Path) -> None:
    client = HostClient(f"{agent_file}:hangs", "http://127.0.0.1:9", "key", 60.0)
    with closing(client), ThreadPoolExecutor(1) as pool:
        run = pool.submit(client.run, start("", {"file": str(tmp_path / "pids")}, 60.0))
        wait_until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().endswith("\n"))
        agent = int((tmp_path / "pids").read_text().split()[0])
        client._process.kill()
        with pytest.raises(HostLostError):
            run.result(10)
        assert not client.alive
    wait_until(lambda: not alive(agent))


RUNNER = """
import sys
from leyden.producers.runner.host_client import HostClient
from leyden.producers.runner.wire import Start
url = "http://127.0.0.1:9/rollout/r/attempt/1/v1"
client = HostClient(sys.argv[1], "http://127.0.0.1:9", "k", 60.0)
client.run(Start("r/1", {"file": sys.argv[2]}, {}, url, "k", "m", 60.0))
"""


def test_agents_do_not_outlive_a_killed_runner(agent_file: Path, tmp_path: Path) -> None:
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, f"{agent_file}:hangs", str(tmp_path / "pids")])
    wait_until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().endswith("\n"), 30.0)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    host_pid = psutil.Process(runner.pid).children()[0].pid
    assert all(alive(pid) for pid in [*pids, host_pid])
    runner.kill()
    runner.wait()
    wait_until(lambda: not any(alive(pid) for pid in [*pids, host_pid]))


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
