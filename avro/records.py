"""Every record that crosses a topic, as dataclasses; the truth on types and meanings is schemas/*.avsc."""

from dataclasses import dataclass, field
from typing import ClassVar, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """A dataclass that is frozen for the type checker alone: at run time that would make every head a third dearer."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


class Record:
    """What `codec` needs of a record class: the name of its Avro schema."""

    SCHEMA: ClassVar[str]
    __slots__ = ()


@record
class Reference(Record):
    """A value parked in the object store because it is too large for one Kafka record."""

    SCHEMA: ClassVar[str] = "leyden.Reference"
    uri: str
    sha256: bytes
    n_bytes: int


# --- topic `events`, key rollout_id -----------------------------------------------------------------------------------


@record
class RolloutStarted(Record):
    """First event of an attempt; the first one in the log owns the attempt (`claim_id`)."""

    SCHEMA: ClassVar[str] = "leyden.RolloutStarted"
    claim_id: str
    purpose: str  # train | validate | serve
    policy: str
    group_id: str
    group_size: int
    task_digest: str
    origin: str  # runner | gateway
    parent_rollout_id: str | None = None
    timeout_s: float | None = None
    task: bytes | None = None


@record
class LLMCall(Record):
    """One LLM call as the agent meant it, with what the engine reported."""

    SCHEMA: ClassVar[str] = "leyden.LLMCall"
    call_id: str
    started_us: int
    request_digest: bytes
    retry_count: int
    status: str  # completed | abandoned | failed
    agent: str | None
    response_id: str | None
    version_start: int
    version_end: int
    n_prompt_tokens: int
    n_completion_tokens: int
    # --- the head ends here (see codec.decode_head) ---
    ended_us: int
    first_token_us: int | None
    policy: str
    model: str
    route: str
    stream: bool
    http_status: int
    error: str | None
    finish_reason: str | None
    temperature: float
    top_p: float
    max_tokens: int | None
    prompt_ids: bytes  # packed int32, see packing
    completion_ids: bytes  # packed int32
    logprobs: bytes  # packed float32
    request: bytes
    response: bytes
    parked: Reference | None = None


@record
class TokenSpan(Record):
    """Half-open range of completion tokens of one call."""

    SCHEMA: ClassVar[str] = "leyden.TokenSpan"
    start: int
    end: int


@record
class Reward(Record):
    """One reward; among equal keys the greatest (ts_ms, event_id) wins."""

    SCHEMA: ClassVar[str] = "leyden.Reward"
    value: float
    source: str
    key: str
    call_id: str | None = None
    token_span: TokenSpan | None = None


@record
class Note(Record):
    """A message, object, annotation or exception that belongs to the attempt; content is JSON."""

    SCHEMA: ClassVar[str] = "leyden.Note"
    kind: str
    name: str
    content: bytes
    call_id: str | None = None


@record
class RolloutEnded(Record):
    """The end of an attempt, with the number of calls that the gateway had put into Kafka where known."""

    SCHEMA: ClassVar[str] = "leyden.RolloutEnded"
    claim_id: str
    status: str  # succeeded | failed | timeout | cancelled
    n_calls: int | None = None
    will_retry: bool = False
    error: str | None = None


@record
class RolloutExpired(Record):
    """A deadline passed; void if a later event of the attempt lies before `as_of_offset`."""

    SCHEMA: ClassVar[str] = "leyden.RolloutExpired"
    as_of_offset: int
    reason: str  # idle | absolute


Body = RolloutStarted | LLMCall | Reward | Note | RolloutEnded | RolloutExpired


@record
class Event(Record):
    """One thing that happened in one attempt of one rollout."""

    SCHEMA: ClassVar[str] = "leyden.Event"
    event_id: str
    rollout_id: str
    attempt: int
    ts_ms: int
    body: Body


@record
class LLMCallHead(Record):
    """The leading fields of LLMCall: all that the assembler needs of a call."""

    SCHEMA: ClassVar[str] = "leyden.LLMCall"
    call_id: str
    started_us: int
    request_digest: bytes
    retry_count: int
    status: str
    agent: str | None
    response_id: str | None
    version_start: int
    version_end: int
    n_prompt_tokens: int
    n_completion_tokens: int


@record
class NoteHead(Record):
    """The leading fields of Note."""

    SCHEMA: ClassVar[str] = "leyden.Note"
    kind: str
    name: str


BodyHead = RolloutStarted | LLMCallHead | Reward | NoteHead | RolloutEnded | RolloutExpired


@record
class EventHead(Record):
    """An Event without the payload of a call or a note."""

    SCHEMA: ClassVar[str] = "leyden.Event"
    event_id: str
    rollout_id: str
    attempt: int
    ts_ms: int
    body: BodyHead


# --- topic `trajectories`, key group_id -------------------------------------------------------------------------------


@record
class MergedReward(Record):
    """A reward that won its key."""

    SCHEMA: ClassVar[str] = "leyden.MergedReward"
    event_id: str
    ts_ms: int
    value: float
    source: str
    key: str
    call_id: str | None = None
    span_start: int | None = None
    span_end: int | None = None


@record
class Trajectory(Record):
    """One attempt, assembled: calls in order as encoded Events, rewards merged. Copies of a revision are byte-equal."""

    SCHEMA: ClassVar[str] = "leyden.Trajectory"
    group_id: str
    rollout_id: str
    attempt: int
    revision: int
    status: str  # succeeded | failed | timeout | cancelled | expired
    final: bool
    purpose: str
    policy: str
    group_size: int
    task_digest: str
    reward: float | None
    n_calls: int
    n_completion_tokens: int
    oldest_version: int
    newest_version: int
    started_ms: int
    ended_ms: int
    partition: int
    first_offset: int
    last_offset: int
    rewards: list[MergedReward]
    calls: list[bytes]
    notes: list[bytes]
    task: bytes | None = None
    parked: Reference | None = None


@record
class GroupExpired(Record):
    """A group's deadline passed; void if a later record of the group lies before `as_of_offset`."""

    SCHEMA: ClassVar[str] = "leyden.GroupExpired"
    group_id: str
    as_of_offset: int
    reason: str


# --- topic `batches`, one named partition a policy --------------------------------------------------------------------


@record
class Member(Record):
    """One final trajectory of a group, by its place in the topic `trajectories`."""

    SCHEMA: ClassVar[str] = "leyden.Member"
    rollout_id: str
    attempt: int
    revision: int
    partition: int
    offset: int
    status: str
    reward: float | None
    oldest_version: int
    newest_version: int
    n_calls: int
    n_completion_tokens: int


@record
class TransitionBatch(Record):
    """One group ready to be trained; references and small fields, not tokens."""

    SCHEMA: ClassVar[str] = "leyden.TransitionBatch"
    policy: str
    group_id: str
    revision: int
    supersedes: int | None
    purpose: str
    group_size: int
    task_digest: str
    members: list[Member]


# --- topics `checkpoints`, `tasks`, `resources`, `dead-letters` -------------------------------------------------------


@record
class Checkpoint(Record):
    """An announcement; key policy/version for candidate and rolled_back, policy/live for live."""

    SCHEMA: ClassVar[str] = "leyden.Checkpoint"
    policy: str
    version: int
    state: str  # candidate | live | rolled_back
    parent: int | None
    run_id: str
    manifest: str
    manifest_sha256: bytes
    metrics: str
    ts_ms: int


@record
class Task(Record):
    """Work for a runner: one rollout of the agent on `payload` (JSON)."""

    SCHEMA: ClassVar[str] = "leyden.Task"
    rollout_id: str
    group_id: str
    group_size: int
    policy: str
    purpose: str
    task_digest: str
    payload: bytes
    timeout_s: float
    max_attempts: int
    attempt: int = 1
    temperature: float | None = None
    resources: dict[str, str] = field(default_factory=dict)


@record
class Resource(Record):
    """A versioned resource such as a prompt template; content is JSON."""

    SCHEMA: ClassVar[str] = "leyden.Resource"
    name: str
    version: int
    kind: str
    content: bytes
    ts_ms: int


@record
class DeadLetter(Record):
    """A record that could not be processed, with where it came from and why."""

    SCHEMA: ClassVar[str] = "leyden.DeadLetter"
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    role: str
    reason: str
    detail: str
    ts_ms: int
