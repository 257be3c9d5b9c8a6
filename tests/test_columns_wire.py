"""Columns survive their way between processes, and nothing else is taken for columns."""

import random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.columns_wire import CorruptFrame, decode, encode
from pipeline.decode.columns import new_decoder
from pipeline.model import Columns, OtlpSignal, ProfileColumns, SpanColumns
from tests.builders import span_request
from tests.decode.otlp import logs_request, metrics_request, trace_request
from tests.decode.same import assert_same_columns

REQUESTS = {
    OtlpSignal.TRACES: trace_request,
    OtlpSignal.METRICS: metrics_request,
    OtlpSignal.LOGS: logs_request,
}


def columns_of(signal: OtlpSignal, seed: int) -> Columns:
    """Columns of a random request of `signal`."""
    body = REQUESTS[signal](random.Random(seed)).SerializeToString()
    return new_decoder().decode(signal, body)


def two_spans() -> SpanColumns:
    body = span_request(({"service.name": "a"}, [{"name": "x"}, {"name": "y"}])).SerializeToString()
    columns = new_decoder().decode(OtlpSignal.TRACES, body)
    assert isinstance(columns, SpanColumns)
    return columns


@given(signal=st.sampled_from(tuple(REQUESTS)), seed=st.integers(0, 1 << 32))
def test_what_was_encoded_is_decoded_to_the_same_columns(signal: OtlpSignal, seed: int) -> None:
    columns = columns_of(signal, seed)
    assert_same_columns(decode(encode(columns)), columns)


@pytest.mark.parametrize("signal", list(OtlpSignal))
def test_an_empty_batch_comes_back_empty(signal: OtlpSignal) -> None:
    columns = new_decoder().decode(signal, b"")
    assert_same_columns(decode(encode(columns)), columns)


def test_profiles_are_a_count() -> None:
    assert_same_columns(
        decode(encode(ProfileColumns(7, {"malformed": 2}))), ProfileColumns(7, {"malformed": 2})
    )


def test_arrays_are_views_of_the_frame() -> None:
    frame = encode(two_spans())
    columns = decode(frame)
    assert isinstance(columns, SpanColumns)
    memory = np.frombuffer(frame, np.uint8)
    for array in (columns.start_ns, columns.name, columns.span_id, columns.strings.hashes):
        assert np.shares_memory(array, memory)


@given(
    signal=st.sampled_from(tuple(REQUESTS)),
    seed=st.integers(0, 50),
    where=st.floats(0, 1, exclude_max=True),
)
def test_a_frame_that_is_cut_anywhere_is_refused(
    signal: OtlpSignal, seed: int, where: float
) -> None:
    frame = encode(columns_of(signal, seed))
    with pytest.raises(CorruptFrame):
        decode(frame[: int(len(frame) * where)])
    with pytest.raises(CorruptFrame):
        decode(frame + b"\0")


@given(
    signal=st.sampled_from(tuple(REQUESTS)),
    seed=st.integers(0, 50),
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), min_size=1, max_size=4),
)
def test_a_changed_frame_is_refused_or_gives_columns_that_hold_together(
    signal: OtlpSignal, seed: int, flips: list[tuple[int, int]]
) -> None:
    frame = bytearray(encode(columns_of(signal, seed)))
    for at, bits in flips:
        frame[at % len(frame)] ^= bits
    try:
        columns = decode(bytes(frame))
    except CorruptFrame:
        return
    if isinstance(columns, ProfileColumns):
        return
    for attributes in (columns.attributes, columns.resources):
        for codes in attributes.text.values():
            assert len(codes) == attributes.n
            for code in set(codes.tolist()):
                columns.strings.text(code)
    assert len(columns.resource) == columns.n
    assert not columns.n or columns.resource.max() < columns.resources.n


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(["spans"]),
        msgspec.msgpack.encode(["nothing", [0, 0, 0], 0, {}]),
        msgspec.msgpack.encode(["spans", [0, 0, 0], -1, {}]),
        msgspec.msgpack.encode(["spans", [0, 0, 0], 1 << 40, {}]),
        msgspec.msgpack.encode(["profiles", [8, 0, 0], 1, {}]),
        msgspec.msgpack.encode(["logs", [0, 4, 0], 0, {}, 0, 0, ["a", "a"]]),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(head: bytes) -> None:
    frame = len(head).to_bytes(4, "little") + head
    frame += bytes(-len(frame) % 8)
    with pytest.raises(CorruptFrame):
        decode(frame)


def test_a_code_behind_the_dictionary_is_refused() -> None:
    columns = two_spans()
    columns.name[0] = len(columns.strings)
    with pytest.raises(CorruptFrame, match="out of range"):
        decode(encode(columns))
