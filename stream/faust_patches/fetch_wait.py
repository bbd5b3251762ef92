"""Faust hard-codes a fetch wait of 1500 ms: a partition that resumes waits that long for the fetch under way.

Upstream: faust-streaming 0.15.3, `AIOKafkaConsumerThread._create_worker_consumer`. Can go when it is a setting.
"""

from typing import Any

from faust.transport.drivers import aiokafka as driver


class FetchWait(driver.AIOKafkaConsumerThread):
    """A consumer thread whose transport names the fetch wait in `fetch_wait_ms`."""

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        consumer._fetch_max_wait_ms = transport.fetch_wait_ms
        return consumer
