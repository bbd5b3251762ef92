"""Records read again from a real Kafka: what is gone is told from what does not come."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from leyden.avro import DeadLetter
from leyden.infra import deployment as deployments
from leyden.infra import kafka, topics
from leyden.infra.kafka import KafkaUnavailableError
from leyden.infra.settings import KafkaSettings, RoleSettings
from leyden.stream.payloads import PayloadLostError, Refetch

from .rollouts import called, ended, rewarded, started
from .test_workers import keyed
from .workers import eventually, produce, read, trajectories, workers

pytestmark = pytest.mark.kafka


@pytest.fixture
def one_partition(deployment: RoleSettings) -> RoleSettings:
    """Topics of one partition, so that offsets are known."""
    one = deployment.model_copy(update={"kafka": deployment.kafka.model_copy(update={"partitions": 1})})
    deployments.apply(one)
    return one


@pytest.fixture
def refetch(one_partition: RoleSettings) -> Iterator[Refetch]:
    """Of events with ten records, of which the first four are deleted."""
    produce(one_partition, topics.EVENTS, [("k", b"%d" % n) for n in range(10)])
    delete_before(one_partition, 4)
    made = Refetch(one_partition.kafka, one_partition.prefix + topics.EVENTS)
    yield made
    made.close()


def delete_before(settings: RoleSettings, offset: int) -> None:
    place = TopicPartition(settings.prefix + topics.EVENTS, 0, offset)
    admin = kafka.admin(settings.kafka)  # must live as long as its futures
    for future in admin.delete_records([place]).values():
        future.result(30)


def test_what_lies_before_the_beginning_of_the_log_is_lost_and_the_rest_is_read(refetch: Refetch) -> None:
    assert refetch.read(0, [4, 7, 9]) == {4: b"4", 7: b"7", 9: b"9"}
    with pytest.raises(PayloadLostError, match=r"events, partition 0, offset 2 is gone"):
        refetch.read(0, [2, 5])
    assert refetch.read(0, [5]) == {5: b"5"}


def test_the_first_offset_that_kafka_still_has(refetch: Refetch) -> None:
    assert [refetch.first(0, wanted) for wanted in (0, 3, 4, 7)] == [4, 4, 4, 7]
    with pytest.raises(KafkaUnavailableError):
        refetch.first(0, 10, timeout_s=1.0)


def test_what_does_not_come_in_time_is_not_lost(refetch: Refetch) -> None:
    with pytest.raises(KafkaUnavailableError, match=r"offset 10: nothing came for 1\.0 s"):
        refetch.read(0, [9, 10], timeout_s=1.0)


def test_a_broker_that_is_away_has_lost_nothing() -> None:
    away = Refetch(KafkaSettings(bootstrap="127.0.0.1:9"), "events")
    with pytest.raises(KafkaUnavailableError):
        away.read(0, [0], timeout_s=1.0)
    away.close()


@pytest.mark.minio
def test_a_reward_after_the_retention_is_a_dead_letter_and_the_worker_goes_on(
    one_partition: RoleSettings, tmp_path: Path
) -> None:
    def rollout(name: str) -> list:
        return keyed(started(name), called(name, 0), rewarded(name, 1.0), ended(name, 1))

    settings = one_partition
    with workers(settings, tmp_path, "assemble", payload_cache_bytes=0, recent_closed=0) as running:
        produce(settings, topics.EVENTS, [*rollout("old"), *rollout("other")])
        eventually(lambda: trajectories(settings), lambda t: len(t) == 2)
        delete_before(settings, 8)
        produce(settings, topics.EVENTS, [*keyed(rewarded("old", 0.5, "late")), *rollout("new")])
        eventually(lambda: [t.rollout_id for t in trajectories(settings)], lambda t: t == ["old", "other", "new"])
        letters = [x for x in read(settings, topics.DEAD_LETTERS) if isinstance(x, DeadLetter)]
        assert [(x.reason, x.partition, x.offset) for x in letters] == [("payload_lost", 0, 8)]
        assert running.alive() == ["assemble"]
