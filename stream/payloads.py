"""Payloads of open keys, bounded by bytes; what was evicted is read from Kafka again."""

from collections import OrderedDict
from collections.abc import Iterable

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, Message, TopicPartition

from ..avro.errors import LeydenError
from ..infra import kafka
from ..infra.kafka import KafkaUnavailableError
from ..infra.settings import KafkaSettings

# With auto.offset.reset=error the client says the first where the broker says the second.
_OUT_OF_RANGE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


class PayloadLostError(LeydenError):
    """Kafka says that a record to which a key refers is no longer in its topic; the message names it."""


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
    """Reads records of the source topic again. Not thread-safe: one caller at a time."""

    # Reading through is cheaper than seeking while the gap is smaller than about one fetch.
    READ_THROUGH = 500

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self._topic = topic
        self._consumer = kafka.consumer(
            settings,
            "leyden-refetch",
            # What Faust delivered, it delivered uncommitted; the other level would take such a record for gone.
            **{"auto.offset.reset": "error", "fetch.wait.max.ms": 20, "isolation.level": "read_uncommitted"},
        )

    def read(self, partition: int, offsets: list[int], timeout_s: float = 5.0) -> dict[int, bytes]:
        """Values at ascending offsets.

        Raises PayloadLostError where Kafka says that one is gone, KafkaUnavailableError where it does not answer.
        """
        found: dict[int, bytes] = {}
        position = OFFSET_INVALID
        for wanted in offsets:
            if position == OFFSET_INVALID or not 0 <= wanted - position <= self.READ_THROUGH:
                self._consumer.assign([TopicPartition(self._topic, partition, wanted)])
            position = wanted - 1
            value = None
            while position < wanted:
                message = self._next(partition, wanted, timeout_s)
                if message is None:
                    raise self._lost(partition, wanted)
                position, value = message.offset() or 0, message.value()
            if position != wanted or value is None:
                raise self._lost(partition, wanted)
            position += 1
            found[wanted] = value
        self._consumer.unassign()
        return found

    def first(self, partition: int, wanted: int, timeout_s: float = 5.0) -> int:
        """The first offset from `wanted` on that Kafka still has. Raises KafkaUnavailableError without an answer."""
        self._consumer.assign([TopicPartition(self._topic, partition, wanted)])
        message = self._next(partition, wanted, timeout_s)
        self._consumer.unassign()
        return self._beginning(partition, wanted, timeout_s) if message is None else message.offset() or 0

    def _next(self, partition: int, wanted: int, timeout_s: float) -> Message | None:
        """The next record; None where Kafka says that the log begins behind `wanted`."""
        message = self._consumer.poll(timeout_s)
        if message is None:
            raise KafkaUnavailableError(f"{self._place(partition, wanted)}: nothing came for {timeout_s} s")
        if (error := message.error()) is None:
            return message
        # Such an error can also be about an earlier place than `wanted`, even one of an earlier call.
        if error.code() in _OUT_OF_RANGE and self._beginning(partition, wanted, timeout_s) > wanted:
            return None
        raise KafkaUnavailableError(f"{self._place(partition, wanted)}: {error.str()}")

    def _beginning(self, partition: int, wanted: int, timeout_s: float) -> int:
        try:
            return self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=timeout_s)[0]
        except KafkaException as error:
            raise KafkaUnavailableError(f"{self._place(partition, wanted)}: {error.args[0].str()}") from error

    def _lost(self, partition: int, wanted: int) -> PayloadLostError:
        return PayloadLostError(f"{self._place(partition, wanted)} is gone")

    def _place(self, partition: int, wanted: int) -> str:
        return f"topic {self._topic}, partition {partition}, offset {wanted}"

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()
