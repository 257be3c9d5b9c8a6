"""Bad items cost themselves and are counted; only broken framing rejects a request."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pipeline.decode.reference import ReferenceDecoder
from pipeline.decode.sizes import MAX_ATTRIBUTES, MAX_ITEMS
from pipeline.errors import Rejected
from pipeline.model import OtlpSignal, PointColumns, SpanColumns
from tests.decode import oracle
from tests.decode.decoding import Decoding
from tests.decode.otlp import NOW_NS, field, put, varint

CAPTURES = Path(__file__).parents[3] / "shared" / "data" / "captures" / "vllm-0.32"


def span_request(**fields: Any) -> tuple[ExportTraceServiceRequest, Any]:
    request = ExportTraceServiceRequest()
    span = (
        request.resource_spans.add()
        .scope_spans.add()
        .spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, name="chat", **fields)
    )
    return request, span


def spans_of(decoding: Decoding, *raw_spans: bytes) -> SpanColumns:
    """Spans given as raw bytes, each in the one scope of the one resource."""
    scope = b"".join(field(2, raw) for raw in raw_spans)
    return decoding.spans(field(1, field(2, scope)))


def metric_request(kind: str = "gauge", temporality: int = 2) -> tuple[Any, Any]:
    """A request with one metric, and that metric's data."""
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    data = getattr(metric, kind)
    data.SetInParent()
    if kind not in {"gauge", "summary"}:
        data.aggregation_temporality = temporality
    return request, data


def points_of(decoding: Decoding, request: Any) -> PointColumns:
    return decoding.points(request.SerializeToString())


def text_of(columns: SpanColumns, key: str, row: int = 0) -> str:
    return columns.strings.text(columns.attributes.codes(key)[row])


# text and nesting


def test_invalid_utf8_is_replaced_and_counted_and_every_other_span_stays(
    decoding: Decoding,
) -> None:
    bad = b"caf\xe9"
    attribute = field(9, field(1, b"http.route") + field(2, field(1, bad)))
    columns = spans_of(decoding, field(5, b"good"), field(5, bad) + attribute, field(5, bad))
    names = [columns.strings.text(code) for code in columns.name]
    assert names == ["good", "caf\ufffd", "caf\ufffd"]
    assert text_of(columns, "http.route", 1) == "caf\ufffd"
    assert columns.name[1] == columns.name[2] == columns.attributes.codes("http.route")[1]
    assert columns.dropped["invalid_utf8"] == 3


def nested(depth: int, opening: int) -> bytes:
    """An AnyValue of `depth` arrays (5) or key-value lists (6) inside each other."""
    value = field(1, b"bottom")
    for _ in range(depth):
        element = value if opening == 5 else field(1, b"k") + field(2, value)
        value = field(opening, field(1, element))
    return value


@pytest.mark.parametrize("opening", [5, 6])
@pytest.mark.parametrize("depth", [17, 100, 5000])
def test_deep_nesting_costs_only_its_attribute(
    decoding: Decoding, opening: int, depth: int
) -> None:
    deep = field(9, field(1, b"http.route") + field(2, nested(depth, opening)))
    route = field(9, field(1, b"http.request.method") + field(2, field(1, b"POST")))
    columns = spans_of(decoding, deep + route, route)
    assert columns.n == 2
    assert [text_of(columns, "http.request.method", row) for row in (0, 1)] == ["POST", "POST"]
    assert text_of(columns, "http.route") == ""
    assert columns.dropped["bad_attribute"] == 1


def test_deep_nesting_under_an_unknown_key_or_in_a_resource_is_never_looked_into(
    decoding: Decoding,
) -> None:
    deep = field(1, field(1, b"custom") + field(2, nested(100, 6)))
    span = field(2, field(2, field(5, b"chat")))
    columns = decoding.spans(field(1, field(1, deep) + span))
    assert (columns.n, columns.dropped) == (1, {"invalid_ids": 1})


def test_unknown_fields_at_every_level_are_ignored(decoding: Decoding) -> None:
    request, span = span_request()
    put(span.attributes, "http.route", "/v1")
    unknown = field(999, b"new") + varint(998 << 3) + varint(5)
    body = request.SerializeToString()
    assert decoding.spans(body + unknown).n == 1


def test_an_attribute_that_is_no_message_costs_only_itself(decoding: Decoding) -> None:
    good = field(9, field(1, b"http.route") + field(2, field(1, b"/v1")))
    columns = spans_of(decoding, field(9, b"\x0a\xff") + good)
    assert text_of(columns, "http.route") == "/v1"
    assert columns.dropped["bad_attribute"] == 1


def test_the_first_of_duplicate_keys_wins(decoding: Decoding) -> None:
    request, span = span_request()
    for value in ("first", "second"):
        put(span.attributes, "http.route", value)
    for number in (1, 2):
        put(span.attributes, "http.response.status_code", number)
    columns = decoding.spans(request.SerializeToString())
    assert text_of(columns, "http.route") == "first"
    assert columns.attributes.numbers("http.response.status_code").tolist() == [1.0]


@pytest.mark.parametrize(
    ("value", "number", "bad"),
    [
        (200, 200.0, 0),
        (True, 1.0, 0),
        (2.5, 2.5, 0),
        ("200", 200.0, 0),
        ("-1.5e3", -1500.0, 0),
        ("-", None, 0),
        ("", None, 0),
        (None, None, 0),
        ("1_000", None, 1),
        ("nan", None, 1),
        ("0x10", None, 1),
        (b"200", None, 1),
        (("200",), None, 1),
        ({"a": 1}, None, 1),
    ],
)
def test_a_number_is_taken_from_any_type_that_says_one(
    decoding: Decoding, value: Any, number: float | None, bad: int
) -> None:
    request, span = span_request()
    put(span.attributes, "http.response.status_code", value)
    columns = decoding.spans(request.SerializeToString())
    found = columns.attributes.numbers("http.response.status_code")[0]
    assert (None if np.isnan(found) else found) == number
    assert columns.dropped.get("bad_attribute", 0) == bad


@pytest.mark.parametrize(
    ("value", "text", "bad"),
    [
        ("a", "a", 0),
        (8000, "8000", 0),
        (8000.0, "8000", 0),
        (0.5, "0.5", 0),
        (False, "false", 0),
        (("stop", "length"), "stop", 0),
        ((7,), "7", 0),
        ((), "", 0),
        (None, "", 0),
        ((("x",),), "", 1),
        (b"raw", "", 1),
        ({"a": 1}, "", 1),
        (float("nan"), "", 1),
    ],
)
def test_text_is_taken_from_any_type_that_has_one(
    decoding: Decoding, value: Any, text: str, bad: int
) -> None:
    request, span = span_request()
    put(span.attributes, "gen_ai.response.finish_reasons", value)
    columns = decoding.spans(request.SerializeToString())
    assert text_of(columns, "gen_ai.response.finish_reasons") == text
    assert columns.dropped.get("bad_attribute", 0) == bad


def test_a_port_sent_as_int_is_text_of_a_resource(decoding: Decoding) -> None:
    request, _ = span_request()
    put(request.resource_spans[0].resource.attributes, "server.port", 8000)
    columns = decoding.spans(request.SerializeToString())
    assert columns.strings.text(columns.resources.codes("server.port")[0]) == "8000"


# ids, times, flags


@pytest.mark.parametrize(
    ("fields", "zeroed"),
    [
        ({"trace_id": b"short"}, "trace_id"),
        ({"trace_id": bytes(16)}, "trace_id"),
        ({"span_id": b""}, "span_id"),
        ({"span_id": b"x" * 9}, "span_id"),
        ({"parent_span_id": b"bad"}, "parent_span_id"),
    ],
)
def test_an_invalid_id_is_zeroed_and_counted_and_the_span_stays(
    decoding: Decoding, fields: dict[str, bytes], zeroed: str
) -> None:
    request, span = span_request()
    for name, value in fields.items():
        setattr(span, name, value)
    columns = decoding.spans(request.SerializeToString())
    assert columns.n == 1
    assert not getattr(columns, zeroed).any()
    assert columns.dropped == {"invalid_ids": 1}


def test_a_root_span_has_no_parent_and_that_is_no_fault(decoding: Decoding) -> None:
    request, _ = span_request()
    columns = decoding.spans(request.SerializeToString())
    assert not columns.parent_span_id.any()
    assert columns.dropped == {}


def test_times_are_kept_as_sent_and_clamped_into_int64(decoding: Decoding) -> None:
    request, _ = span_request(start_time_unix_nano=2**64 - 1, end_time_unix_nano=5)
    columns = decoding.spans(request.SerializeToString())
    assert (columns.start_ns[0], columns.end_ns[0]) == (2**63 - 1, 5)
    assert columns.dropped == {"time_clamped": 1}


def test_reserved_span_flags_are_masked(decoding: Decoding) -> None:
    request, _ = span_request(flags=0xFFFFFF01)
    assert decoding.spans(request.SerializeToString()).flags.tolist() == [0x301]


# points


def test_points_without_time_value_or_temporality_are_rejected_with_their_number(
    decoding: Decoding,
) -> None:
    request, data = metric_request("gauge")
    data.data_points.add(time_unix_nano=NOW_NS, as_double=1.0)
    data.data_points.add(as_double=2.0)
    data.data_points.add(time_unix_nano=NOW_NS)
    metrics = request.resource_metrics[0].scope_metrics[0].metrics
    counter = metrics.add(name="c")
    counter.sum.data_points.add(time_unix_nano=NOW_NS, as_int=3)
    counter.sum.data_points.add(time_unix_nano=NOW_NS, as_int=4)
    columns = points_of(decoding, request)
    assert columns.value.tolist() == [1.0]
    assert columns.rejected == 4
    assert columns.dropped == {"no_time": 1, "no_value": 1, "unspecified_temporality": 2}


def test_an_ended_series_has_no_value_and_is_not_rejected(decoding: Decoding) -> None:
    request, data = metric_request("sum")
    data.data_points.add(time_unix_nano=NOW_NS, flags=1)
    data.data_points.add(time_unix_nano=NOW_NS, flags=1, as_double=0.0)
    columns = points_of(decoding, request)
    assert columns.rejected == 0
    assert columns.flags.tolist() == [1, 1]
    assert np.isnan(columns.value).all()


def test_an_ended_histogram_has_no_row(decoding: Decoding) -> None:
    request, data = metric_request("histogram")
    data.data_points.add(time_unix_nano=NOW_NS, flags=1, count=7)
    columns = points_of(decoding, request)
    assert (columns.n, columns.histogram.tolist()) == (1, [-1])


def test_nan_negative_and_int_values_pass_through(decoding: Decoding) -> None:
    request, data = metric_request("gauge")
    for value in (float("nan"), -5.0):
        data.data_points.add(time_unix_nano=NOW_NS, as_double=value)
    data.data_points.add(time_unix_nano=NOW_NS, as_int=-(2**40))
    columns = points_of(decoding, request)
    assert columns.rejected == 0
    np.testing.assert_array_equal(columns.value, [np.nan, -5.0, -(2.0**40)])


@pytest.mark.parametrize(
    ("buckets", "bounds", "count"),
    [
        ([1, 2], [0.5, 1.0], 3),
        ([1, 2, 3], [1.0, 1.0], 6),
        ([1, 2, 3], [2.0, 1.0], 6),
        ([1, 2], [float("nan")], 3),
        ([1, 2, 3], [1.0, float("inf")], 6),
        ([1, 2], [1.0], 4),
        ([], [1.0], 0),
        ([1] * 1025, [float(i) for i in range(1024)], 1025),
        ([2**63, 2**63], [1.0], 0),
        ([0, 2**60], [1.0], 2**60),
    ],
)
def test_a_histogram_that_contradicts_itself_is_rejected(
    decoding: Decoding, buckets: list[int], bounds: list[float], count: int
) -> None:
    request, data = metric_request("histogram")
    data.data_points.add(
        time_unix_nano=NOW_NS, bucket_counts=buckets, explicit_bounds=bounds, count=count
    )
    good = {"bucket_counts": [1, 1], "explicit_bounds": [1.0], "count": 2, "sum": 1.5}
    data.data_points.add(time_unix_nano=NOW_NS, **good)
    columns = points_of(decoding, request)
    assert (columns.n, columns.rejected, columns.dropped) == (1, 1, {"bad_histogram": 1})
    assert columns.histogram.tolist() == [0]
    assert columns.histograms.counts.tolist() == [1.0, 1.0]
    assert columns.histograms.sum.tolist() == [1.5]


def test_equal_bounds_are_kept_once_and_an_absent_sum_is_nan(decoding: Decoding) -> None:
    request, data = metric_request("histogram")
    for bounds in ([1.0, 2.0], [3.0], [1.0, 2.0]):
        counts = [1] * (len(bounds) + 1)
        data.data_points.add(
            time_unix_nano=NOW_NS,
            bucket_counts=counts,
            explicit_bounds=bounds,
            count=len(counts),
        )
    table = points_of(decoding, request).histograms
    assert table.bounds_id.tolist() == [0, 1, 0]
    assert [bounds.tolist() for bounds in table.bounds] == [[1.0, 2.0], [3.0]]
    assert np.isnan(table.sum).all()


@pytest.mark.parametrize(
    ("scale", "offset", "size"),
    [
        (21, 0, 1),
        (-11, 0, 1),
        (2**31 - 1, 0, 1),
        (-(2**31), 0, 1),
        (0, 2**31 - 1, 1),
        (0, -(2**31), 1),
        (0, 1200, 1),
        (-10, 4, 1),
        (0, 0, 161),
    ],
)
def test_an_absurd_exponential_histogram_is_rejected(
    decoding: Decoding, scale: int, offset: int, size: int
) -> None:
    request, data = metric_request("exponential_histogram")
    point = data.data_points.add(time_unix_nano=NOW_NS, scale=scale, count=size)
    point.positive.offset = offset
    point.positive.bucket_counts.extend([1] * size)
    columns = points_of(decoding, request)
    assert (columns.n, columns.rejected, columns.dropped) == (0, 1, {"bad_histogram": 1})


def test_negative_exponential_buckets_are_left_out_and_counted(decoding: Decoding) -> None:
    request, data = metric_request("exponential_histogram")
    point = data.data_points.add(time_unix_nano=NOW_NS, scale=3, count=10, zero_count=2, sum=9)
    point.positive.offset = -4
    point.positive.bucket_counts.extend([1, 2])
    point.negative.bucket_counts.extend([5])
    columns = points_of(decoding, request)
    table = columns.histograms
    assert table.bounds_id.tolist() == [-1]
    assert (table.scale[0], table.offset[0], table.zero_count[0], table.count[0]) == (3, -4, 2, 5)
    assert columns.dropped == {"negative_buckets": 1}


# logs and profiles


def test_pairs_of_an_access_log_body_are_attributes_and_attributes_win(decoding: Decoding) -> None:
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add()
    put(record.attributes, "response_code", 503)
    for key, value in (("response_code", "200"), ("duration", "12"), ("upstream_host", "10.0.0.1")):
        put(record.body.kvlist_value.values, key, value)
    columns = decoding.logs(request.SerializeToString())
    assert columns.attributes.numbers("response_code").tolist() == [503.0]
    assert columns.attributes.numbers("duration").tolist() == [12.0]
    host = columns.attributes.codes("upstream_host")[0]
    assert columns.strings.text(host) == "10.0.0.1"


def test_profiles_are_counted(decoding: Decoding) -> None:
    request = ExportProfilesServiceRequest()
    holder = request.resource_profiles.add().scope_profiles.add()
    holder.profiles.add()
    holder.profiles.add()
    assert decoding.profiles(request.SerializeToString()).n == 2


# framing and bounds


def test_a_message_cut_anywhere_is_rejected_or_decoded_and_nothing_else(decoding: Decoding) -> None:
    request, span = span_request(start_time_unix_nano=NOW_NS, end_time_unix_nano=NOW_NS + 1)
    put(span.attributes, "http.route", "/v1/chat/completions")
    put(span.attributes, "gen_ai.response.finish_reasons", ("stop",))
    put(request.resource_spans[0].resource.attributes, "service.name", "vllm")
    body = request.SerializeToString()
    rejected = 0
    for cut in range(len(body)):
        try:
            columns = decoding.spans(body[:cut])
        except Rejected as error:
            assert error.reason == "malformed"
            rejected += 1
        else:
            assert columns.n in {0, 1}
    assert rejected == len(body) - 1  # all but the empty one: the outermost length is wrong


@pytest.mark.parametrize("signal", list(OtlpSignal))
@pytest.mark.parametrize(
    "body", [b"\xff", b"\x0a\x05abc", b"\x0a" + b"\xff" * 11, b"\x07", b"\x0b"]
)
def test_broken_framing_is_rejected_as_malformed(
    decoding: Decoding, signal: OtlpSignal, body: bytes
) -> None:
    with pytest.raises(Rejected) as error:
        decoding.decode(signal, body)
    assert error.value.reason == "malformed"
    assert signal.value in error.value.description


def _many(depth: int, signal: OtlpSignal) -> bytes:
    """More empty messages than a request may hold, at a depth of it (0 = resources)."""
    paths = {OtlpSignal.METRICS: (1, 2, 2, 7, 1)}
    path = paths.get(signal, (1, 2, 2))[: depth + 1]
    body = field(path[-1], b"") * (MAX_ITEMS + 1)
    for number in reversed(path[:-1]):
        body = field(number, body)
    return body


@pytest.mark.parametrize(
    ("signal", "depth"),
    [*((signal, depth) for signal in OtlpSignal for depth in range(3)), (OtlpSignal.METRICS, 4)],
)
def test_a_request_with_absurdly_many_items_is_rejected_before_they_are_parsed(
    decoding: Decoding, signal: OtlpSignal, depth: int
) -> None:
    with pytest.raises(Rejected) as error:
        decoding.decode(signal, _many(depth, signal))
    assert error.value.reason == "too_many_items"


def test_a_request_with_absurdly_many_attributes_is_rejected(decoding: Decoding) -> None:
    with pytest.raises(Rejected) as error:
        spans_of(decoding, field(9, b"") * (MAX_ATTRIBUTES + 1))
    assert error.value.reason == "too_many_items"


def test_a_large_honest_request_passes(decoding: Decoding) -> None:
    request, data = metric_request()
    for i in range(20_000):
        data.data_points.add(time_unix_nano=NOW_NS + i, as_double=i)
    body = request.SerializeToString()
    assert len(body) + 400_000 > 2 * MAX_ITEMS
    assert decoding.points(body + field(1, b"\x0a\x00") * 100_000).n == 20_000


def test_values_that_never_repeat_leave_the_caches_bounded_and_results_exact() -> None:
    decoder = ReferenceDecoder()
    for batch in range(13):
        request = ExportTraceServiceRequest()
        spans = request.resource_spans.add().scope_spans.add().spans
        for i in range(3000):
            span = spans.add(name="chat", trace_id=b"t" * 16, span_id=b"s" * 8)
            put(span.attributes, "gen_ai.request.id", f"{batch}-{i}")
            put(span.attributes, "http.request.method", "POST")
        columns = decoder.spans(request.SerializeToString())
        assert text_of(columns, "gen_ai.request.id", 2999) == f"{batch}-2999"
        assert text_of(columns, "http.request.method", 2999) == "POST"
        assert decoder.remembered() < 80_000


def test_long_values_are_forgotten_once_they_fill_the_memory_for_strings() -> None:
    decoder = ReferenceDecoder()
    remembered = []
    for i in range(40):
        request, span = span_request()
        put(span.attributes, "http.route", f"{i}" + "x" * (1 << 20))
        columns = decoder.spans(request.SerializeToString())
        assert text_of(columns, "http.route").startswith(f"{i}x")
        remembered.append(decoder.remembered())
    assert max(remembered) < 100
    assert remembered[-1] < max(remembered)


@pytest.mark.parametrize("name", [f"traces-{i}.binpb" for i in range(1, 5)])
def test_captured_vllm_traces_decode(decoding: Decoding, name: str) -> None:
    path = CAPTURES / name
    if not path.exists():
        pytest.skip(f"needs the capture {name} in {CAPTURES}")
    body = path.read_bytes()
    request = ExportTraceServiceRequest.FromString(body)
    columns = decoding.new().decode(OtlpSignal.TRACES, body)
    assert isinstance(columns, SpanColumns)
    assert columns.n > 0
    assert oracle.span_rows(columns) == oracle.expected_spans(request)
    assert columns.dropped == {}
