"""What the gateway counts; units are in the names."""

from prometheus_client import Counter, Gauge, Histogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

CALLS = Counter("leyden_gateway_calls_total", "LLM calls by how they ended", ["status"])
REFUSED = Counter(
    "leyden_gateway_refused_total", "Requests answered with an error of the gateway's own", ["http_status"]
)
EVENTS = Counter("leyden_gateway_events_total", "Events that became safe, by where", ["where"])
EVENTS_LOST = Counter("leyden_gateway_events_lost_total", "Events that a policy allowed to lose, by policy", ["policy"])
EVENTS_UNSAFE = Counter(
    "leyden_gateway_events_unsafe_total", "Events that are neither in Kafka nor on disk, by what failed", ["reason"]
)
PARKED = Counter("leyden_gateway_parked_total", "Events too large for Kafka, parked in the object store")
TOKENS = Counter("leyden_gateway_tokens_total", "Tokens of captured calls", ["kind"])
IN_FLIGHT = Gauge("leyden_gateway_in_flight_calls", "Calls between their request and their end")
CALL_SECONDS = Histogram("leyden_gateway_call_seconds", "From the request to its end", buckets=_SECONDS)
ACK_SECONDS = Histogram("leyden_gateway_ack_seconds", "From an event to its acknowledgement", buckets=_SECONDS)
ENGINE_RETRIES = Counter("leyden_gateway_engine_retries_total", "Attempts to reach an engine that was away")
SPOOL_BYTES = Gauge("leyden_gateway_spool_bytes", "Bytes of events on disk that Kafka does not have yet")
SPOOL_EVENTS = Counter("leyden_gateway_spooled_total", "Events that the disk spool took")
SPOOL_CORRUPT = Counter("leyden_gateway_spool_corrupt_total", "Spool files set aside because they could not be read")
ATTEMPTS = Gauge("leyden_gateway_attempts_known", "Attempts remembered")
