"""What is large in one item of a request costs that item at most, and nothing of it is kept."""

from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from tests.decode.decoding import Decoding
from tests.decode.otlp import NOW_NS, put
from tests.decode.same import assert_same_columns

MIB = 1 << 20
CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


def spans(n: int, key: str = "", value: Any = None) -> bytes:
    """A request of `n` spans; the one in the middle may have an attribute more."""
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for i in range(n):
        span = scope.spans.add(trace_id=b"t" * 16, span_id=(i + 1).to_bytes(8, "big"), name="chat")
        span.end_time_unix_nano = NOW_NS + i
        put(span.attributes, "server.address", f"10.0.0.{i % 250}")
        if key and i == n // 2:
            put(span.attributes, key, value)
    return request.SerializeToString()


LARGE: dict[str, tuple[str, Any]] = {
    "a text that nobody asked for": ("custom", "x" * (8 * MIB)),
    "a text of a known key": ("http.route", "x" * (8 * MIB)),
    "a list that nobody asked for": ("custom", tuple(range(100_000))),
    "a list where a text is known": ("http.route", tuple(range(100_000))),
    "bytes where a text is known": ("http.route", bytes(8 * MIB)),
}


@pytest.mark.parametrize("what", LARGE)
def test_one_span_with_a_large_attribute_costs_no_other_span_anything(
    decoding: Decoding, what: str
) -> None:
    """Scenario: 4,554 spans, one of them with an attribute of megabytes."""
    columns, plain = decoding.spans(spans(4554, *LARGE[what])), decoding.spans(spans(4554))
    assert columns.n == 4554
    assert sum(columns.dropped.values()) <= 1
    codes = columns.attributes.codes("server.address")
    assert [columns.strings.text(code) for code in codes.tolist()] == [
        f"10.0.0.{i % 250}" for i in range(4554)
    ]
    assert_same_columns(columns.end_ns, plain.end_ns)
    assert_same_columns(columns.span_id, plain.span_id)


def test_exemplars_leave_nothing_in_what_is_decoded(decoding: Decoding) -> None:
    """Guarantees: nothing can pile up that would have to be cleared with a window."""

    def points(exemplars: int) -> bytes:
        request = ExportMetricsServiceRequest()
        metrics = request.resource_metrics.add().scope_metrics.add().metrics
        counter, histogram = metrics.add(name="calls"), metrics.add(name="took")
        for data in (counter.sum, histogram.histogram):
            data.aggregation_temporality = CUMULATIVE
        counter.sum.is_monotonic = True
        number = counter.sum.data_points.add(time_unix_nano=NOW_NS, as_int=7)
        buckets = histogram.histogram.data_points.add(time_unix_nano=NOW_NS, count=7, sum=3.5)
        buckets.explicit_bounds.extend([1.0])
        buckets.bucket_counts.extend([3, 4])
        for i in range(exemplars):
            for point in (number, buckets):
                exemplar = point.exemplars.add(time_unix_nano=NOW_NS, as_double=i)
                exemplar.trace_id, exemplar.span_id = i.to_bytes(16, "big"), i.to_bytes(8, "big")
                put(exemplar.filtered_attributes, "url.path", f"/users/{i}")
        return request.SerializeToString()

    assert_same_columns(decoding.points(points(1000)), decoding.points(points(0)))
