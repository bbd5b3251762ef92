"""The gateway's decisions without its I/O: identity, requests, streams however they are cut, known attempts."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leyden.avro import new_id, unpack_floats, unpack_ids
from leyden.producers.gateway.attempts import Attempts
from leyden.producers.gateway.capture import CaptureError, capture_plain
from leyden.producers.gateway.chat import Chat
from leyden.producers.gateway.completion import Completion
from leyden.producers.gateway.identity import Identity, Place, check_attempt, check_id, identify, place
from leyden.producers.gateway.refusals import RefusedError
from leyden.producers.gateway.request import Asked, parse, prepare
from leyden.producers.gateway.stream_capture import StreamCapture

MESSAGES = [{"role": "user", "content": "hi"}]


def asked(**body: Any) -> Asked:
    """A prepared request."""
    whole = {"model": "policy", "messages": MESSAGES} | body
    return prepare(Chat(), json.dumps(whole).encode(), whole, {}, "policy", 1000)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/rollout/r/attempt/2/v1/chat/completions", ("r", 2, None, {})),
        ("/rollout/r/attempt/1/agent/the%20writer/v1/models", ("r", 1, "the writer", {})),
        ("/rollout/r/attempt/1/set/temperature=0,seed=3/v1/x", ("r", 1, None, {"temperature": 0.0, "seed": 3})),
        ("/rollout/r/attempt/1/agent/a/set/top_p=0.5/v1/x", ("r", 1, "a", {"top_p": 0.5})),
    ],
)
def test_path_says_where_a_call_belongs(path: str, expected: tuple[Any, ...]) -> None:
    found = place(path)
    assert found.identity is not None
    assert (found.identity.rollout_id, found.identity.attempt, found.identity.agent, found.overrides) == expected
    assert found.route.startswith("/v1/")


@pytest.mark.parametrize(
    "path",
    [
        "/rollout/r/attempt/0/v1/x",
        "/rollout/r/attempt/one/v1/x",
        "/rollout/a%2Fb/attempt/1/v1/x",
        "/rollout/r/v1/x",
        "/rollout/r/attempt/1/set/temperature=nan/v1/x",
        "/rollout/r/attempt/1/set/model=x/v1/x",
        "/rollout/r/attempt/1/set/seed=1.5/v1/x",
    ],
)
def test_path_that_names_no_attempt_is_refused(path: str) -> None:
    with pytest.raises(RefusedError):
        place(path)


@given(st.text(max_size=60))
def test_any_path_and_headers_give_an_identity_or_a_refusal(text: str) -> None:
    headers = {"x-leyden-rollout": text, "x-leyden-attempt": text, "x-leyden-agent": text}
    found: Identity | RefusedError
    try:
        found = identify(place("/rollout/" + text), headers, {}, "p.")
    except RefusedError as refused:
        found = refused
    if isinstance(found, RefusedError):
        assert found.status in (400, 404, 410)
    else:
        assert found.known
        assert check_id(found.rollout_id) == found.rollout_id
        assert 1 <= found.attempt <= 1_000_000


def test_engine_is_asked_for_ids_and_logprobs_and_the_rest_is_the_agents() -> None:
    sent = parse(asked(temperature=0.3, tools=[{"x": 1}]).upstream)
    assert sent["return_token_ids"] is sent["logprobs"] is True
    assert (sent["top_logprobs"], sent["temperature"], sent["tools"]) == (0, 0.3, [{"x": 1}])
    assert parse(asked(logprobs=True, top_logprobs=5).upstream)["top_logprobs"] == 5


def test_overrides_outrank_the_body_also_under_the_other_name_of_max_tokens() -> None:
    body = {"messages": MESSAGES, "max_completion_tokens": 90, "temperature": 1}
    found = prepare(Chat(), b"", body, {"max_tokens": 3, "temperature": 0.0}, "policy", 1000)
    assert (found.max_tokens, found.temperature) == (3, 0.0)
    assert "max_completion_tokens" not in parse(found.upstream)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", None])
def test_content_that_has_no_token_ids_is_refused(kind: str | None) -> None:
    with pytest.raises(RefusedError, match="only text"):
        asked(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": kind}]}])


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({}, "prompt"),
        ({"prompt": ["a", "b"]}, "2 prompts"),
        ({"prompt": [[1], [2]]}, "2 prompts"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "n": 2}, "n=2"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
    ],
)
def test_completion_without_a_single_sequence_of_ids_is_refused(body: dict[str, Any], names: str) -> None:
    with pytest.raises(RefusedError, match=names):
        Completion().refuse_uncapturable(body)


def test_sampled_token_without_a_logprob_is_no_capture() -> None:
    with pytest.raises(ValueError, match="without a logprob"):
        Completion().logprobs({"logprobs": {"token_logprobs": [None, -1.0]}})


def test_answer_with_fewer_logprobs_than_tokens_is_no_capture() -> None:
    choice = {"token_ids": [1, 2], "logprobs": {"content": [{"logprob": -1.0}]}, "message": {}}
    payload = json.dumps({"id": "x", "prompt_token_ids": [1], "choices": [choice]}).encode()
    with pytest.raises(CaptureError, match="2 token ids, 1 logprobs"):
        capture_plain(payload, asked())


def stream_of(tokens: list[tuple[int, str]]) -> bytes:
    """A stream as vLLM sends it; a token with an empty text has an empty delta."""

    def event(choice: dict[str, Any], **more: Any) -> bytes:
        chunk = {"id": "c1", "model": "policy", "choices": [{"index": 0, "finish_reason": None} | choice]} | more
        return b"data: " + json.dumps(chunk).encode() + b"\n\n"

    events = [event({"delta": {"role": "assistant", "content": ""}, "logprobs": None}, prompt_token_ids=[5, 6])]
    for token, text in tokens:
        content = [{"token": text, "logprob": -token / 8}]
        delta = {"content": text} if text else {}
        events.append(event({"delta": delta, "token_ids": [token], "logprobs": {"content": content}}))
    events.append(event({"delta": {}, "token_ids": [], "logprobs": {"content": []}, "finish_reason": "stop"}))
    return b"".join([*events, b": leyden-version-end 7\n\ndata: [DONE]\n\n"])


TOKENS = st.lists(st.tuples(st.integers(0, 300), st.sampled_from(["", "a", "é", "data: x\n\n"])), max_size=12)


@given(TOKENS, st.lists(st.integers(1, 60), max_size=40))
def test_capture_of_a_stream_does_not_depend_on_how_it_is_cut(tokens: list[tuple[int, str]], cuts: list[int]) -> None:
    raw, capture, shown = stream_of(tokens), StreamCapture(asked(stream=True)), b""
    for cut in cuts:
        shown += capture.feed(raw[:cut])
        raw = raw[cut:]
    shown += capture.feed(raw)
    assert capture.complete
    assert capture.version_end == 7
    captured = capture.captured()
    assert unpack_ids(captured.prompt_ids).tolist() == [5, 6]
    assert unpack_ids(captured.completion_ids).tolist() == [token for token, _ in tokens]
    assert unpack_floats(captured.logprobs).tolist() == [-token / 8 for token, _ in tokens]
    text = "".join(text for _, text in tokens)
    assert json.loads(captured.response)["choices"][0]["message"]["content"] == text
    assert b'"finish_reason":"stop"' not in shown
    assert b"[DONE]" not in shown
    assert capture.held.endswith(b"data: [DONE]\n\n")
    assert capture.held.count(b"\n\n") == 2
    assert shown.count(b"\n\n") == 1 + sum(bool(text) for _, text in tokens)


@given(TOKENS, st.integers(0, 4000))
def test_stream_that_is_cut_off_is_never_complete(tokens: list[tuple[int, str]], cut: int) -> None:
    raw, capture = stream_of(tokens), StreamCapture(asked(stream=True))
    capture.feed(raw[: min(cut, len(raw) - 1)])
    assert not capture.complete
    captured = capture.captured()
    assert len(captured.completion_ids) == len(captured.logprobs)


def test_tool_call_in_pieces_is_whole_in_the_captured_response() -> None:
    capture = StreamCapture(asked(stream=True))
    parts = [{"id": "t1", "function": {"name": "add", "arguments": ""}}, {"function": {"arguments": '{"a"'}}]
    for part in [*parts, {"function": {"arguments": ": 1}"}}]:
        choice = {"delta": {"tool_calls": [{"index": 0} | part]}, "finish_reason": None}
        capture.feed(b"data: " + json.dumps({"id": "c", "model": "m", "choices": [choice]}).encode() + b"\n\n")
    (call,) = json.loads(capture.captured().response)["choices"][0]["message"]["tool_calls"]
    assert call == {"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def test_attempts_forgotten_make_older_counts_unknown() -> None:
    attempts = Attempts(limit=2, alone=True, known_from_ms=0)
    rollouts = [new_id() for _ in range(3)]
    for rollout in rollouts:
        attempts.begin((rollout, 1))
        attempts.finish((rollout, 1), safe=True)
    assert len(attempts) == 2
    assert attempts.n_calls((rollouts[0], 1)) is None
    assert attempts.n_calls((new_id(), 1)) in (0, None)  # None: made in the same millisecond as the forgotten one


def test_attempt_in_flight_is_never_forgotten() -> None:
    attempts = Attempts(limit=1, alone=True, known_from_ms=0)
    first, others = (new_id(), 1), [(new_id(), 1) for _ in range(5)]
    assert attempts.begin(first)
    for key in others:
        assert attempts.begin(key)
        attempts.finish(key, safe=True)
    attempts.finish(first, safe=True)
    assert not attempts.begin(first)


def test_id_from_the_future_is_not_trusted_and_leaves_other_counts_known() -> None:
    attempts, later = Attempts(limit=1, alone=True, known_from_ms=0), ("f" * 12 + "7" + "0" * 19, 1)
    attempts.begin(later)
    attempts.finish(later, safe=True)
    assert attempts.n_calls(later) is None
    rollout = (new_id(), 1)
    attempts.begin(rollout)
    attempts.finish(rollout, safe=True)
    assert attempts.n_calls(rollout) == 1


def test_session_never_tells_when_it_was_made() -> None:
    attempts = Attempts(limit=1000, alone=True, known_from_ms=0)
    for n in range(200):
        identity = identify(Place("/v1/x"), {"x-session-id": str(n)}, {}, "p.")
        assert attempts.n_calls((identity.rollout_id, 1)) is None


def test_a_persons_calls_are_not_one_rollout() -> None:
    one, other = (identify(Place("/v1/x"), {}, {"user": "ann"}, "p.") for _ in range(2))
    assert one.single
    assert one.rollout_id != other.rollout_id
    both = {"user": "ann", "metadata": {"session_id": "s"}}
    assert identify(Place("/v1/x"), {}, both, "p.") == identify(Place("/v1/x"), {"x-session-id": "s"}, {}, "p.")


@pytest.mark.parametrize(
    "attempt", ["1000001", "10000000000", "99999999999999999999", 1 << 31, 0, -1, True, 1.0, "", "¹"]
)
def test_attempt_that_no_record_can_hold_is_refused(attempt: Any) -> None:
    with pytest.raises(RefusedError, match="an integer from 1 to 1000000") as refused:
        check_attempt(attempt)
    assert refused.value.status == 400
    assert json.loads(refused.value.body)["error"]["param"] == "attempt"
    assert check_attempt("1000000") == check_attempt(1_000_000) == 1_000_000


@pytest.mark.parametrize("agent", ["", "x" * 129, "a\nb", "\udcff"])
def test_agent_that_no_record_can_hold_is_refused(agent: str) -> None:
    for where in ({}, {"x-leyden-rollout": "r"}, {"x-session-id": "s"}):
        with pytest.raises(RefusedError, match="printable characters"):
            identify(Place("/v1/x"), where | {"x-leyden-agent": agent}, {}, "p.")


def test_calls_without_identity_leave_nothing_in_the_register() -> None:
    attempts = Attempts(limit=1_000_000, alone=True, known_from_ms=0)
    for _ in range(10_000):
        identity = identify(Place("/v1/chat/completions"), {}, {}, "p.")
        key = (identity.rollout_id, identity.attempt)
        assert attempts.begin(key)
        attempts.started(key)  # as the tail tells of the gateway's own events
        attempts.finish(key, safe=True)
        attempts.close(key)
        assert attempts.n_calls(key) is None
    assert len(attempts) == 0


@pytest.mark.parametrize("attempt", ["1", "2"])
def test_rollout_of_a_single_call_takes_no_other(attempt: str) -> None:
    rollout = identify(Place("/v1/chat/completions"), {}, {}, "p.").rollout_id
    for name_it in (
        lambda: identify(Place("/v1/x"), {"x-leyden-rollout": rollout, "x-leyden-attempt": attempt}, {}, "p."),
        lambda: place(f"/rollout/{rollout}/attempt/{attempt}/v1/x"),
    ):
        with pytest.raises(RefusedError, match="has ended") as refused:
            name_it()
        assert refused.value.status == 410


def test_register_that_is_full_of_calls_in_flight_forgets_none_of_them() -> None:
    attempts, keys = Attempts(limit=2, alone=True, known_from_ms=0), [(new_id(), 1) for _ in range(4)]
    assert [attempts.begin(key) for key in keys] == [True] * 4
    assert [attempts.begin(key) for key in keys] == [False] * 4


def test_settling_waits_for_what_is_in_flight() -> None:
    async def settle() -> tuple[bool, bool]:
        attempts, key = Attempts(limit=9, alone=True, known_from_ms=0), (new_id(), 1)
        attempts.begin(key)
        early = await attempts.settle(key, timeout_s=0.01)
        asyncio.get_running_loop().call_soon(attempts.finish, key, True)
        late = await attempts.settle(key, timeout_s=5)
        assert attempts.n_calls(key) == 1
        with pytest.raises(RefusedError, match="has ended"):
            attempts.begin(key)
        return early, late

    assert asyncio.run(settle()) == (False, True)
