"""A plain answer of the engine, taken apart: what was sampled, and what the agent may see."""

from dataclasses import dataclass
from typing import Any

import orjson

from ...avro import pack_floats, pack_ids
from ...infra.errors import LeydenError
from .request import Asked


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
    """Take a `chat.completion` apart. Raises CaptureError."""
    try:
        answer = orjson.loads(payload)
        (choice,) = answer["choices"]
        prompt_ids, ids = answer["prompt_token_ids"], choice["token_ids"]
        logprobs = chosen_logprobs(choice, ids)
        packed = pack_ids(prompt_ids), pack_ids(ids), pack_floats(logprobs)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise CaptureError(f"the engine's answer has no aligned token ids and logprobs: {error!r}") from error
    hide(answer, choice, asked)
    return Captured(answer.get("id"), choice.get("finish_reason"), *packed, orjson.dumps(answer))


def chosen_logprobs(choice: dict[str, Any], ids: list[int]) -> list[float]:
    """The logprob of each sampled token. Raises ValueError where they are not one a token."""
    content = (choice.get("logprobs") or {}).get("content") or []
    if len(content) != len(ids):
        raise ValueError(f"{len(ids)} token ids, {len(content)} logprobs")
    return [entry["logprob"] for entry in content]


def hide(answer: dict[str, Any], choice: dict[str, Any] | None, asked: Asked) -> None:
    """Make `answer` what it would be had only the agent asked; vLLM writes null for what was not asked for."""
    answer["model"] = asked.model
    if not asked.wants_token_ids:
        if "prompt_token_ids" in answer:
            answer["prompt_token_ids"] = None
        if choice is not None and "token_ids" in choice:
            choice["token_ids"] = None
    if not asked.wants_logprobs and choice is not None and "logprobs" in choice:
        choice["logprobs"] = None
