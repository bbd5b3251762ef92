"""`/v1/messages`: what the engine is asked for it, and what the official client makes of the answers."""

import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, TextBlock, ToolParam, ToolUseBlock
from hypothesis import given, settings
from hypothesis import strategies as st
from leyden.infra.settings import EngineSettings
from leyden.producers.gateway.capture import capture_plain
from leyden.producers.gateway.chat import Chat
from leyden.producers.gateway.messages import Messages
from leyden.producers.gateway.refusals import RefusedError, error_body
from leyden.producers.gateway.request import Asked, prepare
from leyden.producers.gateway.stream_capture import StreamCapture

DIALECT = Messages()
HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: ToolParam = {"name": "weather", "description": "The weather", "input_schema": SCHEMA}  # type: ignore[typeddict-item]


def chat_for(**body: Any) -> dict[str, Any]:
    """The chat request for a message request."""
    return DIALECT.request({"model": "policy", "max_tokens": 9, "messages": HI} | body)


def chat_messages(*messages: dict[str, Any], **body: Any) -> list[dict[str, Any]]:
    """The chat's messages for these."""
    return chat_for(messages=list(messages), **body)["messages"]


def user(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words, "cache_control": {"type": "ephemeral"}}


def completion(message: dict[str, Any], finish_reason: str = "stop", **choice: Any) -> bytes:
    """A plain answer of the engine."""
    whole = {"index": 0, "message": {"role": "assistant"} | message, "finish_reason": finish_reason} | choice
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    return json.dumps({"id": "chatcmpl-7", "model": "policy", "choices": [whole], "usage": usage}).encode()


def called(arguments: str, name: str = "weather", at: int = 0) -> dict[str, Any]:
    return {"id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": arguments}}


def answer(message: dict[str, Any], finish_reason: str = "stop", **choice: Any) -> Message:
    """The message for a plain answer, checked against the client's own types."""
    return Message.model_validate_json(DIALECT.answer(completion(message, finish_reason, **choice), {}))


def chunk(delta: dict[str, Any] | None, finish_reason: str | None = None, **choice: Any) -> bytes:
    """A chunk of the engine's stream, usage so far included; without delta the last one, which has only usage."""
    whole = {"index": 0, "delta": delta, "finish_reason": finish_reason, "token_ids": [], "logprobs": None} | choice
    usage = {"prompt_tokens": 5, "completion_tokens": 3 if delta is None or finish_reason else 0, "total_tokens": 8}
    choices = [] if delta is None else [whole]
    body = {"id": "chatcmpl-7", "model": "policy", "choices": choices, "usage": usage, "prompt_token_ids": [1] * 5}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


FIRST, END = chunk({"role": "assistant", "content": ""}), b"data: [DONE]\n\n"


def events_in(stream: bytes) -> list[dict[str, Any]]:
    """The events; each is named twice, in its `event:` line and in its data."""
    found = []
    for event in stream.split(b"\n\n")[:-1]:
        name, data = event.split(b"\n")
        found.append(json.loads(data.removeprefix(b"data: ")))
        assert name == b"event: " + found[-1]["type"].encode()
    return found


# Requests


def test_request_becomes_a_chat_with_the_same_sampling() -> None:
    chat = chat_for(
        system=[text("Be brief."), text("Be kind.")],
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        stop_sequences=["END"],
        metadata={"user_id": "ada"},
        service_tier="auto",
        thinking={"type": "disabled"},
    )
    assert chat == {
        "model": "policy",
        "messages": [{"role": "system", "content": "Be brief.\nBe kind."}, *HI],
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "stop": ["END"],
        "metadata": {"user_id": "ada"},
        "user": "ada",
        "reasoning_effort": "none",
    }


def test_streamed_request_asks_for_the_usage_that_the_events_tell() -> None:
    chat = chat_for(stream=True)
    assert chat["stream"] is True
    assert chat["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert "stream_options" not in chat_for(stream=False)


def test_tool_turns_become_tool_calls_and_results_right_behind_them() -> None:
    asked = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        text("Let me "),
        text("look."),
        {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Ålesund"}},
        {"type": "tool_use", "id": "b", "name": "weather", "input": {}},
    ]
    results = user(
        text("Here:"),
        {"type": "tool_result", "tool_use_id": "a", "content": [text("rain"), text("wind")]},
        {"type": "tool_result", "tool_use_id": "b", "content": "no city", "is_error": True},
        {"type": "tool_result", "tool_use_id": "c"},
        text("And now?"),
    )
    assert chat_messages(*HI, {"role": "assistant", "content": asked}, results)[1:] == [
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [called('{"city":"Ålesund"}') | {"id": "a"}, called("{}") | {"id": "b"}],
        },
        {"role": "tool", "tool_call_id": "a", "content": "rain\nwind"},
        {"role": "tool", "tool_call_id": "b", "content": "Error: no city"},
        {"role": "tool", "tool_call_id": "c", "content": ""},
        {"role": "user", "content": "Here:\nAnd now?"},
    ]


def test_message_of_results_alone_adds_no_empty_user_turn() -> None:
    (only,) = chat_messages(user({"type": "tool_result", "tool_use_id": "a", "content": "Error 5", "is_error": True}))
    assert only == {"role": "tool", "tool_call_id": "a", "content": "Error 5"}


def test_system_block_that_differs_from_call_to_call_is_left_out() -> None:
    billing = text("x-anthropic-billing-header: cch=1f")
    found = chat_messages(*HI, {"role": "system", "content": "Go on."}, system=[billing, text("Be brief.")])
    assert [message["content"] for message in found] == ["Be brief.", "hi", "Go on."]


def test_prefilled_answer_is_continued() -> None:
    chat = chat_for(messages=[*HI, {"role": "assistant", "content": "{"}])
    assert (chat["continue_final_message"], chat["add_generation_prompt"]) == (True, False)
    assert "continue_final_message" not in chat_for()


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "weather"}, {"tool_choice": {"type": "function", "function": {"name": "weather"}}}),
        ({"type": "auto", "disable_parallel_tool_use": True}, {"tool_choice": "auto", "parallel_tool_calls": False}),
    ],
)
def test_tools_and_their_choice_become_functions(choice: dict[str, Any], expected: dict[str, Any]) -> None:
    chat = chat_for(tools=[WEATHER | {"type": "custom", "cache_control": {"type": "ephemeral"}}], tool_choice=choice)
    function = {"name": "weather", "description": "The weather", "parameters": SCHEMA}
    assert chat["tools"] == [{"type": "function", "function": function}]
    assert {name: chat[name] for name in ("tool_choice", "parallel_tool_calls") if name in chat} == expected


def test_wanted_json_becomes_a_response_format() -> None:
    wanted = chat_for(output_config={"format": {"type": "json_schema", "schema": SCHEMA}})["response_format"]
    assert wanted == {"type": "json_schema", "json_schema": {"name": "output", "schema": SCHEMA}}


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, r"messages\[0\]\.role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, r"messages\[0\]\.role: 'tool'"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\]\.content"),
        ({"messages": [user(text("a"), {"type": "image", "source": {}})]}, r"content\[1\]: .*'image'.*only text"),
        ({"messages": [user({"type": "document", "source": {}})]}, "'document'.*only text"),
        (
            {"messages": [user({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]})]},
            r"messages\[0\]\.content\[0\]\.content\[0\]: .*'image'",
        ),
        ({"messages": [user({"type": "tool_result", "content": "a"})]}, "tool_use_id"),
        ({"messages": [user({"type": "text"})]}, r"content\[0\]\.text"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]}, "input"),
        ({"system": [{"type": "image"}]}, r"system\[0\]"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, r"tools\[0\]: tool 'web_search_20250305'"),
        ({"tools": [{"name": "a"}]}, r"tools\[0\]\.input_schema"),
        ({"tools": {"name": "a"}}, "tools"),
        ({"tool_choice": {"type": "best"}}, "tool_choice"),
        ({"tool_choice": {"type": ["any"]}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, r"tool_choice\.name"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking: type 'enabled'"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"output_config": {"format": {"type": "grammar"}}}, r"output_config\.format"),
    ],
)
def test_what_a_chat_cannot_express_or_capture_is_refused_by_name(body: dict[str, Any], names: str) -> None:
    with pytest.raises(RefusedError, match=names) as refused:
        chat_for(**body)
    assert refused.value.status == 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "user", "text", "tool_use", "auto"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "role", "content"]), inner),
    max_leaves=12,
)
FIELDS = ("messages", "system", "max_tokens", "tools", "tool_choice", "thinking", "output_config", "metadata")


@given(st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_any_body_is_translated_or_refused_as_the_clients_mistake(body: dict[str, Any]) -> None:
    try:
        chat_for(**body)
    except RefusedError as refused:
        assert refused.status == 400  # noqa: PT017


# Plain answers


def test_answer_is_a_message_with_text_before_tool_use() -> None:
    calls = [called('{"city": "Oslo"}'), called("", "now", 1)]
    message = answer({"content": "Let me look.", "tool_calls": calls}, "tool_calls")
    assert message.id == "msg_7"
    assert DIALECT.response_id("chatcmpl-7") == "msg_7"
    assert (message.role, message.model, message.stop_reason) == ("assistant", "policy", "tool_use")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (5, 3)
    assert message.content == [
        TextBlock(type="text", text="Let me look."),
        ToolUseBlock(type="tool_use", id="call_0", name="weather", input={"city": "Oslo"}),
        ToolUseBlock(type="tool_use", id="call_1", name="now", input={}),
    ]


def test_empty_answer_has_one_empty_text() -> None:
    assert answer({"content": None, "reasoning": "hm"}).content == [TextBlock(type="text", text="")]


@pytest.mark.parametrize("arguments", ['{"city": "Os', "[1]", "null", "Oslo", '{"n": NaN}'])
def test_arguments_that_are_no_object_are_quoted(arguments: str) -> None:
    (block,) = answer({"content": None, "tool_calls": [called(arguments)]}, "tool_calls").content
    assert isinstance(block, ToolUseBlock)
    assert block.input == {"INVALID_JSON": arguments}


@pytest.mark.parametrize(
    ("message", "choice", "expected"),
    [
        ({"content": "a"}, {"finish_reason": "stop", "stop_reason": None}, ("end_turn", None)),
        ({"content": "a"}, {"finish_reason": "stop", "stop_reason": 128009}, ("end_turn", None)),
        ({"content": "a"}, {"finish_reason": "stop", "stop_reason": "END"}, ("stop_sequence", "END")),
        ({"content": "a"}, {"finish_reason": "length"}, ("max_tokens", None)),
        ({"content": "a"}, {"finish_reason": "abort"}, (None, None)),
        ({"tool_calls": [called("{}")]}, {"finish_reason": "tool_calls"}, ("tool_use", None)),
        ({"tool_calls": [called("{}")]}, {"finish_reason": "stop"}, ("tool_use", None)),
        ({"tool_calls": [called("{}")]}, {"finish_reason": "stop", "stop_reason": "}"}, ("tool_use", None)),
        ({"tool_calls": [called('{"a')]}, {"finish_reason": "stop", "stop_reason": "b"}, ("stop_sequence", "b")),
        ({"tool_calls": [called('{"a')]}, {"finish_reason": "length"}, ("max_tokens", None)),
    ],
)
def test_stop_reason_says_why_the_answer_ended(
    message: dict[str, Any], choice: dict[str, Any], expected: tuple[str | None, str | None]
) -> None:
    found = answer({"content": None} | message, **choice)
    assert (found.stop_reason, found.stop_sequence) == expected


def test_cached_input_tokens_are_counted_apart() -> None:
    chat = json.loads(completion({"content": "a"}))
    chat["usage"]["prompt_tokens_details"] = {"cached_tokens": 4}
    usage = Message.model_validate_json(DIALECT.answer(json.dumps(chat).encode(), {})).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (1, 4)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (410, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_error_has_the_type_of_its_status(status: int, kind: str) -> None:
    found = json.loads(DIALECT.error(status, error_body(status, "no")))
    assert found == {"type": "error", "error": {"type": kind, "message": "no"}}


@pytest.mark.parametrize("raw", [b"Bad Gateway", b"[]", b'{"error": "Bad Gateway"}', b"\xff", b""])
def test_error_of_another_shape_is_quoted(raw: bytes) -> None:
    assert json.loads(DIALECT.error(502, raw))["error"]["message"] == raw.decode(errors="replace")


# Streams


def streamed(*chunks: bytes) -> list[dict[str, Any]]:
    """The events for a chat stream that is fed a chunk at a time."""
    stream = DIALECT.stream({})
    return events_in(b"".join(stream.feed(each) for each in chunks))


def test_nothing_final_is_sent_before_the_end_is_fed() -> None:
    stream = DIALECT.stream({})
    part = {"tool_calls": [{"index": 0} | called('{"city": ')]}
    before = events_in(stream.feed(FIRST + chunk({"content": "Hm"}) + chunk(part)))
    assert [event["type"] for event in before] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "ping",  # long arguments do not make the connection look idle
    ]
    assert before[0]["message"]["usage"]["input_tokens"] == 5
    rest = {"tool_calls": [{"index": 0, "function": {"arguments": '"Oslo"}'}}]}
    assert stream.feed(chunk(rest, "tool_calls") + chunk(None)) == b""
    after = events_in(stream.feed(END))
    assert [event["type"] for event in after] == [
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert after[2]["delta"] == {"type": "input_json_delta", "partial_json": '{"city":"Oslo"}'}
    assert after[4]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert (after[4]["usage"]["input_tokens"], after[4]["usage"]["output_tokens"]) == (5, 3)


@pytest.mark.parametrize("code", [500, "upstream_broke_off", None, 200])
def test_error_in_the_stream_is_the_last_event(code: Any) -> None:
    problem = b"data: " + json.dumps({"error": {"message": "it broke", "code": code}}).encode() + b"\n\n"
    events = streamed(FIRST, chunk({"content": "Hm"}), problem, END)
    assert events[-1] == {"type": "error", "error": {"type": "api_error", "message": "it broke"}}
    assert not {"content_block_stop", "message_delta", "message_stop"} & {event["type"] for event in events}


def test_end_without_a_finish_reason_is_an_error() -> None:
    assert streamed(FIRST, chunk({"content": "Hm"}), END)[-1]["type"] == "error"


# The official client


class Peer(ThreadingHTTPServer):
    """A fake peer without engine or gateway: it answers what the test put there, through the dialect."""

    daemon_threads = True
    block_on_close = False
    answer: Callable[[dict[str, Any]], bytes | list[bytes]]  # a plain answer, or the writes of a stream

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Peer  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        try:
            assert self.path == DIALECT.route
            found, status = self.server.answer(DIALECT.request(body)), 200
        except RefusedError as refused:
            found, status = DIALECT.error(refused.status, refused.body), refused.status
        self.send_response(status)
        self.send_header("server-timing", "fake-engineless-peer")
        if isinstance(found, bytes):
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(found)))
            self.end_headers()
            self.wfile.write(found)
            return
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for data in filter(None, found):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with Peer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def client(peer: Peer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=f"http://127.0.0.1:{peer.server_address[1]}", api_key="none", max_retries=0
    ) as found:
        yield found


def test_client_reads_a_plain_answer(peer: Peer, client: anthropic.Anthropic) -> None:
    peer.answer = lambda chat: DIALECT.answer(
        completion({"content": None, "tool_calls": [called('{"city": "Oslo"}')]}), chat
    )
    message = client.messages.create(
        model="policy", max_tokens=9, messages=[{"role": "user", "content": "hi"}], tools=[WEATHER]
    )
    (block,) = message.content
    assert isinstance(block, ToolUseBlock)
    assert (block.name, block.input, message.stop_reason) == ("weather", {"city": "Oslo"}, "tool_use")


def test_client_raises_what_was_refused(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="thinking: type 'enabled'") as refused:
        client.messages.create(
            model="policy",
            max_tokens=2000,
            messages=[{"role": "user", "content": "hi"}],
            thinking={"type": "enabled", "budget_tokens": 1024},
        )
    assert refused.value.type == "invalid_request_error"


def test_client_raises_on_a_stream_that_broke_off(peer: Peer, client: anthropic.Anthropic) -> None:
    problem = b"data: " + error_body(500, "it broke", code="upstream_broke_off") + b"\n\n"

    def break_off(chat: dict[str, Any]) -> list[bytes]:
        stream = DIALECT.stream(chat)
        return [stream.feed(each) for each in (FIRST, chunk({"content": "Hm"}), problem)]

    peer.answer = break_off
    with (
        client.messages.stream(model="policy", max_tokens=9, messages=[{"role": "user", "content": "hi"}]) as stream,
        pytest.raises(anthropic.APIStatusError, match="it broke"),
    ):
        stream.get_final_message()


PIECES = st.sampled_from(['{"city"', ': "O', 'slo"}', "{}", "[", "1", "é", "\n\n", "data: x"])
CALL = st.tuples(st.integers(0, 2), PIECES)
DELTAS = st.lists(st.sampled_from(["", "a", "é\n\n", "event: x\n"]) | CALL, max_size=10)
REASONS = st.sampled_from([("stop", None), ("stop", "END"), ("length", None), ("tool_calls", None)])


def chat_stream(deltas: list[str | tuple[int, str]], finish_reason: str, stop_reason: str | None) -> bytes:
    """A stream as vLLM sends it; the last delta comes with the finish reason."""
    known: set[int] = set()
    whole: list[dict[str, Any]] = []
    for delta in deltas:
        if isinstance(delta, str):
            whole.append({"content": delta})
            continue
        at, arguments = delta
        part = {"function": {"arguments": arguments}} if at in known else called(arguments, at=at)
        known.add(at)
        whole.append({"tool_calls": [{"index": at} | part]})
    last = whole.pop() if whole else {}
    end = chunk(last, finish_reason, stop_reason=stop_reason)
    return b"".join([FIRST, *map(chunk, whole), end, chunk(None), END])


@settings(deadline=None)
@given(DELTAS, REASONS, st.lists(st.integers(1, 900), max_size=9), st.lists(st.integers(1, 90), max_size=9))
def test_streamed_message_is_the_plain_one_whatever_the_deltas_and_cuts(
    peer: Peer,
    client: anthropic.Anthropic,
    deltas: list[str | tuple[int, str]],
    reason: tuple[str, str | None],
    engine_cuts: list[int],
    wire_cuts: list[int],
) -> None:
    captures = []

    def serve(chat: dict[str, Any]) -> list[bytes]:
        capture = StreamCapture(prepare(Chat(), b"", chat, {}, "policy", 1000))
        captures.append(capture)
        stream = DIALECT.stream(chat)
        out = b"".join(stream.feed(capture.feed(part)) for part in cut(chat_stream(deltas, *reason), engine_cuts))
        assert b"_stop" not in out  # what the gateway sends before the call is safe
        return cut(out + stream.feed(capture.held), wire_cuts)

    peer.answer = serve
    with client.messages.stream(model="policy", max_tokens=9, messages=[{"role": "user", "content": "hi"}]) as stream:
        open_block, n_blocks = None, 0
        for event in stream:
            if event.type == "content_block_start":
                assert (open_block, event.index) == (None, n_blocks)
                open_block, n_blocks = event.index, n_blocks + 1
            elif event.type == "content_block_delta":
                assert event.index == open_block
            elif event.type == "content_block_stop":
                assert event.index == open_block
                open_block = None
        message = stream.get_final_message()
    (capture,) = captures
    plain = Message.model_validate_json(DIALECT.answer(capture.captured().response, {}))
    assert Message.model_validate(message.to_dict()) == plain
    texts = [delta for delta in deltas if isinstance(delta, str)]
    assert "".join(block.text for block in plain.content if block.type == "text") == "".join(texts)
    assert len([block for block in plain.content if block.type == "tool_use"]) == len(
        {delta[0] for delta in deltas if isinstance(delta, tuple)}
    )


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """Pieces of these sizes, and the rest."""
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


# The engine


# The tiny model cannot decide to call a tool; here it can write nothing else.
CALLS_WEATHER = {"choice": ['<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>']}


@pytest.mark.engine
@pytest.mark.parametrize(
    "more",
    [
        {"thinking": {"type": "disabled"}, "stop_sequences": ["END"], "top_k": 5},
        {"messages": [*HI, {"role": "assistant", "content": "Once upon"}]},
        {"tools": [WEATHER], "tool_choice": {"type": "auto"}, "max_tokens": 100},
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    ],
    ids=["sampling", "prefill", "tool", "json"],
)
def test_engine_takes_the_chat_and_streams_the_plain_message(
    fresh_engine: EngineSettings, more: dict[str, Any]
) -> None:
    body = {"model": fresh_engine.model, "max_tokens": 24, "temperature": 0, "messages": HI} | more

    def ask(body: dict[str, Any]) -> tuple[Asked, bytes]:
        forced = {"structured_outputs": CALLS_WEATHER} if "tools" in more else {}
        asked = prepare(Chat(), b"", DIALECT.request(body) | forced, {}, fresh_engine.model, 1000)
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{fresh_engine.url}{Chat.route}", asked.upstream, headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            return asked, response.read()

    asked, found = ask(body)
    plain = Message.model_validate_json(DIALECT.answer(capture_plain(found, asked).response, body))
    asked, found = ask(body | {"stream": True})
    capture, stream = StreamCapture(asked), DIALECT.stream(body)
    events = events_in(stream.feed(capture.feed(found)) + stream.feed(capture.held))
    assert capture.complete
    assert plain.usage.input_tokens == events[0]["message"]["usage"]["input_tokens"] > 0
    assert events[-1]["type"] == "message_stop"
    assert events[-2]["delta"]["stop_reason"] == plain.stop_reason
    assert events[-2]["usage"]["output_tokens"] == plain.usage.output_tokens
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    texts = "".join(block.text for block in plain.content if block.type == "text")
    assert "".join(delta["text"] for delta in deltas if delta["type"] == "text_delta") == texts
    inputs = [block.input for block in plain.content if block.type == "tool_use"]
    assert [json.loads(delta["partial_json"]) for delta in deltas if delta["type"] == "input_json_delta"] == inputs
    assert bool(inputs) == ("tools" in more)
