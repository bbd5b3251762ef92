"""A streamed answer of `/v1/responses`: its events, their order, and that they add up to the plain answer."""

import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leyden.producers.gateway.refusals import error_event
from leyden.producers.gateway.responses import Responses

from .responses import DONE, FIRST, USAGE, answered, call, chunk, completion, event, logprob, parsed


def test_stream_has_the_events_of_a_real_server_in_their_order() -> None:
    calls = [
        {"tool_calls": [{"index": 0} | call("1", "f", "")]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
    ]
    chunks = [FIRST, chunk({"content": "a"}), chunk({"content": "b"}), *map(chunk, calls), chunk({}, "tool_calls")]
    events = parsed(Responses().stream({}).feed(b"".join(chunks) + USAGE + DONE))
    assert [e["type"].removeprefix("response.") for e in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_item.added",
        "function_call_arguments.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert (events[0]["response"]["output"], events[0]["response"]["usage"]) == ([], None)
    assert [e["output_index"] for e in events if e["type"] == "response.output_item.done"] == [0, 1]


def test_nothing_final_leaves_before_the_end_is_there() -> None:
    stream = Responses().stream({})
    call_ = {"tool_calls": [{"index": 0} | call("1", "f", "{}")]}
    before = stream.feed(FIRST + chunk({"reasoning": "r"}) + chunk({"content": "a"}) + chunk(call_))
    assert not [e for e in parsed(before) if e["type"].endswith((".done", ".completed"))]
    assert stream.feed(b": still here\n\n") == b": still here\n\n"


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (event({"error": {"message": "out of memory", "type": "Internal", "code": 500}}) + DONE, "out of memory"),
        (error_event("broke off", "upstream_broke_off"), "broke off"),
        (DONE, "ended before its answer"),
    ],
)
def test_error_in_the_chat_is_never_a_clean_end(end: bytes, message: str) -> None:
    stream = Responses().stream({})
    events = parsed(stream.feed(FIRST + chunk({"content": "a"}) + end))
    assert [e["type"] for e in events[-2:]] == ["response.failed", "error"]
    assert message in events[-2]["response"]["error"]["message"]
    assert message in events[-1]["error"]["message"]
    assert stream.feed(DONE) == b""
    assert [e["type"] for e in parsed(Responses().stream({}).feed(end))] == ["error"]


Told = tuple[str, str, str]  # where a piece belongs (reasoning, content, or a call's id), what it says, its token


@st.composite
def told(draw: st.DrawFn) -> list[Told]:
    """An answer in pieces, in any order and as small as they come."""
    sources = draw(st.lists(st.sampled_from(["reasoning", "content", "blank", "0", "1", "2"]), max_size=12))
    return [(source, draw(st.text('aé\n"', max_size=3)), f"t{at}") for at, source in enumerate(sources)]


def chunks_of(pieces: list[Told], finish: str, logprobs: bool) -> list[bytes]:
    """The answer as a chat streams it; the last piece comes with `finish_reason`."""
    found, known = [FIRST], []
    for at, (source, text, token) in enumerate(pieces):
        if source == "blank":
            delta: dict[str, Any] = {}
        elif source in ("reasoning", "content"):
            delta = {source: text}
        else:
            named = {} if source in known else call(source, "f", "")
            known += [source] if named else []
            function = named.get("function", {}) | {"arguments": text}
            delta = {"tool_calls": [named | {"index": known.index(source), "function": function}]}
        ended = finish if at == len(pieces) - 1 else None
        found.append(chunk(delta, ended, [logprob(token)] if logprobs else None))
    return [*found, *([] if pieces else [chunk({}, finish)]), USAGE, DONE]


def plain_of(pieces: list[Told], finish: str, logprobs: bool) -> dict[str, Any]:
    """The same answer, not streamed."""
    texts: dict[str, str] = {}
    for source, text, _ in pieces:
        texts[source] = texts.get(source, "") + text
    calls = [call(source, "f", text) for source, text in texts.items() if source.isdigit()]
    tokens = [logprob(token) for _, _, token in pieces] if logprobs else None
    message = {name: texts.get(name) for name in ("reasoning", "content")}
    return completion(finish, tokens, **message, tool_calls=calls)


@given(told(), st.sampled_from(["stop", "length"]), st.booleans(), st.data())
def test_streamed_answer_is_the_plain_one_however_it_is_cut(
    pieces: list[Told], finish: str, logprobs: bool, data: st.DataObject
) -> None:
    whole, stream, out = chunks_of(pieces, finish, logprobs), Responses().stream({}), b""
    while whole:
        n_next = data.draw(st.integers(1, len(whole)))
        out += stream.feed(b"".join(whole[:n_next]))
        whole = whole[n_next:]
    events, plain = parsed(out), answered(plain_of(pieces, finish, logprobs))
    final = events[-1]["response"]

    # Items stand in the order in which they began, which a plain answer does not know: there, text comes before calls.
    began = [e["item"]["id"] for e in events if e["type"] == "response.output_item.added"]
    assert [item["id"] for item in final["output"]] == began
    assert [item["status"] for item in final["output"]][:-1] == ["completed"] * (len(began) - 1)
    for response in (final, plain):
        response["output"] = {item["id"]: item | {"status": None} for item in response["output"]}
    assert final == plain

    for index, item in enumerate(final["output"].values()):
        deltas = [e for e in events if e["type"].endswith(".delta") and e["output_index"] == index]
        assert "".join(e["delta"] for e in deltas) == (
            item.get("arguments") or item.get("content", [{}])[0].get("text", "")
        )
        tokens = [entry["token"] for e in deltas for entry in e.get("logprobs", ())]
        assert tokens == [entry["token"] for entry in item.get("content", [{}])[0].get("logprobs", ())][: len(tokens)]


@given(told(), st.booleans())
def test_items_in_the_order_of_a_chat_message_are_equal_in_both_answers(pieces: list[Told], logprobs: bool) -> None:
    pieces = sorted(pieces, key=lambda piece: ["reasoning", "content", "blank", "0", "1", "2"].index(piece[0]))
    final = parsed(Responses().stream({}).feed(b"".join(chunks_of(pieces, "length", logprobs))))[-1]
    assert final["response"] == answered(plain_of(pieces, "length", logprobs))


@pytest.mark.engine
def test_what_a_real_engine_streams_adds_up_to_its_plain_answer(vllm_url: str) -> None:
    asked = {"model": "policy", "input": "Once upon", "instructions": "a", "temperature": 0, "seed": 1}
    asked |= {"max_output_tokens": 12, "include": ["message.output_text.logprobs"], "top_logprobs": 1}

    def ask(**more: Any) -> bytes:
        chat = Responses().request(asked | more)
        return httpx.post(f"{vllm_url}/v1/chat/completions", json=chat, timeout=60).raise_for_status().content

    plain = answered(json.loads(ask()), **asked)
    streamed = parsed(Responses().stream(asked).feed(ask(stream=True)))[-1]["response"]
    assert plain["usage"]["output_tokens"] == len(plain["output"][0]["content"][0]["logprobs"]) == 12
    for response in (plain, streamed):
        response["output"] = [item["content"] for item in response["output"]]
        for entry in response["output"][0][0]["logprobs"]:
            entry["logprob"] = entry["top_logprobs"] = None  # a batch of another shape rounds otherwise
        response["id"] = response["created_at"] = None
    assert streamed == plain
