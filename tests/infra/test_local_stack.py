"""The one-machine stack: what is started, where it is found, what survives a kill, what is left after the end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from leyden.infra import deployment as make
from leyden.infra import kafka
from leyden.infra.local import state
from leyden.infra.local.ports import HIGHEST, LOWEST, free_port, is_free
from leyden.infra.local.stack import RoleSpec, RunningStack, StackError, StackSpec, role_processes, start
from leyden.infra.local.up import down
from leyden.infra.settings import KafkaSettings, ObjectSettings, RoleSettings

# A role that ignores SIGTERM and has a child that does as well; it says when both are there.
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
os.write(1, b"here %d\\n" % os.getpid())
time.sleep(600)
"""
HOST = """
import sys, time
from pathlib import Path
from leyden.infra.local.stack import RoleSpec, StackSpec, start
spec = StackSpec(Path(sys.argv[1]), kafka=False, objects=False, apply_topics=False)
stack = start(spec)
stack.add_role(RoleSpec("stubborn", (sys.executable, "-c", sys.argv[2])))
time.sleep(600)
"""


def bare(folder: Path, **more: object) -> StackSpec:
    """A stack without services."""
    return StackSpec(folder, RoleSettings(), kafka=False, objects=False, apply_topics=False, **more)  # type: ignore[arg-type]


def wait_for_text(file: Path, text: str, times: int = 1, timeout_s: float = 20.0) -> str:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if file.exists() and (said := file.read_text()).count(text) >= times:
            return said
        time.sleep(0.02)
    raise AssertionError(f"{file} does not say {text!r} {times} times")


@pytest.mark.kafka
@pytest.mark.minio
def test_a_deployment_is_created_once_and_checks_clean(deployment: RoleSettings) -> None:
    assert make.apply(deployment)
    assert make.apply(deployment) == []
    assert make.check(deployment) == []


@pytest.mark.kafka
def test_a_killed_kafka_comes_back_at_its_address_with_its_records(
    services: RunningStack, deployment: RoleSettings
) -> None:
    make.apply(deployment)
    topic, producer = f"{deployment.prefix}events", kafka.producer(deployment.kafka)
    kafka.send_and_wait(producer, topic, b"key", b"before")
    restarts = services.status("kafka").restarts
    killed = services.kill("kafka")
    services.wait_ready("kafka", 60.0)
    assert services.status("kafka").id != killed
    assert services.status("kafka").restarts == restarts + 1
    kafka.send_and_wait(producer, topic, b"key", b"after", timeout_s=60.0)
    assert [m.value() for m in kafka.read_all(deployment.kafka, topic)] == [b"before", b"after"]


def test_services_that_are_configured_are_used_and_not_started(tmp_path: Path) -> None:
    settings = RoleSettings(
        kafka=KafkaSettings(bootstrap="broker.example:9092"), objects=ObjectSettings(endpoint="objects.example:9000")
    )
    with start(StackSpec(tmp_path, settings, apply_topics=False)) as stack:
        assert stack.statuses() == []
        assert stack.env["LEYDEN_KAFKA__BOOTSTRAP"] == "broker.example:9092"
        assert stack.env["LEYDEN_OBJECTS__ENDPOINT"] == "objects.example:9000"


def test_every_replica_of_a_role_has_a_name_a_port_and_a_folder_of_its_own(tmp_path: Path) -> None:
    spec = RoleSpec("r", ("serve", "{port}"), {"AT": "{port}"}, "http://127.0.0.1:{port}/readyz", replicas=3)
    made = role_processes(spec, {"LEYDEN_PREFIX": "p."}, tmp_path)
    assert [process.name for process in made] == ["r-1", "r-2", "r-3"]
    assert len({process.argv for process in made}) == 3
    assert len({process.env["LEYDEN_STATE_DIR"] for process in made}) == 3
    assert all(process.argv[1] == process.env["AT"] for process in made)
    assert all(process.env["LEYDEN_PREFIX"] == "p." for process in made)


def test_free_ports_lie_where_the_kernel_gives_none_away() -> None:
    ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(20):
        port = free_port()
        assert LOWEST <= port < min(HIGHEST, ephemeral)
        assert is_free(port)


def test_the_end_of_a_stack_ends_what_its_processes_started_and_forgets_the_state(tmp_path: Path) -> None:
    child = "import os, time; os.fork(); os.write(1, b'here %d\\n' % os.getpid()); time.sleep(600)"
    stack = start(bare(tmp_path, roles=(RoleSpec("family", (sys.executable, "-c", child)),)))
    said = wait_for_text(tmp_path / "run" / "family.log", "here", times=2)
    pids = [int(line.split()[1]) for line in said.splitlines()]
    assert state.read(tmp_path) is not None
    stack.stop()
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)
    assert state.read(tmp_path) is None


def test_a_second_stack_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    with start(bare(tmp_path, roles=(RoleSpec("one", ("sleep", "600")),))) as stack:
        stack.wait_ready("one")
        wait_for_text(tmp_path / state.FILE, '"ready"')
        with pytest.raises(StackError, match="runs already"):
            start(bare(tmp_path))


@pytest.mark.faults
def test_down_leaves_nothing_after_a_kill_of_the_supervisor(tmp_path: Path) -> None:
    host = subprocess.Popen([sys.executable, "-c", HOST, str(tmp_path), STUBBORN])
    said = wait_for_text(tmp_path / "run" / "stubborn.log", "here", times=2)
    pids = [int(line.split()[1]) for line in said.splitlines()]
    wait_for_text(tmp_path / state.FILE, '"ready"')
    host.kill()
    host.wait()
    with pytest.raises(StackError, match="was killed and left processes"):
        start(bare(tmp_path))
    lines: list[str] = []
    assert down(tmp_path, lines.append, grace_s=1.0)
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)
    assert sum("had to kill" in line for line in lines) == 2
    assert not down(tmp_path, lines.append)


@pytest.mark.faults
def test_processes_that_heed_sigterm_end_with_a_killed_supervisor(tmp_path: Path) -> None:
    polite = "import time; print('here', flush=True); time.sleep(600)"
    host = subprocess.Popen([sys.executable, "-c", HOST, str(tmp_path), polite])
    wait_for_text(tmp_path / "run" / "stubborn.log", "here")
    wait_for_text(tmp_path / state.FILE, '"ready"')
    found = state.read(tmp_path)
    assert found is not None
    os.kill(host.pid, signal.SIGKILL)
    host.wait()
    end = time.monotonic() + 10.0
    while any(leader.alive() for leader in found.sessions) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(leader.alive() for leader in found.sessions)
