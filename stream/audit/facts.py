"""What the audit knows of a deployment: one small record a thing seen, each naming the rollout or group it is about."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """A response that the agent received whole."""

    rollout_id: str
    attempt: int
    response_id: str
    ts_ms: int


@dataclass(frozen=True, slots=True)
class CallSeen:
    """One LLMCall in `events`."""

    rollout_id: str
    attempt: int
    event_id: str
    call_id: str
    response_id: str | None
    agent: str | None
    digest: bytes
    retry_count: int
    status: str
    started_us: int
    partition: int
    offset: int
    ts_ms: int


@dataclass(frozen=True, slots=True)
class RewardSeen:
    """One Reward in `events`."""

    rollout_id: str
    attempt: int
    event_id: str
    ts_ms: int
    value: float
    key: str
    call_id: str | None
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class StartedSeen:
    """One RolloutStarted in `events`."""

    rollout_id: str
    attempt: int
    event_id: str
    claim_id: str
    purpose: str
    group_id: str
    group_size: int
    partition: int
    offset: int
    ts_ms: int


@dataclass(frozen=True, slots=True)
class EndedSeen:
    """One RolloutEnded in `events`."""

    rollout_id: str
    attempt: int
    event_id: str
    claim_id: str
    status: str
    n_calls: int | None  # that the gateway had put into events, where it knew
    will_retry: bool
    partition: int
    offset: int
    ts_ms: int


@dataclass(frozen=True, slots=True)
class TrajectorySeen:
    """One Trajectory in `trajectories`."""

    rollout_id: str
    attempt: int
    revision: int
    content: bytes  # digest of the record's bytes
    status: str
    final: bool
    purpose: str
    policy: str
    group_id: str
    group_size: int
    reward: float | None
    partition: int  # of events
    first_offset: int
    last_offset: int
    calls: tuple[str, ...]  # event ids, in the order of the record
    at_partition: int  # where the record itself lies
    at_offset: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one version says it did with a batch."""

    version: int
    outcome: str  # trained | dropped
    reason: str | None


@dataclass(frozen=True, slots=True)
class MemberSeen:
    """One member of a TransitionBatch in `batches`, with what the versions that consumed the batch say of it."""

    rollout_id: str
    attempt: int
    revision: int
    group_id: str
    batch_revision: int
    batch_offset: int
    at_partition: int  # where the batch says the trajectory lies
    at_offset: int
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class TrainedSeen:
    """A rollout in the list of what a version trained on."""

    rollout_id: str
    attempt: int
    revision: int
    version: int
    group_id: str
    batch_revision: int
    batch_offset: int


RolloutFact = LedgerLine | CallSeen | RewardSeen | StartedSeen | EndedSeen | TrajectorySeen | MemberSeen | TrainedSeen


@dataclass(frozen=True, slots=True)
class GroupMemberSeen:
    """What the audit of one rollout concluded, for the audit of its group."""

    group_id: str
    group_size: int
    rollout_id: str
    succeeded: bool
    graded: bool
    batched: bool
    at_partition: int
    at_offset: int
    ts_ms: int


@dataclass(frozen=True, slots=True)
class GroupExpiredSeen:
    """One GroupExpired in `trajectories`."""

    group_id: str
    as_of_offset: int
    at_partition: int
    at_offset: int


GroupFact = GroupMemberSeen | GroupExpiredSeen
