"""Trajectories by their place: across partitions, over wide gaps, and where retention has taken them."""

from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition
from leyden.avro import COMMITTED, Trajectory, encode
from leyden.infra import deployment as deploy
from leyden.infra import kafka, topics
from leyden.infra.objects import ObjectStore
from leyden.infra.parking import park
from leyden.infra.settings import RoleSettings
from leyden.learner.episodes import UnusableError
from leyden.learner.trajectories import SEEK_BEYOND_RECORDS, Found, Place, TrajectoryReader

pytestmark = [pytest.mark.kafka, pytest.mark.minio]


def trajectory(rollout: str, n_bytes: int = 0) -> Trajectory:
    return Trajectory(
        group_id="g",
        rollout_id=rollout,
        attempt=1,
        revision=0,
        status="succeeded",
        final=True,
        purpose="train",
        policy="policy",
        group_size=1,
        task_digest="",
        reward=1.0,
        n_calls=0,
        n_completion_tokens=0,
        oldest_version=0,
        newest_version=0,
        started_ms=0,
        ended_ms=0,
        partition=0,
        first_offset=0,
        last_offset=0,
        rewards=[],
        calls=[bytes(n_bytes)] if n_bytes else [],
        notes=[],
    )


def whole_ones(found: Found) -> dict[Place, Trajectory]:
    assert not [what for what in found.values() if isinstance(what, UnusableError)]
    return {place: what for place, what in found.items() if isinstance(what, Trajectory)}


@pytest.fixture
def write(deployment: RoleSettings) -> Callable[[int, list[bytes]], list[Place]]:
    """Writes records to a partition and says where they lie."""
    deploy.apply(deployment)

    def run(partition: int, values: list[bytes]) -> list[Place]:
        producer = kafka.producer(deployment.kafka)
        places: list[Place] = []
        for value in values:
            producer.produce(
                deployment.prefix + topics.TRAJECTORIES,
                value=value,
                partition=partition,
                on_delivery=lambda error, m: places.append((m.partition() or 0, m.offset() or 0)),
            )
        producer.flush(30)
        return places

    return run


def test_single_records_are_found_in_all_partitions(
    deployment: RoleSettings, write: Callable[[int, list[bytes]], list[Place]]
) -> None:
    objects = ObjectStore(deployment.objects)
    n = 2 * SEEK_BEYOND_RECORDS + 10
    places = write(0, [encode(trajectory(f"a{i}")) for i in range(n)])
    others = write(2, [b"no trajectory", park(trajectory("parked", 5000), objects, limit_bytes=1000)])
    reader = TrajectoryReader(deployment, objects, COMMITTED)
    wanted = [places[3], places[5], places[-1], *others]
    for _ in range(2):
        found = reader.fetch(wanted, timeout_s=30)
        broken = found.pop(others[0])
        assert isinstance(broken, UnusableError)
        assert (str(broken), broken.fault is None) == ("undecodable", False)
        names = {place: whole.rollout_id for place, whole in whole_ones(found).items()}
        assert names == {places[3]: "a3", places[5]: "a5", places[-1]: f"a{n - 1}", others[1]: "parked"}
        assert len(whole_ones(found)[others[1]].calls[0]) == 5000
    reader.close()


def test_what_retention_has_taken_is_missing_and_holds_up_nothing(
    deployment: RoleSettings, write: Callable[[int, list[bytes]], list[Place]]
) -> None:
    first, second = write(1, [encode(trajectory("gone")), encode(trajectory("here"))])
    (third,) = write(3, [encode(trajectory("elsewhere"))])
    gone = [TopicPartition(deployment.prefix + topics.TRAJECTORIES, 1, second[1])]
    admin = kafka.admin(deployment.kafka)
    for future in admin.delete_records(gone).values():
        future.result(30)
    reader = TrajectoryReader(deployment, ObjectStore(deployment.objects), COMMITTED)
    found = reader.fetch([first, third], timeout_s=30)
    assert {whole.rollout_id for whole in whole_ones(found).values()} == {"elsewhere"}
    reader.close()


def test_a_parked_trajectory_whose_object_is_gone_is_lost_and_does_not_hold_up_the_others(
    deployment: RoleSettings, write: Callable[[int, list[bytes]], list[Place]]
) -> None:
    objects = ObjectStore(deployment.objects)
    lost, here = write(0, [park(trajectory("lost", 5000), objects, limit_bytes=1000), encode(trajectory("here"))])
    objects.remove(objects.list_keys("parked/"))
    reader = TrajectoryReader(deployment, objects, COMMITTED)
    found = reader.fetch([lost, here], timeout_s=30)
    reader.close()
    assert str(found.pop(lost)) == "payload_lost"
    assert [whole.rollout_id for whole in whole_ones(found).values()] == ["here"]
