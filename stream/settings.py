"""Settings of the stream roles, assemble and group."""

from pydantic import Field

from ..infra.settings import RoleSettings


class StreamSettings(RoleSettings):
    """Both stages share one model: they are the same operator over different records."""

    close_grace_s: float = Field(5.0, ge=0)
    """How long an ended attempt waits for calls that its end counts, or, where the end counts none, for stragglers."""
    idle_timeout_s: float = Field(3600.0, gt=0)
    """An attempt without an end and without an event for this long is closed as expired."""
    absolute_timeout_s: float = Field(86_400.0, gt=0)
    """The same from its start on, where the start names no timeout of its own. Must be shorter than the retention."""
    group_timeout_s: float = Field(3600.0, gt=0)
    """A group without a new trajectory for this long goes on with what it has."""
    min_group: int = Field(2, ge=1)
    """Graded members below which a group is counted and not emitted; groups of one need one."""
    train_on_serve: bool = False
    """Whether rewarded production traffic (purpose `serve`) reaches batches; the learner has a setting of that name."""
    max_replay_events: int = Field(20_000, ge=100)
    """A restart reads at most about this many events of a partition again; older open keys are kept in the table."""
    payload_cache_bytes: int = Field(256 << 20, ge=0)
    """Payloads of open rollouts kept in memory; what is evicted is read from Kafka again when it is needed."""
    recent_closed: int = Field(2000, ge=0)
    """Closed keys a partition whose state stays in memory, so that a reward soon after the end reads nothing again."""
    row_retention_days: int = Field(35, ge=1)
    """How long the table remembers a closed key; longer than the topics' retention, or old events would open anew."""
    stall_timeout_s: float = Field(30.0, gt=0)
    """A worker with work before it and no progress for this long says why and exits, to be started again."""
    session_timeout_s: float = Field(10.0, gt=0)
    """After this long without a heartbeat Kafka gives a worker's partitions to another."""
    chunk_records: int = Field(2000, ge=1)
    """Records of one partition handled between two waits for acknowledgements."""
    fetch_wait_ms: int = Field(50, ge=1)
    """Longest wait of a fetch; measured: 1500 (the library's) stalls partitions that resume, 50 costs nothing."""
