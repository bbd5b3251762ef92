"""The events that the gateway writes, made from what it saw."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...avro import Event, LLMCall, RolloutEnded, RolloutStarted, new_id, now_ms, now_us
from ...avro.records import Body
from .capture import NOTHING, Captured
from .dialect import Dialect
from .identity import Identity
from .request import Asked

# Every gateway claims with the same id: a second RolloutStarted, of a replica or after a restart, changes nothing.
CLAIM_ID = "gateway"


@dataclass(slots=True)
class Call:
    """One call under way."""

    identity: Identity
    asked: Asked
    dialect: Dialect
    body: Mapping[str, Any]  # of the request, as the agent wrote it
    policy: str
    route: str
    retry_count: int
    call_id: str
    started_us: int
    version_start: int = -1
    version_end: int = -1
    http_status: int = 0
    first_token_us: int | None = None

    def event(self, status: str, captured: Captured = NOTHING, error: str | None = None) -> Event:
        """The call's event; `status` is completed, abandoned or failed."""
        asked = self.asked
        body = LLMCall(
            call_id=self.call_id,
            started_us=self.started_us,
            request_digest=asked.digest,
            retry_count=self.retry_count,
            status=status,
            agent=self.identity.agent,
            response_id=captured.response_id and self.dialect.response_id(captured.response_id),
            version_start=self.version_start,
            version_end=self.version_end,
            n_prompt_tokens=len(captured.prompt_ids) // 4,
            n_completion_tokens=len(captured.completion_ids) // 4,
            ended_us=now_us(),
            first_token_us=self.first_token_us,
            policy=self.policy,
            model=asked.model,
            route=self.route,
            stream=asked.stream,
            http_status=self.http_status,
            error=error,
            finish_reason=captured.finish_reason,
            temperature=asked.temperature,
            top_p=asked.top_p,
            max_tokens=asked.max_tokens,
            prompt_ids=captured.prompt_ids,
            completion_ids=captured.completion_ids,
            logprobs=captured.logprobs,
            request=asked.raw,
            response=captured.response,
        )
        return event(self.identity.rollout_id, self.identity.attempt, body)


def event(rollout_id: str, attempt: int, body: Body) -> Event:
    """An event of now."""
    return Event(new_id(), rollout_id, attempt, now_ms(), body)


def started(identity: Identity, policy: str) -> Event:
    """The start of an attempt that nobody else started: production traffic, a group of its own."""
    body = RolloutStarted(
        claim_id=CLAIM_ID,
        purpose="serve",
        policy=policy,
        group_id=identity.rollout_id,
        group_size=1,
        task_digest="",
        origin="gateway",
    )
    return event(identity.rollout_id, identity.attempt, body)


def ended(rollout_id: str, attempt: int, status: str, n_calls: int | None, error: str | None = None) -> Event:
    """The end of an attempt that the gateway started."""
    return event(rollout_id, attempt, RolloutEnded(CLAIM_ID, status, n_calls, error=error))
