"""A plain answer of the engine, taken apart: what was sampled, and what the agent may see."""

from dataclasses import dataclass
from typing import Any

import orjson

from ...avro import pack_floats, pack_ids
from ...infra.errors import LeydenError
from .request import Asked
from .shape import Shape


class CaptureError(LeydenError):
    """The engine's answer lacks what training needs; it is misconfigured, or no vLLM."""


@dataclass(frozen=True, slots=True)
class Captured:
    """What one call produced. Ids are packed int32, logprobs packed float32, one a completion token."""

    response_id: str | None
    finish_reason: str | None
    prompt_ids: bytes
    completion_ids: bytes
    logprobs: bytes
    response: bytes  # the JSON that the agent sees; of a stream, the chunks' sum


NOTHING = Captured(None, None, b"", b"", b"", b"")


def capture_plain(payload: bytes, asked: Asked) -> Captured:
    """Take an answer apart. Raises CaptureError."""
    try:
        answer = orjson.loads(payload)
        (choice,) = answer["choices"]
        prompt_ids, ids = asked.shape.prompt_ids(answer), choice["token_ids"]
        if prompt_ids is None:
            raise ValueError("no token ids of the prompt")
        logprobs = aligned_logprobs(asked.shape, choice, ids)
        packed = pack_ids(prompt_ids), pack_ids(ids), pack_floats(logprobs)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise CaptureError(f"the engine's answer has no aligned token ids and logprobs: {error!r}") from error
    hide(answer, choice, asked)
    return Captured(answer.get("id"), choice.get("finish_reason"), *packed, orjson.dumps(answer))


def aligned_logprobs(shape: Shape, choice: dict[str, Any], ids: list[int]) -> list[float]:
    """The logprob of each sampled token. Raises ValueError where they are not one a token."""
    logprobs = shape.logprobs(choice)
    if len(logprobs) != len(ids):
        raise ValueError(f"{len(ids)} token ids, {len(logprobs)} logprobs")
    return logprobs


def hide(answer: dict[str, Any], choice: dict[str, Any] | None, asked: Asked) -> None:
    """Make `answer` what it would be had only the agent asked; vLLM writes null for what was not asked for."""
    answer["model"] = asked.model
    if not asked.sees_token_ids:
        _blank(answer, "prompt_token_ids")
        _blank(choice, "prompt_token_ids")
        _blank(choice, "token_ids")
    if not asked.sees_logprobs:
        _blank(choice, "logprobs")


def _blank(part: dict[str, Any] | None, name: str) -> None:
    if part is not None and name in part:
        part[name] = None
