"""Announcement of a checkpoint to serving it, against reading the same bytes from the object store and hashing them."""

import hashlib
import json
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from uuid import uuid4

import httpx
import torch
from leyden.avro import Checkpoint, now_ms
from leyden.infra import manifest
from leyden.infra.bf16 import native_bf16
from leyden.infra.checkpoint_log import CheckpointWriter
from leyden.infra.local.models import smollm2_model
from leyden.infra.local.stack import EngineSpec, RunningStack, StackSpec, role, start
from leyden.infra.manifest import FileEntry, Manifest
from leyden.infra.objects import ObjectStore
from leyden.infra.settings import RoleSettings
from safetensors.torch import load_file, save

ROUNDS = 7
MAX_READ_RATIO = 3.0
TIMEOUT_S = 60.0
# Coarse enough not to take the processor from what is measured.
POLL_S = 0.02


def publish(version: int, weights: bytes, side_files: dict[str, bytes], objects: ObjectStore) -> Manifest:
    """Upload a version with these weights, manifest last; nothing is announced."""
    files = {"serve/model.safetensors": weights, **{f"serve/{name}": data for name, data in side_files.items()}}
    header_bytes = int.from_bytes(weights[:8], "little")
    header = json.loads(weights[8 : 8 + header_bytes])
    entry = Manifest(
        policy="policy",
        version=version,
        run_id=uuid4().hex[:8],
        parent=version - 1 or None,
        created_ms=now_ms(),
        offset_from=0,
        offset_to=0,
        files=[FileEntry(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()],
        tensors={n: (t["dtype"], t["shape"]) for n, t in header.items() if n != "__metadata__"},
        batches=[],
        metrics={},
    )
    for name, data in files.items():
        objects.put(entry.folder + name, data)
    manifest.create(entry, objects)
    return entry


def read_and_hash(entry: Manifest, objects: ObjectStore) -> float:
    """Seconds to read every byte of serve/ and to compare the digests: what no delivery can do without."""
    begin = time.perf_counter()
    for file in entry.files:
        digest = hashlib.sha256()
        for chunk in objects.chunks(entry.folder + file.name):
            digest.update(chunk)
        assert digest.hexdigest() == file.sha256
    return time.perf_counter() - begin


def deliver(entry: Manifest, digest: bytes, writer: CheckpointWriter, engine: httpx.Client) -> float:
    """Seconds from announcing the candidate until the engine answers a request by its weights."""
    record = Checkpoint(
        policy=entry.policy,
        version=entry.version,
        state="candidate",
        parent=entry.parent,
        run_id=entry.run_id,
        manifest=manifest.manifest_key(entry.policy, entry.version),
        manifest_sha256=digest,
        metrics="{}",
        ts_ms=now_ms(),
    )
    begin = time.perf_counter()
    writer.write([record])
    while engine.get("/leyden/version").json()["version"] != entry.version:
        if time.perf_counter() - begin > TIMEOUT_S:
            raise TimeoutError(f"version {entry.version} is not served after {TIMEOUT_S} s")
        time.sleep(POLL_S)
    answer = engine.post("/v1/completions", json={"model": "policy", "prompt": "2 + 2 =", "max_tokens": 1})
    seconds = time.perf_counter() - begin
    assert answer.headers["x-leyden-version-start"] == str(entry.version)
    return seconds


def measure(stack: RunningStack, model: Path, rounds: int) -> dict[str, list[float]]:
    """Both sides in turn, `rounds` times, each time with other weights; seconds of each round."""
    objects, writer = ObjectStore(stack.settings.objects), CheckpointWriter(stack.settings)
    side_files = {path.name: path.read_bytes() for path in model.iterdir() if path.suffix in (".json", ".jinja")}
    # As the learner publishes on this machine: served in the precision that the engine computes in.
    dtype = torch.bfloat16 if native_bf16() else torch.float32
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(model / "model.safetensors").items()}
    figures: dict[str, list[float]] = {"deliver_s": [], "read_s": []}
    with httpx.Client(base_url=stack.engine_url, timeout=TIMEOUT_S) as engine:
        # The first round warms both sides (page cache, connections) and is not counted.
        for version in range(1, rounds + 2):
            tensors["model.norm.weight"] *= 1.001
            entry = publish(version, save(tensors, {"format": "pt"}), side_files, objects)
            digest = hashlib.sha256(manifest.to_bytes(entry)).digest()
            read_s = read_and_hash(entry, objects)
            deliver_s = deliver(entry, digest, writer, engine)
            print(f"version {version}: read and hash {read_s:.3f} s, delivered {deliver_s:.3f} s", file=sys.stderr)
            if version > 1:
                figures["read_s"].append(read_s)
                figures["deliver_s"].append(deliver_s)
    return figures


def parts(history: Path) -> dict[str, float]:
    """Medians of what the reloader itself measured: fetch, stage, pause and its whole from the live announcement on."""
    rows = [json.loads(line)["seconds"] for line in history.read_text().splitlines()][1:]
    return {f"{name}_s": round(statistics.median(row[name] for row in rows), 4) for name in rows[0]}


def main() -> None:
    """Start the stack, measure, print one JSON line."""
    model = smollm2_model()
    with tempfile.TemporaryDirectory() as folder:
        spec = StackSpec(
            Path(folder),
            RoleSettings(),
            engine=EngineSpec(model),
            roles=(role("promoter"), role("reloader")),
        )
        with start(spec) as stack:
            stack.wait_ready("engine", 240.0)
            figures = measure(stack, model, ROUNDS)
        reloader = parts(Path(folder) / "reloader" / "reloader" / "reloads.jsonl")
    medians = {name: round(statistics.median(values), 4) for name, values in figures.items()}
    ratio = round(medians["deliver_s"] / medians["read_s"], 3)
    line = {
        "name": "reload",
        "machine": {"cpus": torch.get_num_threads(), "processor": platform.machine(), "torch": torch.__version__},
        "figures": medians | {"rounds": ROUNDS, "reloader": reloader, "all": figures},
        "bars": {"read_ratio": {"value": ratio, "at_most": MAX_READ_RATIO, "holds": ratio <= MAX_READ_RATIO}},
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
