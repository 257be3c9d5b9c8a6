"""The batches that are sent, read with the official classes."""

import itertools
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import HistogramDataPoint, NumberDataPoint
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from pipeline.bench import batches
from pipeline.bench.template import Template

NOW_NS = 1_800_000_000_000_000_000


def _spans(body: bytes) -> list[Span]:
    request = ExportTraceServiceRequest.FromString(body)
    return [s for r in request.resource_spans for c in r.scope_spans for s in c.spans]


Point = NumberDataPoint | HistogramDataPoint


def _points(body: bytes) -> Iterator[tuple[str, Point]]:
    """(series, point)."""
    request = ExportMetricsServiceRequest.FromString(body)
    for group in request.resource_metrics:
        own = {pair.key: pair.value.string_value for pair in group.resource.attributes}
        for metric in itertools.chain(*(scope.metrics for scope in group.scope_metrics)):
            points: list[Point] = [*metric.gauge.data_points]
            points += metric.histogram.data_points
            for point in points:
                rank = {pair.key: pair.value.string_value for pair in point.attributes}["engine"]
                yield f"{own['service.instance.id']} {metric.name} {rank}", point


@pytest.mark.parametrize("count", [1, 10, 1000])
def test_spans_have_12_attributes_one_event_and_600_to_800_bytes(count: int) -> None:
    template = batches.spans(7, count)
    found = _spans(template.stamped(NOW_NS))
    assert len(found) == template.items == count
    for span in found:
        keys = [pair.key for pair in span.attributes]
        assert len(keys) == len(set(keys)) == 12
        assert len(span.events) == 1
        assert span.kind == Span.SPAN_KIND_CLIENT
        assert len(span.trace_id) == 16
        assert len(span.span_id) == 8
    if count == 1000:
        assert 600 <= template.size / count <= 800


def test_spans_end_shortly_before_they_are_sent_and_hold_their_event() -> None:
    for span in _spans(batches.spans(1, 500).stamped(NOW_NS)):
        assert NOW_NS - 200_000_000 <= span.end_time_unix_nano <= NOW_NS
        assert span.start_time_unix_nano < span.events[0].time_unix_nano
        assert span.events[0].time_unix_nano < span.end_time_unix_nano


def test_every_span_of_every_send_has_ids_of_its_own() -> None:
    template = batches.spans(1, 200)
    sent = [*_spans(template.stamped(NOW_NS)), *_spans(template.stamped(NOW_NS + 1))]
    assert len({span.trace_id for span in sent}) == 400
    assert len({span.span_id for span in sent}) == 400


def test_attribute_values_are_spread_and_batches_differ() -> None:
    found = _spans(batches.spans(1, 1000).stamped(NOW_NS))
    values: dict[str, set[str]] = {}
    for span in found:
        for pair in span.attributes:
            values.setdefault(pair.key, set()).add(str(pair.value))
    assert len(values["server.address"]) > 500
    assert len(values["tailrace.tenant"]) > 150
    assert len(values["gen_ai.usage.input_tokens"]) > 800
    assert len(values["gen_ai.conversation.id"]) == 1000
    assert len(values["http.response.status_code"]) >= 3
    bodies = {batches.spans(number, 20).stamped(NOW_NS) for number in range(50)}
    assert len(bodies) == 50


def test_the_same_batch_is_built_the_same() -> None:
    assert batches.spans(3, 50).stamped(NOW_NS) == batches.spans(3, 50).stamped(NOW_NS)


def test_every_span_names_a_member_of_the_pool() -> None:
    members = {member["address"] for member in batches.members()}
    assert len(members) == batches.ENDPOINTS
    for span in _spans(batches.spans(2, 300).stamped(NOW_NS)):
        own = {pair.key: pair.value for pair in span.attributes}
        address = f"{own['server.address'].string_value}:{own['server.port'].int_value}"
        assert address in members


@pytest.mark.parametrize(("number", "count"), [(0, 10), (3, 100), (57, 1000), (1, 8192)])
def test_points_are_half_gauges_half_histograms_of_16_buckets(number: int, count: int) -> None:
    template = batches.points(number, count, 128)
    points = [point for _, point in _points(template.stamped(NOW_NS))]
    histograms = [point for point in points if isinstance(point, HistogramDataPoint)]
    assert len(points) == template.items == count
    assert len(histograms) == count // 2
    assert 200 <= template.size / count <= 400
    for histogram in histograms:
        assert len(histogram.bucket_counts) == 16
        assert list(histogram.explicit_bounds) == sorted(set(histogram.explicit_bounds))
        assert len(histogram.explicit_bounds) == 15
        assert sum(histogram.bucket_counts) == histogram.count
    for point in points:
        assert NOW_NS - 2_000_000 <= point.time_unix_nano <= NOW_NS


def test_series_move_forward_from_batch_to_batch_and_from_pass_to_pass() -> None:
    """Scenario: two passes over all batches, some series more than once a pass.

    Guarantees: no counter falls, counts stay the sum of their buckets, sums rise with them.
    """
    count, of = 24_000, 3
    templates = [batches.points(number, count, of) for number in range(of)]
    assert count * of > batches.ENDPOINTS * batches.PAGE
    last: dict[str, HistogramDataPoint] = {}
    seen = 0
    for step, template in enumerate([*templates, *templates]):
        for series, point in _sampled(template, NOW_NS + step):
            before = last.get(series)
            if before is not None:
                seen += 1
                assert point.count > before.count
                assert point.sum > before.sum
                pairs = zip(point.bucket_counts, before.bucket_counts, strict=True)
                assert all(now >= then for now, then in pairs)
            assert sum(point.bucket_counts) == point.count
            last[series] = point
    assert seen > 100


def _sampled(template: Template, now_ns: int) -> Iterator[tuple[str, HistogramDataPoint]]:
    """Every hundredth series or so; reading all takes long."""
    for series, point in _points(template.stamped(now_ns)):
        if isinstance(point, HistogramDataPoint) and "7:8000 " in series:
            yield series, point


def test_a_page_has_every_series_once() -> None:
    series = [name for name, _ in _points(batches.points(0, 2 * batches.PAGE, 9).stamped(NOW_NS))]
    assert len(series) == len(set(series)) == 2 * batches.PAGE
