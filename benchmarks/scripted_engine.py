"""A scripted stand-in for vLLM that answers at once: PORT. Its answers are made up, in vLLM's shape and size."""

import asyncio
import json
import sys
from typing import cast

import uvloop

N_PROMPT, N_COMPLETION = 1000, 200
_ASKS_IDS, _ASKS_STREAM = b'"return_token_ids":true', b'"stream":true'


def choice(with_ids: bool) -> dict[str, object]:
    """The only choice of a plain answer."""
    words = [f" w{i}" for i in range(N_COMPLETION)]
    content = [{"token": w, "logprob": -0.25, "bytes": list(w.encode()), "top_logprobs": []} for w in words]
    return {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(words), "refusal": None},
        "logprobs": {"content": content} if with_ids else None,
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": list(range(N_COMPLETION)) if with_ids else None,
    }


def plain(with_ids: bool) -> bytes:
    """A whole HTTP answer."""
    answer = {
        "id": "chatcmpl-0123456789abcdef",
        "object": "chat.completion",
        "created": 1,
        "model": "policy",
        "choices": [choice(with_ids)],
        "usage": {
            "prompt_tokens": N_PROMPT,
            "total_tokens": N_PROMPT + N_COMPLETION,
            "completion_tokens": N_COMPLETION,
        },
        "prompt_token_ids": list(range(N_PROMPT)) if with_ids else None,
    }
    body = json.dumps(answer, separators=(",", ":")).encode()
    head = (
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-leyden-version-start: 3\r\n"
        f"x-leyden-version-end: 3\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def stream(with_ids: bool) -> bytes:
    """The same as server-sent events, one a token, all sent at once."""
    base = {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 1, "model": "policy"}

    def event(delta: dict[str, str], finish: str | None = None, **more: object) -> bytes:
        chunk = base | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish} | more]}
        return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"

    first = base | {
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None}],
        "prompt_token_ids": list(range(N_PROMPT)) if with_ids else None,
    }
    events = [b"data: " + json.dumps(first).encode() + b"\n\n"]
    for i in range(N_COMPLETION):
        logprob = {"token": f" w{i}", "logprob": -0.25, "bytes": [32, 119], "top_logprobs": []}
        more = {"logprobs": {"content": [logprob]} if with_ids else None, "token_ids": [i] if with_ids else None}
        events.append(event({"content": f" w{i}"}, "length" if i == N_COMPLETION - 1 else None, **more))
    body = b"".join([*events, b": leyden-version-end 3\n\n", b"data: [DONE]\n\n"])
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-leyden-version-start: 3\r\n"
    return head + b"transfer-encoding: chunked\r\n\r\n" + f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"


class Engine(asyncio.Protocol):
    """Reads requests by their content-length and writes the prepared answer."""

    def __init__(self, answers: dict[tuple[bool, bool], bytes]) -> None:
        self._answers = answers
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Answer every whole request."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            body, self._buffer = self._buffer[end + 4 : end + 4 + length], self._buffer[end + 4 + length :]
            self._transport.write(self._answers[_ASKS_STREAM in body, _ASKS_IDS in body])


async def serve(port: int) -> None:
    """Until killed."""
    answers = {(s, ids): (stream if s else plain)(ids) for s in (False, True) for ids in (False, True)}
    server = await asyncio.get_running_loop().create_server(lambda: Engine(answers), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
