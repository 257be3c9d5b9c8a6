"""Synthetic OTLP requests whose clocks and counters move by patching bytes, not by encoding again.

Every time stamp and every counter of a request is encoded as a marker of eight bytes; `stamped`
replaces the markers, so that a generator of 40,000 points a second costs next to nothing.
"""

import struct
from typing import Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, ScopeMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

TIME: Final = struct.pack("<Q", 0x1122334455667788)
BEGIN: Final = struct.pack("<Q", 0x1122334455667799)
COUNT: Final = struct.pack("<d", 123456.789012)
CUMULATIVE: Final = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
GAUGES: Final = {
    "vllm:num_requests_running": 8.0,
    "vllm:num_requests_waiting": 1.0,
    "vllm:kv_cache_usage_perc": 0.4,
}
COUNTERS: Final = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:num_preemptions_total",
)
HISTOGRAMS: Final = (
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
)
BOUNDS: Final = tuple(0.001 * 2**i for i in range(15))


def _text(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def address(endpoint: int) -> str:
    """The address of synthetic endpoint number `endpoint`."""
    return f"10.{endpoint >> 16 & 255}.{endpoint >> 8 & 255}.{endpoint & 255}:8000"


def metrics(endpoints: range, points: int) -> bytes:
    """One scrape of each endpoint: `points` data points (at least 15) with the marker as time."""
    request = ExportMetricsServiceRequest()
    for endpoint in endpoints:
        group = request.resource_metrics.add()
        group.resource.CopyFrom(_engine(endpoint))
        _scrape(group.scope_metrics.add(), points)
    return request.SerializeToString()


def _engine(endpoint: int) -> Resource:
    host, _, port = address(endpoint).partition(":")
    pairs = {
        "service.name": "vllm",
        "service.instance.id": address(endpoint),
        "server.address": host,
        "server.port": port,
        "k8s.node.name": f"node-{endpoint // 8}",
    }
    return Resource(attributes=[_text(key, value) for key, value in pairs.items()])


def _scrape(scope: ScopeMetrics, points: int) -> None:
    labels = [_text("model_name", "bench-model"), _text("engine", "0")]
    stamp = int.from_bytes(TIME, "little")
    count = struct.unpack("<d", COUNT)[0]
    up = scope.metrics.add(name="up").gauge.data_points.add(as_double=1.0)
    up.time_unix_nano = stamp
    for name, value in GAUGES.items():
        point = scope.metrics.add(name=name).gauge.data_points.add(as_double=value)
        point.attributes.extend(labels)
        point.time_unix_nano = stamp
    for name in COUNTERS:
        total = scope.metrics.add(name=name).sum
        total.aggregation_temporality, total.is_monotonic = CUMULATIVE, True
        point = total.data_points.add(as_double=count, start_time_unix_nano=1)
        point.attributes.extend(labels)
        point.time_unix_nano = stamp
    for name in HISTOGRAMS:
        histogram = scope.metrics.add(name=name).histogram
        histogram.aggregation_temporality = CUMULATIVE
        row = histogram.data_points.add(count=160, sum=16.0, start_time_unix_nano=1)
        row.attributes.extend(labels)
        row.bucket_counts.extend([10] * 16)
        row.explicit_bounds.extend(BOUNDS)
        row.time_unix_nano = stamp
    rest = scope.metrics.add(name="vllm:request_success_total").sum
    rest.aggregation_temporality, rest.is_monotonic = CUMULATIVE, True
    for i in range(points - 1 - len(GAUGES) - len(COUNTERS) - len(HISTOGRAMS)):
        point = rest.data_points.add(as_double=count, start_time_unix_nano=1)
        point.attributes.extend([*labels, _text("finished_reason", f"stop-{i}")])
        point.time_unix_nano = stamp


def spans(endpoints: int, first: int, count: int) -> bytes:
    """`count` client spans of 12 attributes towards endpoints `first`, `first` + 1, ..."""
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.append(_text("service.name", "bench-gateway"))
    scope = group.scope_spans.add()
    for i in range(count):
        host, _, port = address((first + i) % endpoints).partition(":")
        span = scope.spans.add(
            name="chat bench-model",
            kind=Span.SPAN_KIND_CLIENT,
            trace_id=(first + i + 1).to_bytes(16, "big"),
            span_id=(first + i + 1).to_bytes(8, "big"),
            start_time_unix_nano=int.from_bytes(BEGIN, "little"),
            end_time_unix_nano=int.from_bytes(TIME, "little"),
        )
        for key, text in (
            ("server.address", host),
            ("http.request.method", "POST"),
            ("url.path", "/v1/chat/completions"),
            ("gen_ai.operation.name", "chat"),
            ("gen_ai.request.model", "bench-model"),
            ("gen_ai.provider.name", "vllm"),
            ("tailrace.tenant", f"tenant-{i % 10}"),
            ("network.protocol.version", "1.1"),
        ):
            span.attributes.append(_text(key, text))
        for key, number in (
            ("server.port", int(port)),
            ("http.response.status_code", 200),
            ("gen_ai.usage.input_tokens", 900 + i % 200),
            ("gen_ai.usage.output_tokens", 100 + i % 50),
        ):
            span.attributes.append(KeyValue(key=key, value=AnyValue(int_value=number)))
    return request.SerializeToString()


def stamped(body: bytes, now_ns: int, count: float, duration_ns: int = 200_000_000) -> bytes:
    """`body` with times `now_ns` (begin: `duration_ns` before) and counters at `count`.

    >>> stamped(TIME + COUNT, 7, 2.0, duration_ns=0) == struct.pack("<Qd", 7, 2.0)
    True
    """
    return (
        body.replace(TIME, struct.pack("<Q", now_ns))
        .replace(BEGIN, struct.pack("<Q", now_ns - duration_ns))
        .replace(COUNT, struct.pack("<d", count))
    )
