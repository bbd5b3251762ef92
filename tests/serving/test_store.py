"""The reloader's folder of checkpoints: files of a version that is gone are written over, never trusted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from leyden.serving.store import CheckpointStore

pytestmark = [pytest.mark.kafka]


def test_files_of_a_removed_version_are_written_over_by_the_next(
    stand: Any, new_weights: Callable[[int], Path], tmp_path: Path
) -> None:
    folders = [new_weights(seed) for seed in (1, 2, 3)]
    (folders[0] / "only_in_the_first.json").write_text("{}")
    with (folders[0] / "config.json").open("a") as file:
        file.write(" " * 1000)
    manifests = [stand.publish(n + 1, n or None, folder, announce=False) for n, folder in enumerate(folders)]
    store = CheckpointStore(tmp_path / "store", stand.objects, 2)
    first, second = store.fetch(manifests[0]), store.fetch(manifests[1])
    inode = (first / "model.safetensors").stat().st_ino
    store.keep_last(1, using=second)
    assert not first.exists()
    third = store.fetch(manifests[2])
    assert (third / "model.safetensors").stat().st_ino == inode
    assert {path.name: path.read_bytes() for path in third.iterdir()} == {
        path.name: path.read_bytes() for path in folders[2].iterdir()
    }
    store.keep_last(1, using=third)
    store.close()
    # What was kept to be written over is gone after a restart.
    CheckpointStore(tmp_path / "store", stand.objects, 2).close()
    assert [path.name for path in (tmp_path / "store").iterdir() if path.is_dir()] == [third.name]
