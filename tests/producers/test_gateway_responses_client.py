"""The official OpenAI client before a fake peer that answers `/v1/responses` with scripted chats."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai
import pytest
from leyden.producers.gateway.refusals import RefusedError, error_event
from leyden.producers.gateway.responses import Responses
from openai.types import responses as r
from pydantic import BaseModel

from .responses import DONE, EVENTS, FIRST, TOOL, USAGE, call, chunk, completion


@dataclass
class Peer:
    """A fake peer without any engine: it translates as the gateway would, and its chats are scripted."""

    url: str
    plain: dict[str, Any] = field(default_factory=dict)
    chunks: list[bytes] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture
def peer() -> Iterator[Peer]:
    """A `Peer` that answers while the test runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            dialect, status, kind = Responses(), 200, "application/json"
            try:
                found.asked.append(dialect.request(body))
                if body.get("stream"):
                    kind, stream = "text/event-stream", dialect.stream(body)
                    answers = [stream.feed(data) for data in found.chunks]
                else:
                    answers = [dialect.answer(json.dumps(found.plain).encode(), body)]
            except RefusedError as refused:
                status, answers = refused.status, [refused.body]
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("x-fake-peer", "scripted, no engine")
            self.end_headers()
            for data in answers:
                self.wfile.write(data)
                self.wfile.flush()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Peer(f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def client(peer: Peer) -> Iterator[openai.OpenAI]:
    """The official client, sent to the peer."""
    with openai.OpenAI(base_url=peer.url, api_key="none", max_retries=0) as found:
        yield found


def test_official_client_reads_a_plain_answer_and_sends_it_back(peer: Peer, client: openai.OpenAI) -> None:
    peer.plain = completion("tool_calls", content="Let me see.", tool_calls=[call("c1", "add", '{"a": 1}')])
    first = client.responses.create(model="policy", input="1 + 1?", tools=[TOOL])  # pyright: ignore
    said, wanted = first.output
    assert isinstance(said, r.ResponseOutputMessage)
    assert isinstance(wanted, r.ResponseFunctionToolCall)
    assert (first.output_text, wanted.call_id, wanted.arguments) == ("Let me see.", "c1", '{"a": 1}')
    history: list[Any] = [{"role": "user", "content": "1 + 1?"}, *first.output]
    client.responses.create(
        model="policy", input=[*history, {"type": "function_call_output", "call_id": "c1", "output": "2"}]
    )
    assert peer.asked[1]["messages"][1:] == [
        {"role": "assistant"} | {k: peer.plain["choices"][0]["message"][k] for k in ("content", "tool_calls")},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]


def test_official_client_reads_a_stream(peer: Peer, client: openai.OpenAI) -> None:
    answer = {"tool_calls": [{"index": 0} | call("c1", "add", '{"a": 1}')]}
    peer.chunks = [FIRST, chunk({"content": "Let me "}), chunk({"content": "see."}), chunk(answer, "tool_calls")]
    peer.chunks += [USAGE, DONE]
    peer.plain = completion("tool_calls", content="Let me see.", tool_calls=[call("c1", "add", '{"a": 1}')])
    asked: dict[str, Any] = {"model": "policy", "input": "1 + 1?", "tools": [TOOL]}
    plain = client.responses.create(**asked)
    events = list(client.responses.create(**asked, stream=True))
    assert [type(e) for e in events] == [EVENTS[e.type] for e in events]
    assert isinstance(last := events[-1], r.ResponseCompletedEvent)
    assert last.response == plain
    with client.responses.stream(**asked) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert (text, final.output_text, final.usage) == ("Let me see.", "Let me see.", plain.usage)


def test_official_client_parses_an_answer_into_the_type_it_asked_for(peer: Peer, client: openai.OpenAI) -> None:
    class Sum(BaseModel):
        value: int

    peer.plain = completion(content='{"value": 2}')
    assert client.responses.parse(model="policy", input="1 + 1?", text_format=Sum).output_parsed == Sum(value=2)
    assert peer.asked[0]["response_format"]["json_schema"]["schema"]["properties"]["value"]["type"] == "integer"


def test_official_client_raises_on_a_stream_that_breaks_off(peer: Peer, client: openai.OpenAI) -> None:
    peer.chunks = [FIRST, chunk({"content": "a"}), error_event("the engine is gone", "upstream_broke_off")]
    seen: list[Any] = []
    with pytest.raises(openai.APIError, match="the engine is gone"):
        seen.extend(client.responses.create(model="policy", input="hi", stream=True))
    assert isinstance(seen[-1], r.ResponseFailedEvent)


def test_official_client_is_told_to_send_the_whole_input(peer: Peer, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="send the whole conversation") as refused:
        client.responses.create(model="policy", input="hi", previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"
