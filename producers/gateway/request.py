"""What the agent asked for, and what the engine is asked on top of it so that the call can be captured."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from .refusals import RefusedError

DIGEST_BYTES = 8
_TEXT_PARTS = ("text", "refusal")
# Parts of an answer that have no token ids of one policy: several choices, hidden tokens, other modalities.
_UNCAPTURABLE = {
    "use_beam_search": "the tokens of a beam search are not sampled from the policy",
    "prompt_embeds": "a prompt of embeddings has no token ids",
    "audio": "audio answers have no token ids",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A chat completion request, read once."""

    raw: bytes
    upstream: bytes
    digest: bytes  # blake2b-64 of raw
    model: str
    stream: bool
    wants_logprobs: bool
    wants_token_ids: bool
    temperature: float
    top_p: float
    max_tokens: int | None


def parse(raw: bytes) -> dict[str, Any]:
    """The JSON object of a request body. Raises RefusedError; of equal keys the last counts, as in the engine."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RefusedError(400, f"the request body is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise RefusedError(400, f"the request body is a JSON {type(body).__name__}, expected an object")
    return body


def prepare(
    raw: bytes, body: dict[str, Any], overrides: Mapping[str, Any], served_model: str, max_completion_tokens: int
) -> Asked:
    """The request as the engine gets it. Raises RefusedError for what could not be captured."""
    _refuse_uncapturable(body)
    sent = dict(body)
    if "max_tokens" in overrides:
        sent.pop("max_completion_tokens", None)
    sent.update(overrides)
    max_tokens = _integer(sent, "max_completion_tokens")
    max_tokens = _integer(sent, "max_tokens") if max_tokens is None else max_tokens
    if max_tokens is not None and max_tokens > max_completion_tokens:
        raise RefusedError(
            400, f"max_tokens {max_tokens} is over the gateway's {max_completion_tokens}", param="max_tokens"
        )
    model = body.get("model")
    wants_logprobs = body.get("logprobs") is True
    sent |= {"model": served_model, "return_token_ids": True}
    # top_logprobs without logprobs is the client's mistake: the engine says so, in its own words.
    if not wants_logprobs and not body.get("top_logprobs") and not body.get("logprob_token_ids"):
        sent |= {"logprobs": True, "top_logprobs": 0}
    return Asked(
        raw=raw,
        upstream=orjson.dumps(sent),
        digest=blake2b(raw, digest_size=DIGEST_BYTES).digest(),
        model=model if isinstance(model, str) and model else served_model,
        stream=body.get("stream") is True,
        wants_logprobs=wants_logprobs,
        wants_token_ids=body.get("return_token_ids") is True,
        temperature=_number(sent, "temperature"),
        top_p=_number(sent, "top_p"),
        max_tokens=max_tokens,
    )


def _refuse_uncapturable(body: Mapping[str, Any]) -> None:
    n = body.get("n")
    if n is not None and (n != 1 or isinstance(n, bool)):
        raise RefusedError(400, f"n={n!r}: one choice a call is captured; send {n!r} calls", param="n")
    for name, why in _UNCAPTURABLE.items():
        if body.get(name):
            raise RefusedError(400, f"{name}: {why}", param=name)
    if body.get("include_reasoning") is False:
        raise RefusedError(
            400, "include_reasoning=false hides sampled tokens from the capture", param="include_reasoning"
        )
    if body.get("stream") not in (None, True, False):
        raise RefusedError(400, "stream must be true or false", param="stream")
    if body.get("logprobs") not in (None, True, False):
        raise RefusedError(400, "logprobs must be true or false", param="logprobs")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RefusedError(400, "messages must be a list with at least one message", param="messages")
    for at, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if kind not in _TEXT_PARTS:
                raise RefusedError(400, f"content of type {kind!r} is not captured, only text", param=f"messages[{at}]")


def _number(body: Mapping[str, Any], name: str) -> float:
    """1.0 where the client leaves it open: the engine runs with OpenAI's defaults (--generation-config vllm)."""
    value = body.get(name)
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RefusedError(400, f"{name} must be a number", param=name)
    return float(value)


def _integer(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not -1 < value < 1 << 31):
        raise RefusedError(400, f"{name} must be an integer from 0", param=name)
    return value
