"""Table files on disk: each worker its own, also where workers of several containers share the folder."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from leyden.stream.app import own_datadir

HOLD = """
import sys
from pathlib import Path
from leyden.stream.app import own_datadir
with own_datadir(Path(sys.argv[1])) as mine:
    (mine / "table").touch()
    print(mine, flush=True)
    sys.stdin.read()
"""


@contextmanager
def worker(folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process with a folder of its own, until its standard input ends."""
    command = [sys.executable, "-P", "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_workers_with_one_process_id_share_nothing(tmp_path: Path) -> None:
    # As in two containers, where both may be process 7.
    with own_datadir(tmp_path / "role") as one:
        (one / "table").touch()
        with own_datadir(tmp_path / "role") as other:
            assert one != other
            assert (one / "table").exists()


def test_the_folder_of_a_process_is_removed_only_once_it_is_gone(tmp_path: Path) -> None:
    with worker(tmp_path / "role") as (process, theirs):
        with own_datadir(tmp_path / "role"):
            assert (theirs / "table").exists()
        process.kill()
        process.wait(10)
        assert theirs.exists()
        with own_datadir(tmp_path / "role") as mine:
            assert list((tmp_path / "role").iterdir()) == [mine]


def test_a_worker_that_ends_leaves_no_folder(tmp_path: Path) -> None:
    with worker(tmp_path / "role") as (process, theirs):
        assert theirs.exists()
        process.communicate(timeout=10)
    assert list((tmp_path / "role").iterdir()) == []
