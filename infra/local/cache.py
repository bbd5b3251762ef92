"""What is slow to fetch or build, kept outside the checkout: made once, whole or not at all."""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..errors import LeydenError
from .processes import bound

Say = Callable[[str], None]
HEARTBEAT_S = 10.0


class FetchError(LeydenError):
    """Something could not be fetched or built; the message says what is missing and how to get it."""


def say_on_stderr(line: str) -> None:
    """One line of progress."""
    sys.stderr.write(f"leyden: {line}\n")
    sys.stderr.flush()


def cache_dir() -> Path:
    """$LEYDEN_CACHE, else leyden/ in the user's cache folder."""
    if given := os.environ.get("LEYDEN_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leyden"


def built(name: str, build: Callable[[Path], None], say: Say = say_on_stderr) -> Path:
    """The folder `name` of the cache; where it is missing, `build` fills an empty folder that then takes its place.

    Several processes may ask at once: one builds, the others wait for it.
    """
    target = cache_dir() / name
    if target.is_dir():
        return target
    with _locked(name, say):
        if not target.is_dir():
            # Under the lock: what lies here was left by a build that was killed.
            fresh = target.with_name(f".{target.name}.building")
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(parents=True)
            try:
                build(fresh)
                fresh.rename(target)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
    return target


def run_shown(what: str, argv: list[str], log: Path, say: Say, env: Mapping[str, str] | None = None) -> None:
    """Run a long command with its output in `log` and a line of progress now and then. Raises FetchError."""
    say(f"{what} ...")
    began = last = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            bound(argv),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
        )
        try:
            while process.poll() is None:
                time.sleep(0.1)
                if time.monotonic() - last > HEARTBEAT_S:
                    last = time.monotonic()
                    say(f"{what} ... {last - began:.0f} s, {log.stat().st_size} bytes of log")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise FetchError(f"{what}: {argv[0]} ended with {process.returncode}:\n{tail}")
    say(f"{what}: done in {time.monotonic() - began:.0f} s")


@contextmanager
def _locked(name: str, say: Say) -> Iterator[None]:
    locks = cache_dir() / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{name}: waiting for another process that makes it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
