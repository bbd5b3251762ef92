"""The codec: what is written is read; what was not written is refused, with one exception class."""

import dataclasses
import uuid

import pytest
from fastavro.schema import fingerprint
from hypothesis import given, settings
from hypothesis import strategies as st
from leyden import avro
from leyden.avro import codec
from leyden.avro.errors import DecodeError

text = st.text(max_size=20)
any_text = st.text(st.characters(codec=None))  # a header may hold lone surrogates
blob = st.binary(max_size=64)
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
number = st.floats(allow_nan=False)
maybe_text = st.none() | text
reference = st.builds(avro.Reference, text, st.binary(min_size=32, max_size=32), i64)
started = st.builds(
    avro.RolloutStarted, text, text, text, text, i32, text, text, maybe_text, st.none() | number, st.none() | blob
)
call = st.builds(
    avro.LLMCall,
    call_id=text,
    started_us=i64,
    request_digest=blob,
    retry_count=i32,
    status=text,
    agent=maybe_text,
    response_id=maybe_text,
    version_start=i32,
    version_end=i32,
    n_prompt_tokens=i32,
    n_completion_tokens=i32,
    ended_us=i64,
    first_token_us=st.none() | i64,
    policy=text,
    model=text,
    route=text,
    stream=st.booleans(),
    http_status=i32,
    error=maybe_text,
    finish_reason=maybe_text,
    temperature=number,
    top_p=number,
    max_tokens=st.none() | i32,
    prompt_ids=blob,
    completion_ids=blob,
    logprobs=blob,
    request=blob,
    response=blob,
    parked=st.none() | reference,
)
reward = st.builds(avro.Reward, number, text, text, maybe_text, st.none() | st.builds(avro.TokenSpan, i32, i32))
note = st.builds(avro.Note, text, text, blob, maybe_text)
ended = st.builds(avro.RolloutEnded, text, text, st.none() | i32, st.booleans(), maybe_text)
expired = st.builds(avro.RolloutExpired, i64, text)
event = st.builds(avro.Event, text, text, i32, i64, st.one_of(started, call, reward, note, ended, expired))
member = st.builds(avro.Member, text, i32, i32, i32, i64, text, st.none() | number, i32, i32, i32, i32)
batch = st.builds(avro.TransitionBatch, text, text, i32, st.none() | i32, text, i32, text, st.lists(member, max_size=4))
task = st.builds(
    avro.Task,
    text,
    text,
    i32,
    text,
    text,
    text,
    blob,
    number,
    i32,
    i32,
    st.none() | number,
    st.dictionaries(text, text),
)
letter = st.builds(avro.DeadLetter, text, i32, i64, st.none() | blob, st.none() | blob, text, text, text, i64)


@given(st.one_of(event, batch, task, letter))
def test_what_is_encoded_decodes_to_the_same_record(record: avro.Record) -> None:
    assert codec.decode_any(codec.encode(record)) == record


@given(event)
def test_the_head_is_the_record_without_its_payload(record: avro.Event) -> None:
    head = avro.decode_head(avro.encode(record))
    assert (head.event_id, head.rollout_id, head.attempt, head.ts_ms) == (
        record.event_id,
        record.rollout_id,
        record.attempt,
        record.ts_ms,
    )
    for field in dataclasses.fields(head.body):
        assert getattr(head.body, field.name) == getattr(record.body, field.name)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_with_a_decode_error(data: bytes) -> None:
    for prefix in (b"", codec.MARKER, *(codec.MARKER + s.fingerprint for s in avro.COMMITTED.known())):
        for read in (codec.decode_any, avro.decode_head):
            try:
                record = read(prefix + data)
            except DecodeError:
                continue
            if read is codec.decode_any:
                assert codec.encode(record) == prefix + data


@settings(max_examples=200)
@given(event, st.data())
def test_a_damaged_record_is_refused_or_is_the_record_that_its_bytes_say(
    record: avro.Event, data: st.DataObject
) -> None:
    raw = bytearray(avro.encode(record))
    kind = data.draw(st.sampled_from(["flip", "cut", "insert"]))
    at = data.draw(st.integers(0, len(raw) - 1))
    if kind == "flip":
        raw[at] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        del raw[at:]
    else:
        raw.insert(at, data.draw(st.integers(0, 255)))
    try:
        decoded = codec.decode_any(bytes(raw))
    except DecodeError:
        return
    assert codec.encode(decoded) == bytes(raw)


def test_a_length_of_exabytes_is_refused_at_once() -> None:
    schema = avro.COMMITTED.current("leyden.Event")
    huge = b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"
    with pytest.raises(DecodeError):
        codec.decode_any(codec.MARKER + schema.fingerprint + huge)


def test_the_fingerprint_is_the_one_of_the_avro_specification() -> None:
    assert bytes.fromhex(fingerprint('"int"', "CRC-64-AVRO"))[::-1].hex() == "7275d51a3f395c8f"


def test_another_record_than_expected_is_named() -> None:
    with pytest.raises(DecodeError, match="expected a Task, found a Resource"):
        avro.decode(avro.encode(avro.Resource("n", 1, "k", b"{}", 1)), avro.Task)


@given(st.lists(i32, max_size=50), st.lists(st.floats(width=32, allow_nan=False), max_size=50))
def test_packed_arrays_come_back(ids: list[int], values: list[float]) -> None:
    assert avro.unpack_ids(avro.pack_ids(ids)).tolist() == ids
    assert avro.unpack_floats(avro.pack_floats(values)).tolist() == values


@pytest.mark.parametrize(
    ("ids", "error"),
    [([1, 1 << 31], OverflowError), ([-(1 << 31) - 1], OverflowError), ([1.5], TypeError), ([None], TypeError)],
)
def test_what_is_no_int32_is_not_packed(ids: list, error: type[Exception]) -> None:
    with pytest.raises(error, match="token ids"):
        avro.pack_ids(ids)


def test_a_torn_packed_array_is_refused() -> None:
    with pytest.raises(DecodeError, match="multiple of 4"):
        avro.unpack_ids(b"12345")


def test_ids_sort_by_time_and_do_not_repeat() -> None:
    ids = [avro.new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert [i[:12] for i in ids] == sorted(i[:12] for i in ids)
    assert all(len(i) == 32 and i[12] == "7" for i in ids)


@given(any_text, any_text)
def test_named_ids_are_those_of_their_names_and_tell_no_time(one: str, other: str) -> None:
    ids = [uuid.UUID(avro.named_id(name)) for name in (one, other)]
    assert (ids[0] == ids[1]) == (one == other)
    assert all(i.version == 8 and i.variant == uuid.RFC_4122 for i in ids)


def _outcome(decode_with: object, data: bytes) -> object:
    try:
        return repr(decode_with(data))  # pyright: ignore[reportCallIssue]
    except DecodeError:
        return DecodeError


@settings(max_examples=300)
@given(event, st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), max_size=3), st.integers(0, 40))
def test_the_compiled_head_decoder_answers_as_the_general_one(record: avro.Event, edits: list, cut: int):
    data = bytearray(avro.encode(record))
    for place, byte in edits:
        data[codec.HEADER_BYTES + place % (len(data) - codec.HEADER_BYTES)] = byte
    mangled = bytes(data[: len(data) - cut] if cut > 30 else data)

    def general(data: bytes) -> object:
        schema = codec._schema_of(data, codec.COMMITTED)
        return codec._checked_build(avro.EventHead, codec._read(data, schema.head)[0], codec._HEADS)

    assert _outcome(avro.decode_head, mangled) == _outcome(general, mangled)


@given(event)
def test_the_compiled_head_decoder_takes_what_writers_make(record: avro.Event):
    data = avro.encode(record)
    assert codec._compile(codec.COMMITTED.current("leyden.Event").head)(data) == avro.decode_head(data)
