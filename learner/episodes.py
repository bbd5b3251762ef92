"""A trajectory from the topic becomes an episode to learn from."""

from collections.abc import Callable

import numpy as np

from ..avro import Event, LLMCall, Trajectory, unpack_floats, unpack_ids
from ..infra.errors import DecodeError, ObjectLostError
from .sampling import reshaping
from .types import Episode, Transition


class UnusableError(ValueError):
    """An episode that cannot be trained; the message is the reason as it stands in the manifest.

    `fault` says what is broken where something is: that goes to the dead letters.
    """

    def __init__(self, reason: str, fault: str | None = None) -> None:
        super().__init__(reason)
        self.fault = fault


def unusable(error: DecodeError | ObjectLostError, where: str) -> UnusableError:
    """What of an episode cannot be read, now or ever."""
    reason = "undecodable" if isinstance(error, DecodeError) else "payload_lost"
    return UnusableError(reason, f"{where}: {error}")


def episode_of(
    trajectory: Trajectory,
    reward: float,
    read_call: Callable[[bytes], Event],
    agents: list[str] | None,
    max_tokens: int,
) -> Episode:
    """The completed calls of `trajectory`, of the named agents. Raises UnusableError.

    `read_call` decodes one of its calls, from wherever it lies. A call whose sampling cannot be reproduced is left out
    and the rest of its episode kept: often one call of many asks for JSON, its text stays in the later prompts as what
    the policy saw, and the other calls lose no token of theirs and no part in the reward.
    """
    transitions: list[Transition] = []
    reshaped: list[tuple[str, ...]] = []
    for n, encoded in enumerate(trajectory.calls):
        try:
            call = read_call(encoded).body
            if not isinstance(call, LLMCall) or call.status != "completed":
                continue
            if agents is not None and call.agent not in agents:
                continue
            if parameters := reshaping(call):
                reshaped.append(tuple(parameters))
            else:
                transitions.append(_transition(call, max_tokens))
        except (DecodeError, ObjectLostError) as error:
            where = f"rollout {trajectory.rollout_id}, attempt {trajectory.attempt}, call {n}"
            raise unusable(error, where) from error
    return Episode(
        trajectory.rollout_id, trajectory.attempt, trajectory.revision, reward, tuple(transitions), tuple(reshaped)
    )


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
    )
