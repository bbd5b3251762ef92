"""Records as the audit's facts. Pure."""

import hashlib

import orjson

from ...avro import (
    EventHead,
    LLMCallHead,
    Reward,
    RolloutEnded,
    RolloutStarted,
    Trajectory,
    TransitionBatch,
    decode_head,
    graded,
)
from ...avro.schemas import SchemaStore
from ...infra.errors import LeydenError
from ...infra.manifest import Manifest
from .batches import BatchSeen, Rollout
from .facts import (
    CallSeen,
    EndedSeen,
    LedgerLine,
    MemberSeen,
    Outcome,
    RewardSeen,
    StartedSeen,
    TrainedSeen,
    TrajectorySeen,
)


class LedgerError(LeydenError):
    """A ledger holds a line that is none; the message names file and line."""


def of_ledger(line: bytes, where: str) -> LedgerLine:
    """One line of a ledger. Raises LedgerError."""
    try:
        raw = orjson.loads(line)
        return LedgerLine(str(raw["rollout_id"]), int(raw["attempt"]), str(raw["response_id"]), int(raw["ts_ms"]))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"{where}: not a line of a ledger: {error}") from error


def of_event(event: EventHead, partition: int, offset: int) -> CallSeen | RewardSeen | StartedSeen | EndedSeen | None:
    """None for bodies that the audit holds against nothing (notes, deadlines)."""
    at = {"partition": partition, "offset": offset, "ts_ms": event.ts_ms}
    who = (event.rollout_id, event.attempt, event.event_id)
    match event.body:
        case LLMCallHead() as c:
            return CallSeen(
                *who, c.call_id, c.response_id, c.agent, c.request_digest, c.retry_count, c.status, c.started_us, **at
            )
        case Reward() as r:
            return RewardSeen(*who, event.ts_ms, r.value, r.key, r.call_id, partition, offset)
        case RolloutStarted() as s:
            return StartedSeen(*who, s.claim_id, s.purpose, s.group_id, s.group_size, **at)
        case RolloutEnded() as e:
            return EndedSeen(*who, e.claim_id, e.status, e.n_calls, e.will_retry, **at)
        case _:
            return None


def of_trajectory(whole: Trajectory, raw: bytes, partition: int, offset: int, schemas: SchemaStore) -> TrajectorySeen:
    """`raw` is the record as it lies in the topic, `whole` what it stands for."""
    return TrajectorySeen(
        rollout_id=whole.rollout_id,
        attempt=whole.attempt,
        revision=whole.revision,
        content=hashlib.blake2b(raw, digest_size=16).digest(),
        status=whole.status,
        final=whole.final,
        purpose=whole.purpose,
        policy=whole.policy,
        group_id=whole.group_id,
        group_size=whole.group_size,
        reward=whole.reward,
        partition=whole.partition,
        first_offset=whole.first_offset,
        last_offset=whole.last_offset,
        calls=tuple(decode_head(call, schemas).event_id for call in whole.calls),
        at_partition=partition,
        at_offset=offset,
    )


def of_batch(batch: TransitionBatch, offset: int) -> BatchSeen:
    """The batch as the manifests are held against it."""
    members = tuple(((m.rollout_id, m.attempt, m.revision), graded(m.status, m.reward)) for m in batch.members)
    return BatchSeen(batch.group_id, batch.revision, offset, members)


def of_members(batch: TransitionBatch, offset: int, outcomes: dict[Rollout, tuple[Outcome, ...]]) -> list[MemberSeen]:
    """One fact a member."""
    return [
        MemberSeen(
            rollout_id=m.rollout_id,
            attempt=m.attempt,
            revision=m.revision,
            group_id=batch.group_id,
            batch_revision=batch.revision,
            batch_offset=offset,
            at_partition=m.partition,
            at_offset=m.offset,
            outcomes=outcomes[m.rollout_id, m.attempt, m.revision],
        )
        for m in batch.members
    ]


def of_manifest(manifest: Manifest) -> list[TrainedSeen]:
    """One fact a rollout that the version trained on."""
    return [
        TrainedSeen(rollout_id, attempt, revision, manifest.version, b.group_id, b.revision, b.offset)
        for b in manifest.batches
        if b.outcome == "trained"
        for rollout_id, attempt, revision in b.rollouts
    ]
