"""What emit sends, and that it does not give up on a gateway that is only away for a moment."""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import leyden
import pytest
from leyden.producers.emit import EmitError
from leyden.producers.identity import Identity, NoRolloutError


class StandInGateway:
    """Keeps what it was sent; answers with the statuses it was told, then 200."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, Any], str | None]] = []
        self.statuses: list[int] = []
        got, statuses = self.got, self.statuses

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                got.append((self.path, body, self.headers["authorization"]))
                self.send_response(statuses.pop(0) if statuses else 200)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, format: str, *args: object) -> None:
                """Silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInGateway]:
    """A gateway, in the environment of a rollout."""
    made = StandInGateway()
    for name, value in Identity("abc", 2, made.url, "key").environment().items():
        monkeypatch.setenv(name, value)
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_each_kind_goes_to_its_route_with_the_attempt(gateway: StandInGateway) -> None:
    leyden.emit(reward=1)
    leyden.emit(reward=0.5, source="judge", key="style", call_id="c", token_span=(2, 4))
    leyden.emit(message="hello", name="log")
    leyden.emit(object={"plan": [1, 2]})
    leyden.emit(annotation={"lang": "en"})
    leyden.emit(exception=ValueError("bad"))
    bodies = [body for _, body, _ in gateway.got]
    assert bodies[0] == {"attempt": 2, "value": 1.0, "source": "agent", "key": "reward"}
    assert bodies[1] == {
        "attempt": 2,
        "call_id": "c",
        "value": 0.5,
        "source": "judge",
        "key": "style",
        "token_span": [2, 4],
    }
    assert [(b["kind"], b["name"]) for b in bodies[2:]] == [
        ("message", "log"),
        ("object", ""),
        ("annotation", ""),
        ("exception", ""),
    ]
    assert bodies[5]["content"]["type"] == "ValueError"
    assert [path for path, _, _ in gateway.got] == [
        *["/v1/rollouts/abc/rewards"] * 2,
        *["/v1/rollouts/abc/notes"] * 4,
    ]
    assert {key for _, _, key in gateway.got} == {"Bearer key"}


def test_threads_and_subprocesses_belong_to_the_rollout(gateway: StandInGateway) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(leyden.emit, reward=1.0).result()
    subprocess.run([sys.executable, "-c", "import leyden; leyden.emit(message='from below')"], check=True)
    assert [path for path, _, _ in gateway.got] == ["/v1/rollouts/abc/rewards", "/v1/rollouts/abc/notes"]


def test_feedback_from_outside_names_its_rollout_and_leaves_the_attempt_open(gateway: StandInGateway) -> None:
    leyden.emit(reward=1.0, rollout_id="other", source="user")
    assert gateway.got[0][:2] == (
        "/v1/rollouts/other/rewards",
        {"value": 1.0, "source": "user", "key": "reward"},
    )


def test_a_full_gateway_is_asked_again_and_a_refusal_is_an_error(gateway: StandInGateway) -> None:
    gateway.statuses[:] = [503, 503]
    leyden.emit(reward=1.0)
    assert len(gateway.got) == 3
    gateway.statuses[:] = [400]
    with pytest.raises(EmitError, match="HTTP 400"):
        leyden.emit(reward=1.0)


def test_what_is_no_reward_is_refused_before_it_is_sent(gateway: StandInGateway) -> None:
    for nonsense in ({"reward": math.nan}, {"reward": 1.0, "message": "x"}, {}, {"object": {1, 2}}):
        with pytest.raises(ValueError, match=r"finite|exactly one|not JSON"):
            leyden.emit(**nonsense)  # pyright: ignore[reportArgumentType]
    assert gateway.got == []


def test_outside_of_a_rollout_emit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEYDEN_ROLLOUT", raising=False)
    with pytest.raises(NoRolloutError, match="outside of a rollout"):
        leyden.emit(reward=1.0)


def test_a_gateway_that_stays_away_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in Identity("abc", 1, "http://127.0.0.1:9").environment().items():
        monkeypatch.setenv(name, value)
    with pytest.raises(EmitError, match="did not take it"):
        leyden.emit(reward=1.0, timeout_s=0.3)
