"""`leyden dead-letters`: list what roles put aside, and send it again once the cause is gone."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from confluent_kafka import TopicPartition

from ..avro import DeadLetter, decode
from ..infra import kafka, topics
from ..infra.errors import DecodeError, LeydenError
from ..infra.settings import KafkaSettings, RoleSettings

FETCH_TIMEOUT_S = 20.0


class DeadLetterError(LeydenError):
    """A letter is not there, or its record is gone; the message names its offset."""


@dataclass(frozen=True, slots=True)
class Row:
    """One letter; `offset` is its own in the topic of dead letters and names it in commands."""

    offset: int
    letter: DeadLetter


def read(settings: RoleSettings, reason: str | None = None, role: str | None = None) -> Iterator[Row]:
    """All letters in the order of the log, or those of one reason or role. Raises KafkaUnavailableError."""
    for message in kafka.read_all(settings.kafka, settings.prefix + topics.DEAD_LETTERS):
        offset = message.offset() or 0
        try:
            letter = decode(message.value() or b"", DeadLetter)
        except DecodeError as error:
            raise DeadLetterError(f"offset {offset} of {settings.prefix + topics.DEAD_LETTERS}: {error}") from error
        if (reason is None or letter.reason == reason) and (role is None or letter.role == role):
            yield Row(offset, letter)


def lines(rows: Iterable[Row]) -> Iterator[str]:
    """A table for a terminal."""
    yield f"{'letter':>8}  {'when':<20} {'role':<10} {'reason':<16} {'record':<36} {'bytes':>8}  detail"
    for row in rows:
        at = row.letter
        when = datetime.fromtimestamp(at.ts_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        place = f"{at.topic}/{at.partition}/{at.offset}"
        size = "in topic" if at.value is None else str(len(at.value))
        yield f"{row.offset:>8}  {when:<20} {at.role:<10} {at.reason:<16} {place:<36} {size:>8}  {at.detail[:120]}"


def resend(settings: RoleSettings, offsets: Collection[int]) -> list[Row]:
    """Send the records of these letters to their topic again, each acknowledged; returns their rows.

    The record gets a new offset in its old partition and is handled as if it had arrived now; readers drop it where
    they had taken it after all, since its ids are the old ones. The letter stays. Raises DeadLetterError before
    anything was sent where a letter is unknown, or where a record was too large for its letter and is gone.
    """
    rows = [row for row in read(settings) if row.offset in offsets]
    missing = sorted(set(offsets) - {row.offset for row in rows})
    if missing:
        raise DeadLetterError(f"no dead letters at offsets {missing}: leyden dead-letters lists them")
    values = [row.letter.value if row.letter.value is not None else _fetch(settings.kafka, row) for row in rows]
    producer = kafka.producer(settings.kafka, linger_ms=0)
    for row, value in zip(rows, values, strict=True):
        kafka.send_and_wait(producer, row.letter.topic, row.letter.key, value, row.letter.partition)
    return rows


def _fetch(settings: KafkaSettings, row: Row) -> bytes:
    """The record itself, for a letter that had no room for it."""
    at = row.letter
    reader = kafka.consumer(settings, "leyden-dead-letters")
    try:
        reader.assign([TopicPartition(at.topic, at.partition, at.offset)])
        message = reader.poll(FETCH_TIMEOUT_S)
        value = message.value() if message is not None and message.error() is None else None
        if message is None or value is None or message.offset() != at.offset:
            raise DeadLetterError(f"letter {row.offset}: {at.topic}/{at.partition}/{at.offset} is gone from its topic")
        return value
    finally:
        reader.close()
