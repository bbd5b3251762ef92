"""Dead letters on a real Kafka: listed with their place and reason, sent again to where they came from."""

import pytest
from leyden.infra import deadletters, kafka, topics
from leyden.infra.settings import RoleSettings
from leyden.stream import dead_letters

pytestmark = pytest.mark.kafka


@pytest.fixture
def put_aside(deployment: RoleSettings) -> RoleSettings:
    """A deployment with two letters: one with its record, one whose record was too large for it."""
    topics.apply(kafka.admin(deployment.kafka), deployment.prefix, deployment.kafka)
    producer = kafka.producer(deployment.kafka, linger_ms=0)
    events = deployment.prefix + topics.EVENTS
    small = kafka.send_and_wait(producer, events, b"key", b"not a record")
    large_value = b"x" * (deadletters.MAX_VALUE_BYTES + 1)
    large = kafka.send_and_wait(producer, events, b"large", large_value)
    for place, key, value, reason in (
        (small, b"key", b"not a record", "undecodable"),
        (large, b"large", large_value, "too_large"),
    ):
        letter = deadletters.dead_letter("assemble", reason, "why", events, *place, key, value)
        deadletters.send(letter, producer, deployment.prefix)
    return deployment


def test_letters_are_listed_with_place_and_reason_and_filtered(put_aside: RoleSettings) -> None:
    rows = list(dead_letters.read(put_aside))
    assert [row.letter.reason for row in rows] == ["undecodable", "too_large"]
    text = "\n".join(dead_letters.lines(rows))
    assert f"{put_aside.prefix}events/" in text
    assert "in topic" in text
    assert [row.offset for row in dead_letters.read(put_aside, reason="too_large")] == [1]
    assert not list(dead_letters.read(put_aside, role="learner"))


def test_a_record_sent_again_lands_in_its_partition_also_where_the_letter_had_no_room_for_it(
    put_aside: RoleSettings,
) -> None:
    sent = dead_letters.resend(put_aside, [0, 1])
    events = list(kafka.read_all(put_aside.kafka, put_aside.prefix + topics.EVENTS))
    for row in sent:
        same = [m for m in events if (m.partition(), m.key()) == (row.letter.partition, row.letter.key)]
        assert len(same) == 2
        assert same[0].value() == same[1].value()


def test_an_unknown_letter_is_refused_before_anything_is_sent(put_aside: RoleSettings) -> None:
    with pytest.raises(dead_letters.DeadLetterError, match=r"\[7\]"):
        dead_letters.resend(put_aside, [0, 7])
    assert len(list(kafka.read_all(put_aside.kafka, put_aside.prefix + topics.EVENTS))) == 2
