"""Faust's `Consumer.seek` calls aiokafka, which is not thread-safe, outside of the thread that runs it.

Upstream: faust-streaming 0.15.3, `ThreadDelegateConsumer._seek`. A seek during a fetch deletes the fetched records
under `Fetcher.fetched_records` (seen: KeyError, and the worker crashes). Can go when `_seek` uses `call_thread` as
`seek_wait` does.
"""

from aiokafka.structs import TopicPartition
from faust.transport.drivers import aiokafka as driver
from faust.types import TP


class ThreadSafeSeek(driver.Consumer):
    """A consumer that seeks in the consumer's thread."""

    async def _seek(self, partition: TP, offset: int) -> None:
        await self._thread.call_thread(self._seek_here, TopicPartition(partition.topic, partition.partition), offset)

    async def _seek_here(self, partition: TopicPartition, offset: int) -> None:
        self._thread._ensure_consumer().seek(partition, offset)
