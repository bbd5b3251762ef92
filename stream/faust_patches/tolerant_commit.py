"""Faust crashes the app when a commit fails, so each broker restart would restart each worker.

Upstream: faust-streaming 0.15.3, `AIOKafkaConsumerThread._commit`, `except Exception: await self.crash(exc)`. A commit
that is missing costs a replay, nothing else. Can go when retriable errors are no crash.
"""

import logging
from collections.abc import Mapping

from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata, TopicPartition
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

log = logging.getLogger(__name__)


class TolerantCommit(driver.AIOKafkaConsumerThread):
    """A consumer thread that goes on when Kafka does not take a commit."""

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        assigned = self.assignment()
        wanted = {
            TopicPartition(tp.topic, tp.partition): OffsetAndMetadata(offset, "")
            for tp, offset in offsets.items()
            if tp in assigned
        }
        try:
            await self._ensure_consumer().commit(wanted)
        except KafkaError as error:
            log.warning("offsets were not committed, a restart would read more: %r", error)
            return False
        return True
