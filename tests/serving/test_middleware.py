"""The versions on every answer and the guards of the reload route, against a hand-written server and engine."""

import asyncio
import json
from collections.abc import MutableMapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from leyden.serving.vllm_plugin.middleware import LeydenMiddleware, with_version_end
from leyden.serving.vllm_plugin.reload import EngineVersion

Messages = list[MutableMapping[str, Any]]


class FakeEngine:
    """Records what it is asked; `staged` is what its worker says of the checkpoint, `fails`: call -> its error."""

    def __init__(self, staged: str = "", fails: dict[str, BaseException] | None = None) -> None:
        self.calls: list[str] = []
        self.staged, self.fails = staged, fails or {}

    async def pause_generation(self, mode: str, clear_cache: bool) -> None:
        self.calls.append(f"pause {mode} {clear_cache}")
        if "pause" in self.fails:
            raise self.fails["pause"]

    async def resume_generation(self) -> None:
        self.calls.append("resume")

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        self.calls.append(method)
        if method in self.fails:
            raise self.fails[method]
        return [self.staged if method == "leyden_staged" else None]


def ask(
    app: Any, path: str, body: bytes = b"", token: str | None = None, method: str = "POST", engine: Any = None
) -> Messages:
    scope = {
        "type": "http",
        "path": path,
        "method": method,
        "headers": [(b"authorization", f"Bearer {token}".encode())] if token else [],
        "app": SimpleNamespace(state=SimpleNamespace(engine_client=engine)),
    }
    sent: Messages = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent


def server(content_type: bytes, bodies: list[bytes], meanwhile: Any = lambda: None) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if content_type != b"text/event-stream":
            meanwhile()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", content_type)]})
        for body in bodies:
            meanwhile()
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return app


def headers(sent: Messages) -> dict[bytes, bytes]:
    return dict(sent[0]["headers"])


@pytest.fixture
def versions() -> EngineVersion:
    return EngineVersion(on_broken=lambda: None)


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("LEYDEN_ENGINE__RELOAD_TOKEN", "secret")
    return "secret"


def test_a_plain_answer_carries_the_versions_at_its_start_and_end(versions: EngineVersion) -> None:
    app = LeydenMiddleware(server(b"application/json", [b"{}"], lambda: setattr(versions, "version", 4)), versions)
    found = headers(ask(app, "/v1/chat/completions"))
    assert found[b"x-leyden-version-start"] == b"0"
    assert found[b"x-leyden-version-end"] == b"4"


def test_a_stream_carries_its_last_version_before_done(versions: EngineVersion) -> None:
    bodies = [b'data: {"a": 1}\n\n', b"data: [DONE]\n\n"]
    app = LeydenMiddleware(
        server(b"text/event-stream; charset=utf-8", bodies, lambda: setattr(versions, "version", 7)), versions
    )
    sent = ask(app, "/v1/chat/completions")
    assert headers(sent)[b"x-leyden-version-start"] == b"0"
    assert b"x-leyden-version-end" not in headers(sent)
    body = b"".join(m.get("body", b"") for m in sent[1:])
    assert body == b'data: {"a": 1}\n\n: leyden-version-end 7\n\ndata: [DONE]\n\n'


def test_what_is_not_under_v1_passes_as_it_is(versions: EngineVersion) -> None:
    assert set(headers(ask(LeydenMiddleware(server(b"text/plain", []), versions), "/health"))) == {b"content-type"}


@pytest.mark.parametrize(
    "quoted", [b'data: {"content": "data: [DONE]"}\n\n', b'data: {"content": "\\ndata: [DONE]"}\n\n']
)
def test_text_that_quotes_done_is_no_end(quoted: bytes) -> None:
    assert with_version_end(quoted, 1) == quoted
    assert with_version_end(quoted + b"data: [DONE]\n\n", 1) == quoted + b": leyden-version-end 1\n\ndata: [DONE]\n\n"


def test_a_reload_reads_beside_serving_and_resumes_after_loading(
    versions: EngineVersion, token: str, tmp_path: Path
) -> None:
    engine, app = FakeEngine(), LeydenMiddleware(server(b"", []), versions)
    body = json.dumps({"version": 3, "path": str(tmp_path)}).encode()
    sent = ask(app, "/leyden/reload", body, token, engine=engine)
    assert (sent[0]["status"], versions.version) == (200, 3)
    assert engine.calls == ["leyden_stage", "leyden_staged", "pause keep True", "leyden_apply", "resume"]


def test_a_refused_checkpoint_never_pauses_the_engine(versions: EngineVersion, token: str, tmp_path: Path) -> None:
    engine, app = FakeEngine(staged="holds NaN"), LeydenMiddleware(server(b"", []), versions)
    body = json.dumps({"version": 3, "path": str(tmp_path)}).encode()
    sent = ask(app, "/leyden/reload", body, token, engine=engine)
    assert (sent[0]["status"], versions.version) == (422, 0)
    assert json.loads(sent[1]["body"])["error"] == "holds NaN"
    assert engine.calls == ["leyden_stage", "leyden_staged", "leyden_discard"]


def test_a_half_loaded_engine_generates_nothing_more_and_its_process_ends(token: str, tmp_path: Path) -> None:
    ended: list[bool] = []
    versions = EngineVersion(on_broken=lambda: ended.append(True))
    engine = FakeEngine(fails={"leyden_apply": RuntimeError("meta tensor")})
    app = LeydenMiddleware(server(b"application/json", [b"{}"]), versions)
    body = json.dumps({"version": 3, "path": str(tmp_path)}).encode()
    assert ask(app, "/leyden/reload", body, token, engine=engine)[0]["status"] == 500
    assert (ended, engine.calls[-1]) == ([True], "leyden_apply")
    assert ask(app, "/v1/chat/completions")[0]["status"] == 503


def test_a_reload_that_is_cancelled_while_the_workers_load_is_a_broken_one(tmp_path: Path) -> None:
    ended: list[bool] = []
    versions = EngineVersion(on_broken=lambda: ended.append(True))
    engine = FakeEngine(fails={"leyden_apply": asyncio.CancelledError()})
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(versions.reload(engine, 3, str(tmp_path)))
    assert (versions.broken, ended, engine.calls[-1]) == (True, [True], "leyden_apply")


def test_an_engine_that_could_not_be_paused_goes_on_with_the_weights_it_has(
    versions: EngineVersion, token: str, tmp_path: Path
) -> None:
    engine, app = FakeEngine(fails={"pause": RuntimeError("busy")}), LeydenMiddleware(server(b"", []), versions)
    body = json.dumps({"version": 3, "path": str(tmp_path)}).encode()
    with pytest.raises(RuntimeError, match="busy"):
        ask(app, "/leyden/reload", body, token, engine=engine)
    assert (versions.version, versions.broken, engine.calls[-1]) == (0, False, "resume")


@pytest.mark.parametrize(
    ("given", "body", "status"),
    [
        (None, b"{}", 401),
        ("wrong", b"{}", 401),
        ("secret", b"no json", 400),
        ("secret", b'{"version": -1, "path": "/tmp"}', 400),
        ("secret", b'{"version": true, "path": "/tmp"}', 400),
        ("secret", b'{"version": 1, "path": "/no/such/folder"}', 400),
        ("secret", b'{"version": 1, "path": "' + b"x" * 70_000 + b'"}', 400),
    ],
)
def test_a_reload_without_the_token_or_with_nonsense_is_refused(
    versions: EngineVersion, token: str, given: str | None, body: bytes, status: int
) -> None:
    engine = FakeEngine()
    assert (
        ask(LeydenMiddleware(server(b"", []), versions), "/leyden/reload", body, given, engine=engine)[0]["status"]
        == status
    )
    assert engine.calls == []


def test_without_a_token_of_its_own_the_engine_reloads_for_nobody(
    versions: EngineVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEYDEN_ENGINE__RELOAD_TOKEN", raising=False)
    app = LeydenMiddleware(server(b"", []), versions)
    assert ask(app, "/leyden/reload", b"{}", "", engine=FakeEngine())[0]["status"] == 403
