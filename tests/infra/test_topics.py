"""Topics of a real Kafka are held against what the deployment needs."""

import pytest
from confluent_kafka.admin import (
    AlterConfigOpType,  # pyright: ignore[reportPrivateImportUsage] - documented there
    ConfigEntry,  # pyright: ignore[reportPrivateImportUsage]
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)
from leyden.infra import kafka, topics
from leyden.infra.errors import TopicError
from leyden.infra.settings import KafkaSettings


@pytest.fixture
def prefix(kafka_settings: KafkaSettings, deployment_prefix: str) -> str:
    """Of topics as `leyden topics --apply` makes them."""
    topics.apply(kafka.admin(kafka_settings), deployment_prefix, kafka_settings)
    return deployment_prefix


def alter(settings: KafkaSettings, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    admin = kafka.admin(settings)  # must live as long as its futures
    for future in admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]
    ).values():
        future.result(30)


@pytest.mark.kafka
def test_topics_as_they_are_made_are_as_they_are_needed(kafka_settings: KafkaSettings, prefix: str) -> None:
    assert topics.check(kafka.admin(kafka_settings), prefix, kafka_settings) == []


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("topic", "name", "value", "needed"),
    [
        ("events", "cleanup.policy", "compact", "delete"),
        ("trajectories", "cleanup.policy", "compact,delete", "delete"),
        ("checkpoints", "cleanup.policy", "delete", "compact"),
        ("events", "retention.ms", "1000", f"at least {30 * topics.DAY_MS}"),
    ],
)
def test_a_topic_that_would_lose_records_is_refused(
    kafka_settings: KafkaSettings, prefix: str, topic: str, name: str, value: str, needed: str
) -> None:
    alter(kafka_settings, prefix + topic, name, value)
    with pytest.raises(TopicError) as refused:
        topics.require(kafka.admin(kafka_settings), prefix, kafka_settings)
    assert str(refused.value) == f"topic {prefix}{topic} has {name}={value}, this deployment needs {needed}"


@pytest.mark.parametrize("kept_ms", [-1, 30 * topics.DAY_MS, 90 * topics.DAY_MS])
def test_a_longer_retention_is_no_difference(kept_ms: int) -> None:
    (events,) = (s for s in topics.SPECS if s.name == topics.EVENTS)
    config = {"cleanup.policy": "delete", "retention.ms": str(kept_ms), "min.insync.replicas": "1"}
    assert topics.differences(events, config, 1) == []
