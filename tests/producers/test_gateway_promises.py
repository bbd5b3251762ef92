"""What the gateway promises when something goes wrong, and its routes, with a fake engine and a real Kafka."""

import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from leyden.avro import Event, LLMCall, Note, Reward, RolloutEnded, RolloutStarted, TokenSpan, new_id, unpack_ids
from leyden.infra.local.stack import RunningStack
from leyden.infra.objects import ObjectStore
from leyden.infra.parking import unpark

pytestmark = pytest.mark.kafka
StartGateway = Callable[..., RunningStack]
ReadEvents = Callable[[RunningStack, str, int], list[Event]]


@pytest.fixture(scope="module")
def one_gateway(start_gateway: StartGateway, one_fake_engine: Any) -> RunningStack:
    """A gateway before the fake engine; it gives up on an absent engine at once."""
    return start_gateway(one_fake_engine.settings, LEYDEN_ENGINE_WAIT_S="0")


@pytest.fixture
def gateway(one_gateway: RunningStack, fake_engine: Any) -> RunningStack:
    """The shared gateway, the fake engine behind it as new."""
    assert fake_engine.requests == []
    return one_gateway


def ask(stack: RunningStack, rollout: str, what: str = "hello", attempt: int = 1, **more: Any) -> httpx.Response:
    """One call of an attempt; `what` tells the fake engine what to do."""
    body = {"model": "policy", "messages": [{"role": "user", "content": what}]} | more
    url = f"{stack.gateway_url}/rollout/{rollout}/attempt/{attempt}/v1/chat/completions"
    return httpx.post(url, json=body, timeout=60)


def tell(stack: RunningStack, route: str, body: Any) -> httpx.Response:
    """POST to one of the gateway's own routes."""
    return httpx.post(f"{stack.gateway_url}/v1/rollouts/{route}", json=body, timeout=60)


def calls_of(events: list[Event]) -> list[LLMCall]:
    """The calls among events."""
    return [event.body for event in events if isinstance(event.body, LLMCall)]


def until(condition: Callable[[], Any], timeout_s: float = 20.0) -> None:
    """Wait for `condition`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about"
        threading.Event().wait(0.01)


def test_versions_of_a_call_are_those_at_its_start_and_end(gateway: RunningStack, read_events: ReadEvents) -> None:
    rollout = new_id()
    assert "leyden-version" not in ask(gateway, rollout, stream=True).text
    ask(gateway, rollout)
    streamed, plain = calls_of(read_events(gateway, rollout, 3))
    assert (streamed.version_start, streamed.version_end) == (4, 6)
    assert (plain.version_start, plain.version_end) == (4, 5)
    assert httpx.get(f"{gateway.gateway_url}/v1/policies/policy").json() == {"policy": "policy", "version": 4}


def test_chunk_without_text_keeps_its_token(gateway: RunningStack, read_events: ReadEvents) -> None:
    rollout = new_id()
    answer = ask(gateway, rollout, "silent", stream=True)
    assert answer.text.count('"delta":{}') == 0
    (call,) = calls_of(read_events(gateway, rollout, 2))
    assert unpack_ids(call.completion_ids).tolist() == [7, 8, 9, 10]
    assert len(call.logprobs) == 4 * 4


@pytest.mark.parametrize("what", ["die", "no end"])
def test_stream_of_an_engine_that_dies_never_ends_cleanly(
    gateway: RunningStack, read_events: ReadEvents, what: str
) -> None:
    rollout = new_id()
    client = openai.OpenAI(
        base_url=f"{gateway.gateway_url}/rollout/{rollout}/attempt/1/v1", api_key="none", max_retries=0
    )
    stream = client.chat.completions.create(model="policy", messages=[{"role": "user", "content": what}], stream=True)
    with pytest.raises(openai.APIError):
        list(stream)
    client.close()
    with pytest.raises(httpx.RemoteProtocolError):
        ask(gateway, rollout, what, stream=True)
    call, _ = calls_of(read_events(gateway, rollout, 3))
    assert (call.status, call.n_completion_tokens) == ("failed", 2 if what == "die" else 4)


def test_error_of_the_engine_within_a_stream_reaches_the_agent(gateway: RunningStack, read_events: ReadEvents) -> None:
    rollout = new_id()
    assert "out of memory" in ask(gateway, rollout, "error", stream=True).text
    (call,) = calls_of(read_events(gateway, rollout, 2))
    assert (call.status, call.error) == ("failed", "out of memory")


def test_plain_call_of_an_engine_that_dies_is_a_bad_gateway(gateway: RunningStack, read_events: ReadEvents) -> None:
    rollout = new_id()
    answer = ask(gateway, rollout, "reset")
    assert (answer.status_code, answer.json()["error"]["type"]) == (502, "server_error")
    assert calls_of(read_events(gateway, rollout, 2))[0].status == "failed"


def test_answer_that_cannot_be_captured_is_refused(gateway: RunningStack) -> None:
    assert ask(gateway, new_id(), "bare").status_code == 502


def test_engines_refusal_keeps_its_retry_after(gateway: RunningStack) -> None:
    answer = ask(gateway, new_id(), "busy")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")


@pytest.mark.parametrize(
    "wrong", [{"n": 2}, {"use_beam_search": True}, {"messages": []}, {"max_tokens": 10**9}, {"stream": "yes"}]
)
def test_what_cannot_be_captured_is_refused_before_the_engine_is_asked(
    gateway: RunningStack, fake_engine: Any, wrong: dict[str, Any]
) -> None:
    answer = ask(gateway, new_id(), **wrong)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert answer.json()["error"]["param"] == next(iter(wrong))
    assert fake_engine.requests == []


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'{"messages": NaN}', b"\xff", b'{"a":' * 5000])
def test_broken_json_is_refused(gateway: RunningStack, raw: bytes) -> None:
    answer = httpx.post(f"{gateway.gateway_url}/v1/chat/completions", content=raw)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


def test_body_over_the_limit_and_unknown_routes_are_refused(gateway: RunningStack) -> None:
    assert ask(gateway, new_id(), "x" * (5 << 20)).status_code == 413
    for route in ("/v1/rerank", "/v1/audio/speech", "/rollout/x/v1/models"):
        answer = httpx.post(gateway.gateway_url + route, json={})
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "invalid_request_error")


def test_engine_that_is_away_is_waited_for(start_gateway: StartGateway, own_fake_engine: Any) -> None:
    settings = own_fake_engine.settings
    own_fake_engine.close()
    stack = start_gateway(settings, LEYDEN_ENGINE_WAIT_S="0.5", LEYDEN_ENGINE_RETRY_S="0.05")
    rollout = new_id()
    began = time.monotonic()
    answer = ask(stack, rollout)
    assert time.monotonic() - began >= 0.5
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_unavailable")
    assert int(answer.headers["retry-after"]) > 0


def test_settled_attempt_counts_its_calls_and_takes_no_more(
    gateway: RunningStack, fake_engine: Any, read_events: ReadEvents
) -> None:
    rollout = new_id()
    ask(gateway, rollout)
    late = threading.Thread(target=ask, args=(gateway, rollout, "wait"))
    late.start()
    until(lambda: len(fake_engine.requests) == 2)
    assert tell(gateway, f"{rollout}/attempts/1/settle", {"timeout_s": 0.05}).json() == {"n_calls": None}
    gone = ask(gateway, rollout)
    assert (gone.status_code, gone.headers["x-should-retry"]) == (410, "false")
    fake_engine.release.set()
    assert tell(gateway, f"{rollout}/attempts/1/settle", {"timeout_s": 10}).json() == {"n_calls": 2}
    late.join()
    assert len(calls_of(read_events(gateway, rollout, 3))) == 2
    assert ask(gateway, rollout, attempt=2).status_code == 200
    assert tell(gateway, f"{new_id()}/attempts/1/settle", {}).json() == {"n_calls": 0}
    assert tell(gateway, "not-made-here/attempts/1/settle", {}).json() == {"n_calls": None}


def test_end_that_somebody_else_wrote_closes_the_attempt(gateway: RunningStack, read_events: ReadEvents) -> None:
    rollout = new_id()
    ask(gateway, rollout)
    ended = tell(gateway, f"{rollout}/end", {"status": "succeeded"})
    assert ended.status_code == 200
    assert ask(gateway, rollout).status_code == 410
    end = read_events(gateway, rollout, 3)[-1].body
    assert isinstance(end, RolloutEnded)
    assert (end.status, end.n_calls) == ("succeeded", 1)


def test_feedback_is_in_kafka_when_it_is_acknowledged(gateway: RunningStack, read_events: ReadEvents) -> None:
    rollout = new_id()
    ask(gateway, rollout, attempt=3)
    reward = {"value": 0.5, "source": "judge", "call_id": "c", "token_span": [1, 4]}
    assert tell(gateway, f"{rollout}/rewards", reward).json()["attempt"] == 3
    assert tell(gateway, f"{rollout}/rewards", {"value": 1, "attempt": 2}).status_code == 200
    assert tell(gateway, f"{rollout}/notes", {"kind": "object", "name": "n", "content": {"a": [1]}}).status_code == 200
    first, second, note = (event.body for event in read_events(gateway, rollout, 5)[2:])
    assert first == Reward(0.5, "judge", "judge:c:1-4", "c", TokenSpan(1, 4))
    assert second == Reward(1.0, "user", "user")
    assert note == Note("object", "n", b'{"a":[1]}')


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("x/rewards", '{"value": NaN}'),
        ("x/rewards", '{"value": 1e999}'),
        ("x/rewards", '{"value": true}'),
        ("x/rewards", '{"value": 1, "token_span": [3, 3], "call_id": "c"}'),
        ("x/rewards", '{"value": 1, "attempt": 0}'),
        ("x/notes", '{"kind": "poem", "name": "n"}'),
        ("x/end", '{"status": "splendid"}'),
        ("a%2Fb/rewards", '{"value": 1}'),
    ],
)
def test_wrong_feedback_is_refused(gateway: RunningStack, route: str, body: str) -> None:
    answer = httpx.post(f"{gateway.gateway_url}/v1/rollouts/{route}", content=body)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_session_names_one_rollout(gateway: RunningStack) -> None:
    url = f"{gateway.gateway_url}/v1/chat/completions"
    body = {"model": "policy", "messages": [{"role": "user", "content": "hello"}]}

    def rollout(headers: dict[str, str], **more: Any) -> str:
        return httpx.post(url, json=body | more, headers=headers).headers["x-leyden-rollout"]

    assert rollout({"x-session-id": "s1"}) == rollout({}, metadata={"session_id": "s1"}, user="ann")
    assert rollout({}, user="ann") != rollout({}, user="ann")
    assert rollout({"x-leyden-rollout": "r1", "x-leyden-attempt": "2"}) == "r1"
    assert rollout({}) != rollout({})


def test_call_too_large_for_kafka_is_whole_in_the_object_store(gateway: RunningStack, read_events: ReadEvents) -> None:
    rollout = new_id()
    answer = ask(gateway, rollout, "large")
    event = read_events(gateway, rollout, 2)[1]
    assert isinstance(event.body, LLMCall)
    assert event.body.parked is not None
    assert event.body.response == b""
    assert event.body.n_completion_tokens == 4
    whole = unpark(event, ObjectStore(gateway.settings.objects))
    assert calls_of([whole])[0].response == answer.content


def test_sigterm_finishes_the_calls_under_way(
    start_gateway: StartGateway, fake_engine: Any, read_events: ReadEvents
) -> None:
    gateway = start_gateway(fake_engine.settings)
    rollout = new_id()
    answers: list[httpx.Response] = []
    call = threading.Thread(target=lambda: answers.append(ask(gateway, rollout, "wait")))
    call.start()
    until(lambda: fake_engine.requests)
    stop = threading.Thread(target=gateway.stop_process, args=("gateway",))
    stop.start()
    until(lambda: refuses(gateway.gateway_url))
    fake_engine.release.set()
    call.join()
    stop.join()
    assert answers[0].status_code == 200
    assert calls_of(read_events(gateway, rollout, 2))[0].status == "completed"


def refuses(url: str) -> bool:
    """Nobody listens there."""
    try:
        httpx.get(url)
    except httpx.ConnectError:
        return True
    return False


def test_retry_of_the_client_is_recorded(gateway: RunningStack, read_events: ReadEvents) -> None:
    rollout = new_id()
    url = f"{gateway.gateway_url}/rollout/{rollout}/attempt/1/v1/chat/completions"
    body = {"model": "policy", "messages": [{"role": "user", "content": "hello"}]}
    for count in ("0", "1"):
        httpx.post(url, json=body, headers={"x-stainless-retry-count": count})
    started, *_ = events = read_events(gateway, rollout, 3)
    assert isinstance(started.body, RolloutStarted)
    first, second = calls_of(events)
    assert (first.retry_count, second.retry_count) == (0, 1)
    assert first.request_digest == second.request_digest
    assert first.call_id != second.call_id
