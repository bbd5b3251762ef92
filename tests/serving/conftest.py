"""A deployment of its own for each test, checkpoints made from the tiny model, and an engine of a few lines."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
from leyden.avro import Checkpoint, now_ms
from leyden.infra import manifest
from leyden.infra.checkpoint_log import CheckpointLog, CheckpointWriter
from leyden.infra.deployment import apply
from leyden.infra.manifest import FileEntry, Manifest
from leyden.infra.objects import ObjectStore
from leyden.infra.settings import EngineSettings, RoleSettings
from leyden.serving.engine_client import EngineClient
from leyden.serving.metrics import PromoterMetrics, ReloaderMetrics
from leyden.serving.promoter import Promoter
from leyden.serving.reloader import Reloader
from leyden.serving.settings import PromoterSettings, ReloaderSettings
from leyden.serving.store import CheckpointStore
from prometheus_client import CollectorRegistry
from pydantic import SecretStr
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]


@dataclass
class FakeEngine:
    """What LeydenMiddleware answers, without a model; every accepted reload is in `loaded`."""

    version: int = 0
    replica: str = "first start"
    refuse: str | None = None
    loaded: list[tuple[int, Path]] = field(default_factory=list)
    url: str = ""

    def restart(self) -> None:
        """As a killed and restarted vLLM: the base model again, another replica id."""
        self.version, self.replica = 0, self.replica + " again"

    def answer(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        if path == "/leyden/reload" and self.refuse:
            return 422, {"error": self.refuse}
        if path == "/leyden/reload":
            request = json.loads(body)
            self.version = request["version"]
            self.loaded.append((self.version, Path(request["path"])))
        return 200, {"version": self.version, "loading": None, "replica": self.replica, "stage_s": 0.0, "pause_s": 0.0}


@pytest.fixture
def fake_engine() -> Iterator[FakeEngine]:
    engine = FakeEngine()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, content = engine.answer(self.path, body)
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    engine.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield engine
    server.shutdown()
    server.server_close()


@dataclass
class Deployment:
    """Topics and a bucket of one test; `publish` does what the learner does."""

    base: dict[str, Any]
    objects: ObjectStore
    folder: Path
    closing: list[Callable[[], None]] = field(default_factory=list)

    def publish(
        self, version: int, parent: int | None, checkpoint: Path, announce: bool = True, adapters: bool = False
    ) -> Manifest:
        """Upload `checkpoint` as serve/ with a small resume/, the manifest last, then announce a candidate."""
        entry = Manifest(
            policy="policy",
            version=version,
            run_id=uuid4().hex[:8],
            parent=parent,
            created_ms=now_ms(),
            offset_from=0,
            offset_to=0,
            files=[],
            tensors={n: (str(t.dtype), list(t.shape)) for n, t in load_file(checkpoint / "model.safetensors").items()},
            batches=[],
            metrics={},
            adapters=adapters,
        )
        files = {f"serve/{path.name}": path.read_bytes() for path in checkpoint.iterdir()}
        files |= {"resume/parameters": b"parameters", "resume/state": b"state"}
        for name, data in files.items():
            self.objects.put(entry.folder + name, data)
            entry.files.append(FileEntry(name, len(data), hashlib.sha256(data).hexdigest()))
        digest = manifest.create(entry, self.objects)
        record = Checkpoint(
            policy="policy",
            version=version,
            state="candidate",
            parent=parent,
            run_id=entry.run_id,
            manifest=manifest.manifest_key("policy", version),
            manifest_sha256=digest,
            metrics="{}",
            ts_ms=now_ms(),
        )
        if announce:
            CheckpointWriter(self.settings()).write([record])
        return entry

    def settings(self, **more: Any) -> PromoterSettings:
        return PromoterSettings(**self.base, **more)

    def promoter(self, **more: Any) -> Promoter:
        """A promoter as its composition root makes it."""
        settings = self.settings(**more)
        log = CheckpointLog(settings, "promoter")
        self.closing.append(log.close)
        return Promoter(settings, log, CheckpointWriter(settings), self.objects, PromoterMetrics(CollectorRegistry()))

    def reloader(self, engine_url: str, token: str = "token", **more: Any) -> Reloader:
        """A reloader as its composition root makes it; `self.closing` ends it."""
        engine = EngineSettings(url=engine_url, reload_token=SecretStr(token))
        given = {"engine_poll_s": 0.05, "backoff_s": 0.05, "cache_dir": self.folder / "cache"} | more
        settings = ReloaderSettings(**self.base, engine=engine, **given)
        root = given["cache_dir"]
        log = CheckpointLog(settings, "reloader")
        store = CheckpointStore(root, self.objects, settings.download_threads)
        client = EngineClient(settings.engine, settings.reload_timeout_s)
        self.closing += [log.close, store.close, client.close]
        metrics = ReloaderMetrics(CollectorRegistry())
        made = Reloader(settings, log, self.objects, store, client, metrics, root / "reloads.jsonl")
        self.closing.append(made.close)
        return made

    def close(self) -> None:
        """End what was made."""
        while self.closing:
            self.closing.pop()()


@pytest.fixture
def stand(deployment: RoleSettings, tmp_path: Path) -> Iterator[Deployment]:
    """A deployment with its topics and bucket."""
    base = {"prefix": deployment.prefix, "kafka": deployment.kafka, "objects": deployment.objects}
    made = Deployment(base, ObjectStore(deployment.objects), tmp_path)
    apply(deployment)
    yield made
    made.close()


@pytest.fixture
def checkpoint(tiny_model_dir: Path, tmp_path: Path) -> Callable[[str, Callable[[Tensors], object]], Path]:
    """Make a checkpoint folder: the tiny model with its tensors changed in place."""

    def make(name: str, change: Callable[[Tensors], object]) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for path in tiny_model_dir.iterdir():
            if path.suffix in (".json", ".jinja"):
                (folder / path.name).write_bytes(path.read_bytes())
        tensors = load_file(tiny_model_dir / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return make


def trained(seed: int) -> Callable[[Tensors], None]:
    """A change of all weights, as large as one that a test must see."""

    def change(tensors: Tensors) -> None:
        generator = torch.Generator().manual_seed(seed)
        for tensor in tensors.values():
            tensor += 0.05 * torch.randn(tensor.shape, generator=generator)

    return change


@pytest.fixture
def new_weights(checkpoint: Callable[[str, Callable[[Tensors], object]], Path]) -> Callable[[int], Path]:
    """A valid checkpoint of other weights, one for each seed."""
    return lambda seed: checkpoint(f"weights-{seed}", trained(seed))
