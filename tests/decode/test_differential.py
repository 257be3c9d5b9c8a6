"""Generated requests, untidily encoded: the decoder says what the official classes say."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import Rejected
from pipeline.model import OtlpSignal, PointColumns, SpanColumns
from tests.decode import oracle, otlp
from tests.decode.decoding import Decoding

randoms = st.integers(min_value=0, max_value=2**32).map(random.Random)
few = settings(max_examples=60, deadline=None)


@few
@given(randoms)
def test_spans_are_what_the_official_classes_say(decoding: Decoding, rnd: random.Random) -> None:
    request = otlp.trace_request(rnd)
    body = otlp.disordered(request, rnd)
    assert oracle.expected_spans(type(request).FromString(body)) == oracle.expected_spans(request)
    columns = decoding.spans(body)
    assert oracle.span_rows(columns) == oracle.expected_spans(request)
    assert columns.dropped.get("invalid_ids", 0) == oracle.invalid_ids(request)


@few
@given(randoms)
def test_points_are_what_the_official_classes_say(decoding: Decoding, rnd: random.Random) -> None:
    request = otlp.metrics_request(rnd)
    columns = decoding.points(otlp.disordered(request, rnd))
    assert oracle.point_rows(columns) == oracle.expected_points(request)
    assert columns.n + columns.rejected == len(list(oracle.walk_points(request)))


@few
@given(randoms)
def test_log_records_are_what_the_official_classes_say(
    decoding: Decoding, rnd: random.Random
) -> None:
    request = otlp.logs_request(rnd)
    columns = decoding.logs(otlp.disordered(request, rnd))
    assert oracle.log_rows(columns) == oracle.expected_logs(request)


@few
@given(randoms)
def test_a_request_decodes_alike_whatever_was_decoded_before(
    decoding: Decoding, rnd: random.Random
) -> None:
    used = decoding.new()
    for _ in range(2):
        used.decode(OtlpSignal.TRACES, otlp.trace_request(rnd).SerializeToString())
        used.decode(OtlpSignal.METRICS, otlp.metrics_request(rnd).SerializeToString())
    spans, points = otlp.trace_request(rnd), otlp.metrics_request(rnd)
    for signal, request in ((OtlpSignal.TRACES, spans), (OtlpSignal.METRICS, points)):
        body = request.SerializeToString()
        warm, cold = used.decode(signal, body), decoding.new().decode(signal, body)
        assert isinstance(warm, SpanColumns | PointColumns)
        assert isinstance(cold, SpanColumns | PointColumns)
        assert warm.strings.data == cold.strings.data
        assert warm.strings.offsets.tolist() == cold.strings.offsets.tolist()
        assert warm.strings.hashes.tolist() == cold.strings.hashes.tolist()
        assert {key: codes.tolist() for key, codes in warm.attributes.text.items()} == {
            key: codes.tolist() for key, codes in cold.attributes.text.items()
        }
        assert warm.dropped == cold.dropped


@few
@given(randoms, st.integers(min_value=0, max_value=2**32))
def test_damaged_bytes_are_rejected_or_decoded_and_never_anything_else(
    decoding: Decoding, rnd: random.Random, seed: int
) -> None:
    damage = random.Random(seed)
    for make, signal in (
        (otlp.trace_request, OtlpSignal.TRACES),
        (otlp.metrics_request, OtlpSignal.METRICS),
        (otlp.logs_request, OtlpSignal.LOGS),
    ):
        body = bytearray(make(rnd).SerializeToString())
        for _ in range(3):
            if body:
                body[damage.randrange(len(body))] = damage.randrange(256)
        for given_as in (signal, OtlpSignal.PROFILES):
            try:
                decoding.decode(given_as, bytes(body))
            except Rejected as error:
                assert error.reason == "malformed"


@pytest.mark.parametrize("signal", list(OtlpSignal))
def test_an_empty_request_is_an_empty_batch(decoding: Decoding, signal: OtlpSignal) -> None:
    assert decoding.new().decode(signal, b"").n == 0
