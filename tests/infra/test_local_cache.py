"""The cache: built once and whole, also by several at once; what cannot be fetched says how to get it."""

import threading
from pathlib import Path

import pytest
from leyden.infra.local import fetch
from leyden.infra.local.cache import FetchError, built, cache_dir, run_shown


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEYDEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def quiet(line: str) -> None:
    """Says nothing."""


def test_several_that_ask_at_once_build_once() -> None:
    builds: list[Path] = []

    def build(into: Path) -> None:
        builds.append(into)
        (into / "file").write_text("whole")

    threads = [threading.Thread(target=built, args=("thing", build, quiet)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert (cache_dir() / "thing" / "file").read_text() == "whole"


def test_a_build_that_fails_leaves_nothing_and_is_tried_again() -> None:
    def fails(into: Path) -> None:
        (into / "half").write_text("x")
        raise FetchError("no network")

    with pytest.raises(FetchError):
        built("thing", fails, quiet)
    assert not (cache_dir() / "thing").exists()
    assert built("thing", lambda into: (into / "whole").touch(), quiet).is_dir()
    assert [p.name for p in (cache_dir() / "thing").iterdir()] == ["whole"]


def test_a_command_that_fails_shows_the_end_of_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"(?s)fetching: sh ended with 7:.*the cause"):
        run_shown("fetching", ["sh", "-c", "echo the cause; exit 7"], tmp_path / "log", quiet)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (fetch.kafka_jars, "Maven is missing.*apt-get install maven.*LEYDEN_KAFKA__BOOTSTRAP"),
        (fetch.minio_binary, "Go is missing.*apt-get install golang.*LEYDEN_OBJECTS__ENDPOINT"),
    ],
)
def test_a_missing_tool_is_named_with_the_way_to_get_it(
    make: object, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FetchError, match=says):
        make(quiet)  # type: ignore[operator]


def test_java_of_java_home_is_taken_when_it_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for home, version in (("old", "11.0.2"), ("new", "21.0.1")):
        (tmp_path / home / "bin").mkdir(parents=True)
        java = tmp_path / home / "bin" / "java"
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    assert fetch.java(quiet) == tmp_path / "new" / "bin" / "java"
    assert fetch.java_version(tmp_path / "old" / "bin" / "java") == 11
    assert fetch.java_version(tmp_path / "none") is None
