"""Settings of `leyden gateway`."""

from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from ...infra.errors import SettingsError
from ...infra.settings import RoleSettings


class GatewaySettings(RoleSettings):
    """Of `leyden gateway`."""

    gateway_url: str = "http://127.0.0.1:8010"
    """Where runners and agents reach the gateway; it listens there unless gateway_listen says otherwise."""
    gateway_listen: str | None = None
    """host:port to listen on, where that differs from gateway_url (behind a load balancer, in a container)."""
    gateway_alone: bool = True
    """No other gateway serves this deployment: only then does a settled attempt know how many calls it had."""
    max_body_bytes: int = 4 << 20
    """Larger requests are refused (413)."""
    max_note_bytes: int = 512 << 10
    """Larger notes, rewards and ends are refused (413): they must fit one Kafka record."""
    max_completion_tokens: int = 131_072
    """A request that asks for more is refused: its record could outgrow memory and the object store's patience."""
    engine_wait_s: float = 60.0
    """How long a call waits for an engine that refuses connections (it restarts) before it is answered 503."""
    engine_retry_s: float = 0.25
    """Pause between two such attempts."""
    engine_read_timeout_s: float = 600.0
    """Silence of the engine in the middle of an answer after which the call has failed; a hot reload takes seconds."""
    kafka_timeout_s: float = 5.0
    """How long Kafka may take over an event before the disk spool takes it, and all after it."""
    linger_ms: int = 2
    """How long events wait for company in one Kafka request: part of every call's latency."""
    spool_dir: Path | None = None
    """Events that Kafka did not take, one folder a gateway. Default: state_dir/gateway-spool."""
    spool_max_bytes: int = 1 << 30
    """From this size on new calls are answered 503; calls already under way may still be added."""
    spool_segment_bytes: int = 8 << 20
    """Size of one file of the spool: at most that much is sent again after a restart in the middle of draining."""
    on_spool_full: Literal["refuse", "serve_uncaptured"] = "refuse"
    """refuse: 503 with Retry-After. serve_uncaptured: answer, and count the event that is lost."""
    max_attempts_known: int = 100_000
    """Attempts remembered (calls in flight and done, ended or not); the oldest idle ones are forgotten first."""
    shutdown_s: float = 25.0
    """How long calls in flight may take after SIGTERM."""

    @property
    def listen(self) -> tuple[str, int]:
        """(host, port) to listen on. Raises SettingsError where no port is given."""
        parts = urlsplit(f"//{self.gateway_listen}" if self.gateway_listen else self.gateway_url)
        if not parts.hostname or parts.port is None:
            raise SettingsError(
                f"gateway_listen or gateway_url: {self.gateway_listen or self.gateway_url}: no host:port"
            )
        return parts.hostname, parts.port

    @property
    def spool(self) -> Path:
        """The folder of the spool."""
        return self.spool_dir or self.state_dir / "gateway-spool"
