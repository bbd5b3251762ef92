"""What the table remembers survives its bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leyden.stream.rows import MAX_IDS, Row, pack_offsets, unpack_offsets


@given(offsets=st.lists(st.integers(0, 2**50), unique=True).map(sorted))
def test_offsets_survive_packing(offsets: list[int]):
    assert unpack_offsets(pack_offsets(offsets)) == offsets


@given(st.booleans(), st.integers(-1, 2**31 - 1), st.integers(-1, 2**60), st.binary(max_size=80))
def test_a_row_survives_its_bytes(closed: bool, revision: int, applied: int, ids: bytes):
    row = Row(closed, revision, applied, 5, 6, ids[: len(ids) // 8 * 8], b"kept")
    assert Row.decode(row.encode()) == row


def test_a_row_keeps_the_newest_ids_only():
    ids = b"".join(i.to_bytes(8, "big") for i in range(MAX_IDS + 3))
    assert Row.decode(Row(True, 0, 0, 0, 0, ids, b"").encode()).ids == ids[24:]


def test_a_row_of_another_version_is_refused():
    with pytest.raises(ValueError, match="version 9"):
        Row.decode(b"\x09" + Row(True, 0, 0, 0, 0, b"", b"").encode()[1:])
