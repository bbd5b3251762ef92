"""The object store on a real MinIO: large files in parts."""

import random
from collections.abc import Iterator

import pytest
from leyden.infra import objects
from leyden.infra.errors import ObjectStoreError
from leyden.infra.objects import ObjectStore
from leyden.infra.settings import ObjectSettings

pytestmark = pytest.mark.minio
MIB = 1 << 20


def pieces(data: bytes) -> Iterator[bytes | memoryview]:
    """Of uneven sizes, as tensors have, and an empty one."""
    yield b""
    for at in range(0, len(data), 700_001):
        yield memoryview(data)[at : at + 700_001]


@pytest.fixture
def store(minio_settings: ObjectSettings, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """A store whose requests are as small as S3 allows of parts."""
    monkeypatch.setattr(objects, "PART_BYTES", 5 * MIB)
    monkeypatch.setattr(objects, "ONE_PUT_BYTES", 6 * MIB)
    return ObjectStore(minio_settings)


@pytest.mark.parametrize(("n_bytes", "n_parts"), [(6 * MIB, 1), (12 * MIB, 3)])
def test_pieces_are_one_object_also_where_one_request_cannot_take_them(
    store: ObjectStore, n_bytes: int, n_parts: int
) -> None:
    data = random.Random(0).randbytes(n_bytes)
    store.put_chunks("large", pieces(data), n_bytes)
    assert store.get("large") == data
    etag = store.client.stat_object(store.bucket, "large").etag or ""
    assert etag.endswith(f"-{n_parts}") == (n_parts > 1)


def test_pieces_that_are_too_few_leave_no_object_and_no_parts(store: ObjectStore) -> None:
    with pytest.raises(ObjectStoreError, match="large"):
        store.put_chunks("large", pieces(bytes(11 * MIB)), 12 * MIB)
    assert store.get_or_none("large") is None
    assert store.client._list_multipart_uploads(store.bucket).uploads == []
