"""compose.yaml: it parses, is whole, and starts the roles and the engine as the local stack does."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from leyden.infra.local import fetch
from leyden.infra.local.models import SMOLLM2
from leyden.infra.local.services import EngineSpec, engine_process
from leyden.infra.local.settings import UpSettings
from leyden.infra.settings import RoleSettings
from leyden.learner.settings import LearnerSettings
from leyden.producers.gateway.settings import GatewaySettings
from leyden.producers.runner.settings import RunnerSettings
from leyden.serving.settings import ReloaderSettings

FOLDER = Path(__file__).parents[2] / "infra" / "deploy"
COMPOSE = FOLDER / "compose.yaml"
PER_MACHINE = ("--model", "--host", "--port", "--kv-cache-memory-bytes")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE.read_text())


def flags(argv: list[str]) -> dict[str, str]:
    """--name=value and --name value alike; a flag without a value has an empty one."""
    pairs = re.findall(r"(--[\w-]+)[= ]?((?!--)\S*)", " ".join(argv))
    return {name: value for name, value in pairs if name not in PER_MACHINE}


def test_it_has_the_services_and_roles_that_leyden_up_starts(compose: dict[str, Any]) -> None:
    roles = UpSettings.model_fields["roles"].default
    assert set(compose["services"]) == {"kafka", "minio", "topics", "model", "engine", *roles}
    for name in roles:
        assert compose["services"][name]["command"] == [name]


def test_the_engine_gets_the_flags_of_the_local_stack(compose: dict[str, Any]) -> None:
    local = engine_process(EngineSpec(Path("/model"), dtype="bfloat16"), 8000, Path("/cache")).argv
    assert flags(compose["services"]["engine"]["command"]) == flags([a for a in local if a != "-m"][2:])


def test_every_leyden_variable_is_a_setting(compose: dict[str, Any]) -> None:
    known = set(variables(RoleSettings))
    for model in (GatewaySettings, RunnerSettings, LearnerSettings, ReloaderSettings):
        known |= set(variables(model))
    for name, service in compose["services"].items():
        used = {key for key in service.get("environment", {}) if key.startswith("LEYDEN_")}
        assert used <= known, name


def variables(model: type[RoleSettings]) -> Iterator[str]:
    """LEYDEN_* names that `model` reads."""
    for key, field in model.model_fields.items():
        yield f"LEYDEN_{key}".upper()
        for inner in getattr(field.annotation, "model_fields", {}):
            yield f"LEYDEN_{key}__{inner}".upper()


def test_what_is_referred_to_exists(compose: dict[str, Any]) -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", (FOLDER / "Dockerfile").read_text(), re.M))
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in compose["volumes"], name
        for other in service.get("depends_on", {}):
            assert other in compose["services"], name
        if "build" in service:
            assert service["build"]["target"] in stages
            assert (COMPOSE.parent / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_versions_are_those_of_the_local_stack(compose: dict[str, Any]) -> None:
    assert compose["services"]["kafka"]["image"] == f"apache/kafka:{fetch.KAFKA_VERSION}"
    assert f"minio@{fetch.MINIO_VERSION}" in (FOLDER / "Dockerfile").read_text()
    assert compose["services"]["learner"]["environment"]["LEYDEN_MODEL"] == f"/models/{SMOLLM2}"


def test_docker_compose_accepts_it() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("no docker compose here")
    checked = subprocess.run(
        [docker, "compose", "-f", str(COMPOSE), "config", "--quiet"], capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stderr.decode()
