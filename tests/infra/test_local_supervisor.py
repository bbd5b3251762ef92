"""The supervisor: crashes are shown and swept up after, restarts back off, readiness is asked for."""

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from leyden.infra.local.processes import ProcessSpec
from leyden.infra.local.supervisor import LONGEST_BACKOFF_S, Phase, StackError, Supervisor, backoff_s

ORPHAN = "import os, time; os.fork() or time.sleep(600); print('child', os.getpid(), flush=True); time.sleep(600)"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def supervisor(tmp_path: Path, said: list[str]) -> Iterator[Supervisor]:
    one = Supervisor(tmp_path, said.append)
    yield one
    one.close()


def python(name: str, program: str, **more: object) -> ProcessSpec:
    return ProcessSpec(name, (sys.executable, "-u", "-c", program), **more)  # type: ignore[arg-type]


def wait_until(condition: object, what: str, timeout_s: float = 20.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


def test_backoff_grows_and_is_bounded() -> None:
    waits = [backoff_s(n) for n in range(12)]
    assert waits == sorted(waits)
    assert waits[0] == 0.5
    assert waits[-1] == LONGEST_BACKOFF_S


def test_a_crash_is_shown_with_the_end_of_its_log_and_started_again(supervisor: Supervisor, said: list[str]) -> None:
    supervisor.add(python("crasher", "print('the reason'); raise SystemExit(3)"))
    wait_until(lambda: supervisor.status("crasher").restarts >= 2, "two restarts")
    assert "crasher ended with exit code 3" in said[0]
    assert "the reason" in said[0]


def test_what_a_killed_process_started_is_gone_before_it_starts_again(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.add(python("parent", ORPHAN))
    log = tmp_path / "parent.log"
    wait_until(lambda: log.exists() and "child" in log.read_text(), "the child")
    child = int(log.read_text().split()[1])
    killed = supervisor.kill("parent")
    wait_until(lambda: supervisor.status("parent").id != killed, "a new parent")
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"


def test_a_process_is_ready_when_its_probe_says_so(supervisor: Supervisor, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    supervisor.add(python("slow", "import time; time.sleep(600)", ready=lambda: None if flag.exists() else "no flag"))
    with pytest.raises(StackError, match=r"slow is not ready after 0 s: no flag.*slow\.log"):
        supervisor.wait_ready("slow", 0.4)
    flag.touch()
    supervisor.wait_ready("slow", 5.0)
    assert supervisor.status("slow").phase is Phase.READY


def test_a_requested_stop_is_no_crash_and_lasts_until_resume(supervisor: Supervisor, said: list[str]) -> None:
    supervisor.add(python("steady", "import time; time.sleep(600)"))
    wait_until(lambda: supervisor.status("steady").id is not None, "the start")
    first = supervisor.status("steady").id
    supervisor.stop(["steady"])
    assert supervisor.status("steady").phase is Phase.STOPPED
    supervisor.resume("steady")
    assert supervisor.status("steady").id != first
    assert supervisor.status("steady").restarts == 0
    assert said == []


def test_a_signal_that_does_not_end_a_process_leaves_it_alone(supervisor: Supervisor, tmp_path: Path) -> None:
    program = (
        "import signal, time; signal.signal(signal.SIGUSR1, lambda *_: print('usr1')); print('up'); time.sleep(600)"
    )
    supervisor.add(python("steady", program))
    log = tmp_path / "steady.log"
    wait_until(lambda: log.exists() and "up" in log.read_text(), "the start")
    reached = supervisor.kill("steady", signal.SIGUSR1)
    wait_until(lambda: "usr1" in log.read_text(), "the signal")
    assert supervisor.status("steady").id == reached
    assert supervisor.status("steady").restarts == 0


def test_an_unknown_process_is_named_with_those_that_exist(supervisor: Supervisor) -> None:
    supervisor.add(python("known", "pass"))
    with pytest.raises(StackError, match="no process typo; there are known"):
        supervisor.status("typo")
