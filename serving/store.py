"""Checkpoints on the reloader's disk: fetched from the object store in parallel, verified, the last few kept."""

import fcntl
import hashlib
import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from ..infra.errors import LeydenError
from ..infra.manifest import FileEntry, Manifest
from ..infra.objects import ObjectStore
from .vllm_plugin.checkpoint_files import BadCheckpointError, mismatch, read_shapes

SERVE = "serve/"
READ_BYTES = 1 << 20
log = logging.getLogger("leyden.serving")


class CacheInUseError(LeydenError):
    """Another reloader uses the same cache folder; the message names it."""


class CheckpointStore:
    """One folder, one reloader. A folder named for a version is whole; what is under way has a name of its own."""

    def __init__(self, root: Path, objects: ObjectStore, threads: int) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._root, self._objects = root, objects
        self._lock = (root / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise CacheInUseError(f"{root} is the cache of another reloader: give each its own cache_dir") from error
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="fetch")
        self._verified: set[Path] = set()
        self._spare = root / "spare.part"
        # One fetch at a time: two of one version would write the same files.
        self._fetching = Lock()
        for leftover in root.glob("*.part"):
            shutil.rmtree(leftover)

    def fetch(self, manifest: Manifest) -> Path:
        """The folder with the files of `serve/`, each with the manifest's size, digest, tensor names and shapes.

        Raises BadCheckpointError when the bytes are not what the manifest says, ObjectStoreError when it is away.
        """
        folder = self._root / f"{manifest.version:08d}-{manifest.run_id}"
        if folder not in self._verified:
            with self._fetching:
                if folder not in self._verified:
                    self._fetch(manifest, folder)
        return folder

    def _fetch(self, manifest: Manifest, folder: Path) -> None:
        entries = [entry for entry in manifest.files if entry.name.startswith(SERVE)]
        if not entries:
            raise BadCheckpointError(f"version {manifest.version}: the manifest names no file under {SERVE}")
        if folder.exists():
            try:
                list(self._pool.map(lambda entry: _check(entry, *_digest(_place(folder, entry))), entries))
            except (BadCheckpointError, OSError) as error:
                log.warning("%s on disk is damaged and fetched again: %s", folder.name, error)
                shutil.rmtree(folder)
        if not folder.exists():
            self._download(manifest, entries, folder)
        self._verified.add(folder)

    def keep_last(self, count: int, using: Path) -> None:
        """Remove all but the `count` newest versions; the folder in use always stays.

        The files of one removed version are kept to be written over by the next: their pages are in memory already,
        and getting as many new ones costs as much as the transfer.
        """
        folders = sorted((p for p in self._root.iterdir() if p.is_dir() and p.suffix != ".part"), reverse=True)
        for folder in folders[count:]:
            if folder == using:
                continue
            self._verified.discard(folder)
            if self._spare.exists():
                shutil.rmtree(folder)
            else:
                folder.rename(self._spare)

    def close(self) -> None:
        """Let another reloader have the folder."""
        self._pool.shutdown(cancel_futures=True)
        self._lock.close()

    def _download(self, manifest: Manifest, entries: list[FileEntry], folder: Path) -> None:
        part = folder.with_name(folder.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        if self._spare.exists():
            self._spare.rename(part)
            wanted = {_place(part, entry) for entry in entries}
            for path in [path for path in part.rglob("*") if path.is_file() and path.resolve() not in wanted]:
                path.unlink()

        def one(entry: FileEntry) -> None:
            place = _place(part, entry)
            place.parent.mkdir(parents=True, exist_ok=True)
            _check(entry, *self._objects.download(manifest.folder + entry.name, place))

        list(self._pool.map(one, entries))
        want = {name: tuple(shape) for name, (_, shape) in manifest.tensors.items()}
        if why := mismatch(want, read_shapes(part), tied=False):
            raise BadCheckpointError(f"version {manifest.version} is not what its manifest says: {why}")
        part.rename(folder)


def _place(folder: Path, entry: FileEntry) -> Path:
    place = (folder / entry.name.removeprefix(SERVE)).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise BadCheckpointError(f"the manifest names a file outside of the checkpoint: {entry.name}")
    return place


def _check(entry: FileEntry, n_bytes: int, digest: bytes) -> None:
    if n_bytes != entry.n_bytes:
        raise BadCheckpointError(f"{entry.name} has {n_bytes} bytes, the manifest says {entry.n_bytes}")
    if digest.hex() != entry.sha256:
        raise BadCheckpointError(f"{entry.name} has the digest {digest.hex()[:16]}…, the manifest another")


def _digest(path: Path) -> tuple[int, bytes]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.digest()


def missing_objects(manifest: Manifest, objects: ObjectStore, part: str = SERVE) -> list[str]:
    """Names of the manifest's files under `part` that the object store does not hold. Raises ObjectStoreError."""
    held = set(objects.list_keys(manifest.folder + part))
    return [e.name for e in manifest.files if e.name.startswith(part) and manifest.folder + e.name not in held]
