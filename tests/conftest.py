"""What tests share: one Kafka, one MinIO and, on demand, one vLLM a session; a prefix of its own a test."""

import json
import secrets
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from leyden.infra.local.models import tiny_model
from leyden.infra.local.stack import EngineSpec, RunningStack, StackSpec, start
from leyden.infra.objects import ObjectStore
from leyden.infra.settings import EngineSettings, KafkaSettings, ObjectSettings, RoleSettings
from pydantic import SecretStr

RELOAD_TOKEN = "token-of-the-tests"


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Kafka and MinIO on free ports, nothing created in them."""
    with start(StackSpec(tmp_path_factory.mktemp("services"), RoleSettings(), apply_topics=False)) as stack:
        yield stack


@pytest.fixture(scope="session")
def kafka_settings(services: RunningStack) -> KafkaSettings:
    """The session's Kafka, 4 partitions."""
    return services.settings.kafka


@pytest.fixture(scope="session")
def kafka_bootstrap(kafka_settings: KafkaSettings) -> str:
    """host:port of the session's Kafka."""
    return kafka_settings.bootstrap


@pytest.fixture
def deployment_prefix() -> str:
    """Prefix of topics and groups that no other test has."""
    return f"t{secrets.token_hex(4)}."


@pytest.fixture
def minio_settings(services: RunningStack, deployment_prefix: str) -> ObjectSettings:
    """The session's MinIO with an empty bucket of this test."""
    settings = services.settings.objects.model_copy(update={"bucket": deployment_prefix.rstrip(".") + "-bucket"})
    ObjectStore(settings).ensure_bucket()
    return settings


@pytest.fixture
def deployment(
    kafka_settings: KafkaSettings, minio_settings: ObjectSettings, deployment_prefix: str, tmp_path: Path
) -> RoleSettings:
    """Settings of a deployment of this test's own; `infra.deployment.apply` creates its topics."""
    return RoleSettings(
        prefix=deployment_prefix, kafka=kafka_settings, objects=minio_settings, state_dir=tmp_path / "state"
    )


@pytest.fixture(scope="session")
def tiny_model_dir() -> Path:
    """A random Llama of under a million parameters."""
    return tiny_model()


@pytest.fixture(scope="session")
def engine_stack(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Iterator[RunningStack]:
    """vLLM with the tiny model in float32; its process is `engine`."""
    spec = EngineSpec(tiny_model_dir, dtype="float32", kv_cache_bytes=64 << 20, reload_token=RELOAD_TOKEN)
    stack_spec = StackSpec(
        tmp_path_factory.mktemp("engine"), RoleSettings(), kafka=False, objects=False, engine=spec, apply_topics=False
    )
    with start(stack_spec) as stack:
        stack.wait_ready("engine", 180.0)
        yield stack


@pytest.fixture(scope="session")
def vllm_url(engine_stack: RunningStack) -> str:
    """Root of the session's vLLM, without /v1. What it serves may be any version: see `fresh_engine`."""
    return engine_stack.engine_url


@pytest.fixture(scope="session")
def engine_settings(engine_stack: RunningStack) -> EngineSettings:
    """The session's vLLM with its reload token."""
    return engine_stack.settings.engine


@pytest.fixture
def fresh_engine(engine_settings: EngineSettings, tiny_model_dir: Path) -> EngineSettings:
    """The session's vLLM with the weights and the number (0) of the base model, whatever tests did to it before."""
    with urllib.request.urlopen(f"{engine_settings.url}/leyden/version", timeout=10) as response:
        version = json.load(response)["version"]
    if version != 0:
        token = SecretStr.get_secret_value(engine_settings.reload_token)
        request = urllib.request.Request(
            f"{engine_settings.url}/leyden/reload",
            json.dumps({"version": 0, "path": str(tiny_model_dir)}).encode(),
            {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=60).close()
    return engine_settings
