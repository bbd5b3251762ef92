"""The streamed answer of the Responses API, from the chunks of a chat."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from . import responses_answer as answer
from .chat import MergedChat

_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}


@dataclass(slots=True)
class _Call:
    """A function call as far as it has come; its item is announced once it has an id and a name."""

    call_id: str = ""
    name: str = ""
    unsent: str = ""


class ResponseStream:
    """A `ChunkTranslator`.

    Nothing final leaves before `[DONE]`: the items are closed there, all at once, since only then their usage and
    their end are known, and they are those of the plain answer to the same chunks. Items stand in the order in which
    they began.
    """

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = body
        self._merged = MergedChat()
        self._begun: dict[str, Any] | None = None  # the response, once there is a chunk
        self._order: list[str] = []  # ids of the announced items; an item's place here is its output_index
        self._calls: dict[int, _Call] = {}
        self._logprobs: list[dict[str, Any]] = []  # since the last text
        self._n_sent = 0
        self._over = False

    def feed(self, events: bytes) -> bytes:
        """Whole events of a chat stream, `data: [DONE]` included, become whole events for the agent."""
        return b"".join(self._event(event) for event in events.split(b"\n\n") if event)

    def _event(self, event: bytes) -> bytes:
        if not event.startswith(b"data:"):
            return event + b"\n\n"  # a comment, which keeps a connection awake
        if self._over:
            return b""
        data = event[5:].strip()
        if data == b"[DONE]":
            return self._end()
        chunk = orjson.loads(data)
        if isinstance(problem := chunk.get("error"), dict):
            return self._fail(problem)
        return self._chunk(chunk)

    def _chunk(self, chunk: dict[str, Any]) -> bytes:
        out = b""
        if self._begun is None:
            self._begun = answer.begun(chunk, self._body)
            out = self._send("response.created", response=self._begun)
            out += self._send("response.in_progress", response=self._begun)
        choice = chunk["choices"][0] if chunk["choices"] else None
        self._merged.add(chunk, choice)
        if choice is None:
            return out
        self._logprobs += (choice.get("logprobs") or {}).get("content") or []
        delta = choice["delta"]
        if text := delta.get("reasoning"):
            item = answer.reasoning(chunk["id"], "")
            out += self._announce(item) + self._delta(item, "response.reasoning_text.delta", text, content_index=0)
        if text := delta.get("content"):
            item = answer.message(chunk["id"], "", ())
            logprobs, self._logprobs = [_brief(entry) for entry in self._logprobs], []
            out += self._announce(item)
            out += self._delta(item, "response.output_text.delta", text, content_index=0, logprobs=logprobs)
        for part in delta.get("tool_calls") or ():
            out += self._call(part)
        return out

    def _call(self, part: Mapping[str, Any]) -> bytes:
        call, function = self._calls.setdefault(part["index"], _Call()), part.get("function") or {}
        call.call_id = part.get("id") or call.call_id
        call.name += function.get("name") or ""
        call.unsent += function.get("arguments") or ""
        if not call.call_id or not call.name:
            return b""
        item = answer.function_call(call.call_id, call.name, "")
        out = self._announce(item)
        if call.unsent:
            out += self._delta(item, "response.function_call_arguments.delta", call.unsent)
            call.unsent = ""
        return out

    def _announce(self, item: answer.Item) -> bytes:
        """Say that an item begins, the first time that there is something of it."""
        if item["id"] in self._order:
            return b""
        self._order.append(item["id"])
        at, part = len(self._order) - 1, _PARTS.get(item["type"])
        empty = {"arguments": ""} if part is None else {"content": []}
        begun = item | empty | {"status": "in_progress"}
        out = self._send("response.output_item.added", output_index=at, item=begun)
        if part is not None:
            blank = item["content"][0] | {"text": ""} | ({"logprobs": []} if part == "output_text" else {})
            where = {"item_id": item["id"], "output_index": at, "content_index": 0}
            out += self._send("response.content_part.added", **where, part=blank)
        return out

    def _delta(self, item: answer.Item, kind: str, delta: str, **more: Any) -> bytes:
        at = self._order.index(item["id"])
        return self._send(kind, item_id=item["id"], output_index=at, delta=delta, **more)

    def _end(self) -> bytes:
        if self._merged.finish_reason is None:
            return self._fail({"message": "the engine's stream ended before its answer"})
        response = answer.ended(orjson.loads(self._merged.to_json()), self._body, self._order)
        out = b"".join(self._announce(item) + self._close(item) for item in response["output"])
        if response["status"] == "failed":
            return out + self._fail(response["error"], response)
        self._over = True
        return out + self._send(f"response.{response['status']}", response=response)

    def _close(self, item: answer.Item) -> bytes:
        at = self._order.index(item["id"])
        where = {"item_id": item["id"], "output_index": at}
        if item["type"] == "function_call":
            out = self._send("response.function_call_arguments.done", **where, arguments=item["arguments"])
        else:
            (part,) = item["content"]
            more = {"logprobs": [_brief(entry) for entry in part["logprobs"]]} if item["type"] == "message" else {}
            where |= {"content_index": 0}
            out = self._send(f"response.{part['type']}.done", **where, text=part["text"], **more)
            out += self._send("response.content_part.done", **where, part=part)
        return out + self._send("response.output_item.done", output_index=at, item=item)

    def _fail(self, problem: Mapping[str, Any], response: dict[str, Any] | None = None) -> bytes:
        """`response.failed` is for clients that look at the event's type, the `error` key for the official ones: they
        raise on nothing else in the middle of a stream, and would take a failure for a short answer."""
        self._over = True
        message = str(problem.get("message"))
        out = b""
        if self._begun is not None:
            failed = (response or self._begun) | {"status": "failed", "error": answer.error(message)}
            out = self._send("response.failed", response=failed)
        code = problem.get("code")
        said = {"code": None if code is None else str(code), "message": message, "param": problem.get("param")}
        return out + self._send("error", **said, error={"type": problem.get("type") or "server_error"} | said)

    def _send(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._n_sent} | fields
        self._n_sent += 1
        return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"


def _brief(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A token's logprob as events have it, without bytes."""
    tops = [{"token": top["token"], "logprob": top["logprob"]} for top in entry.get("top_logprobs") or ()]
    return {"token": entry["token"], "logprob": entry["logprob"], "top_logprobs": tops}
