"""Payloads of open keys, bounded by bytes; what was evicted is read from Kafka again."""

from collections import OrderedDict
from collections.abc import Iterable

from confluent_kafka import OFFSET_INVALID, TopicPartition

from ..avro.errors import LeydenError
from ..infra import kafka
from ..infra.settings import KafkaSettings


class PayloadLostError(LeydenError):
    """A record that an open or closed key refers to is no longer in its topic; the message names it."""


class PayloadCache:
    """(partition, offset) -> value, the oldest leave first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._values: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self.n_bytes = 0

    def put(self, partition: int, offset: int, value: bytes) -> None:
        """Keep a value."""
        self._values[partition, offset] = value
        self.n_bytes += len(value)
        while self.n_bytes > self._limit and self._values:
            _, old = self._values.popitem(last=False)
            self.n_bytes -= len(old)

    def get(self, partition: int, offsets: Iterable[int]) -> tuple[dict[int, bytes], list[int]]:
        """(values that are here, offsets that are not)."""
        found: dict[int, bytes] = {}
        missing: list[int] = []
        for offset in offsets:
            value = self._values.get((partition, offset))
            if value is None:
                missing.append(offset)
            else:
                found[offset] = value
        return found, missing

    def drop_partition(self, partition: int) -> None:
        """Forget a partition that was taken away."""
        for place in [p for p in self._values if p[0] == partition]:
            self.n_bytes -= len(self._values.pop(place))


class Refetch:
    """Reads single records of the source topic again. Not thread-safe: one caller at a time."""

    # Reading through is cheaper than seeking while the gap is smaller than about one fetch.
    READ_THROUGH = 500

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self._topic = topic
        self._consumer = kafka.consumer(
            settings, "leyden-refetch", **{"auto.offset.reset": "error", "fetch.wait.max.ms": 20}
        )

    def read(self, partition: int, offsets: list[int], timeout_s: float = 30.0) -> dict[int, bytes]:
        """Values at ascending offsets. Raises PayloadLostError where one is gone."""
        found: dict[int, bytes] = {}
        position = OFFSET_INVALID
        for wanted in offsets:
            if position == OFFSET_INVALID or not 0 <= wanted - position <= self.READ_THROUGH:
                self._consumer.assign([TopicPartition(self._topic, partition, wanted)])
            position = wanted - 1
            value = None
            while position < wanted:
                position, value = self._next(partition, wanted, timeout_s)
            if position != wanted or value is None:
                raise PayloadLostError(f"topic {self._topic}, partition {partition}, offset {wanted} is gone")
            position += 1
            found[wanted] = value
        self._consumer.unassign()
        return found

    def _next(self, partition: int, wanted: int, timeout_s: float) -> tuple[int, bytes | None]:
        message = self._consumer.poll(timeout_s)
        error = message.error() if message is not None else None
        if message is None or error is not None:
            why = error.str() if error is not None else f"nothing came for {timeout_s} s"
            raise PayloadLostError(f"topic {self._topic}, partition {partition}, offset {wanted}: {why}")
        offset = message.offset()
        assert offset is not None
        return offset, message.value()

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()
