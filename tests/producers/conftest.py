"""A gateway as a process of its own before any engine, and its events as they stand in Kafka."""

import secrets
import time
from collections.abc import Callable, Iterator

import pytest
from leyden.avro import Event, decode
from leyden.infra import kafka, topics
from leyden.infra.local.stack import RunningStack, StackSpec, role, start
from leyden.infra.settings import EngineSettings, ObjectSettings, RoleSettings

StartGateway = Callable[..., RunningStack]
ReadEvents = Callable[[RunningStack, str, int], list[Event]]


@pytest.fixture(scope="session")
def start_gateway(services: RunningStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartGateway]:
    """`start_gateway(engine, **LEYDEN_ variables)`: a deployment with one gateway in front of `engine`."""
    stacks: list[RunningStack] = []

    def make(engine: EngineSettings, **env: str) -> RunningStack:
        prefix = f"g{secrets.token_hex(4)}."
        objects: ObjectSettings = services.settings.objects.model_copy(update={"bucket": prefix[:-1] + "-bucket"})
        settings = RoleSettings(prefix=prefix, kafka=services.settings.kafka, objects=objects, engine=engine)
        stack = start(StackSpec(tmp_path_factory.mktemp("gateway"), settings, roles=(role("gateway", env=env),)))
        stacks.append(stack)
        stack.wait_ready("gateway")
        return stack

    yield make
    for stack in stacks:
        stack.stop()


@pytest.fixture(scope="session")
def read_events() -> ReadEvents:
    """`read_events(stack, rollout_id, n)`: the rollout's events in log order, waiting until there are n."""

    def read(stack: RunningStack, rollout_id: str, n: int) -> list[Event]:
        settings = stack.settings
        deadline = time.monotonic() + 20
        while True:
            found = [
                decode(message.value() or b"", Event)
                for message in kafka.read_all(settings.kafka, settings.prefix + topics.EVENTS)
                if message.key() == rollout_id.encode()
            ]
            if len(found) >= n or time.monotonic() > deadline:
                assert len(found) >= n, f"{len(found)} of {n} events of {rollout_id}"
                return found

    return read
