"""A trajectory from the topic becomes an episode to learn from."""

from collections.abc import Callable

import numpy as np

from ..avro import Event, LLMCall, Trajectory, decode, unpack_floats, unpack_ids
from ..avro.schemas import SchemaStore
from .types import Episode, Transition


class UnusableError(ValueError):
    """An episode that cannot be trained; the message is the reason as it stands in the manifest."""


def episode_of(
    trajectory: Trajectory,
    reward: float,
    schemas: SchemaStore,
    unpark: Callable[[Event], Event],
    agents: list[str] | None,
    max_tokens: int,
) -> Episode:
    """The completed calls of `trajectory`, of the named agents. Raises UnusableError: too_long or misaligned."""
    transitions = []
    for encoded in trajectory.calls:
        event = unpark(decode(encoded, Event, schemas))
        call = event.body
        if not isinstance(call, LLMCall) or call.status != "completed":
            continue
        if agents is not None and call.agent not in agents:
            continue
        transitions.append(_transition(call, max_tokens))
    return Episode(trajectory.rollout_id, trajectory.attempt, trajectory.revision, reward, tuple(transitions))


def _transition(call: LLMCall, max_tokens: int) -> Transition:
    completion, logprobs = unpack_ids(call.completion_ids), unpack_floats(call.logprobs)
    prompt = unpack_ids(call.prompt_ids)
    if len(completion) != len(logprobs) or not len(prompt):
        raise UnusableError("misaligned")
    if not np.isfinite(logprobs).all():
        raise UnusableError("non_finite_logprobs")
    if len(prompt) + len(completion) > max_tokens:
        raise UnusableError("too_long")
    return Transition(
        call_id=call.call_id,
        agent=call.agent,
        prompt_ids=prompt,
        completion_ids=completion,
        logprobs=logprobs,
        temperature=call.temperature,
        version=min(call.version_start, call.version_end),
    )
