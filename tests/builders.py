"""Batches for tests, built as real OTLP messages and decoded by the real decoder."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from pipeline.clock import NS_PER_S, Instant
from pipeline.decode.columns import decode_logs, decode_spans
from pipeline.model import (
    LogColumns,
    Observer,
    Outcome,
    RequestRows,
    Rights,
    Sender,
    SpanColumns,
)

START: Final = Instant(1_000 * NS_PER_S, 1_700_000_000 * NS_PER_S)
"""The moment at which tests start."""

COLLECTOR: Final = Sender("10.9.9.9", Rights.METRICS | Rights.REQUESTS)
TRUSTED: Final = Sender("10.9.9.8", Rights.METRICS | Rights.REQUESTS | Rights.IDENTITY)
LOCAL: Final = Sender("127.0.0.1", Rights.METRICS | Rights.REQUESTS)

Row = Mapping[str, Any]
_SPAN_FIELDS: Final = {
    "name",
    "kind",
    "status",
    "start_ns",
    "end_ns",
    "trace_state",
    "trace_id",
    "span_id",
    "parent_span_id",
}
_LOG_FIELDS: Final = {"time_ns", "observed_ns", "body"}


def key_values(pairs: Mapping[str, Any]) -> list[KeyValue]:
    """Attributes with the value type of the Python value."""
    return [KeyValue(key=key, value=any_value(value)) for key, value in pairs.items()]


def any_value(value: Any) -> AnyValue:
    """str, bool, int, float, bytes, list or dict."""
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    result = AnyValue()
    if isinstance(value, dict):
        result.kvlist_value.values.extend(key_values(value))
    elif isinstance(value, list):
        result.array_value.values.extend(any_value(item) for item in value)
    else:
        result.string_value = value
    return result


def span_request(
    *groups: tuple[Mapping[str, Any], Sequence[Row]],
) -> ExportTraceServiceRequest:
    """One ResourceSpans a group of (resource attributes, spans)."""
    request = ExportTraceServiceRequest()
    for resource, rows in groups:
        part = request.resource_spans.add()
        part.resource.attributes.extend(key_values(resource))
        scope = part.scope_spans.add()
        for i, row in enumerate(rows):
            end_ns = row.get("end_ns", START.wall_ns)
            span = scope.spans.add(
                name=row.get("name", "POST"),
                kind=row.get("kind", 3),
                start_time_unix_nano=row.get("start_ns", max(end_ns - NS_PER_S, 0)),
                end_time_unix_nano=end_ns,
                trace_state=row.get("trace_state", ""),
                trace_id=row.get("trace_id", (i + 1).to_bytes(16, "big")),
                span_id=row.get("span_id", (i + 1).to_bytes(8, "big")),
                parent_span_id=row.get("parent_span_id", b""),
            )
            span.status.code = row.get("status", 0)
            attributes = {key: v for key, v in row.items() if key not in _SPAN_FIELDS}
            span.attributes.extend(key_values(attributes))
    return request


def spans(resource: Mapping[str, Any], rows: Sequence[Row]) -> SpanColumns:
    """Spans of one resource.

    A row holds span fields (name, kind = CLIENT, status, start_ns = a second before the end, end_ns
    = START, trace_state, ids) and, under any other key, attributes.
    """
    return decode_spans(span_request((resource, rows)).SerializeToString())


def span_groups(*groups: tuple[Mapping[str, Any], Sequence[Row]]) -> SpanColumns:
    """Spans of several resources."""
    return decode_spans(span_request(*groups).SerializeToString())


def logs(resource: Mapping[str, Any], rows: Sequence[Row]) -> LogColumns:
    """Log records of one resource; a row holds time_ns, observed_ns, body (dict), attributes."""
    request = ExportLogsServiceRequest()
    part = request.resource_logs.add()
    part.resource.attributes.extend(key_values(resource))
    scope = part.scope_logs.add()
    for row in rows:
        record = scope.log_records.add(
            time_unix_nano=row.get("time_ns", START.wall_ns),
            observed_time_unix_nano=row.get("observed_ns", 0),
        )
        if "body" in row:
            record.body.CopyFrom(any_value(row["body"]))
        attributes = {key: v for key, v in row.items() if key not in _LOG_FIELDS}
        record.attributes.extend(key_values(attributes))
    return decode_logs(request.SerializeToString())


def resources(*rows: Mapping[str, Any]) -> SpanColumns:
    """A batch whose `resources` and `strings` are those of `rows`, one span each."""
    return span_groups(*((row, [{}]) for row in rows))


def requests(rows: Sequence[Row]) -> RequestRows:
    """Request rows; defaults: slot 0, client, OK, one second long, ended at START."""
    n = len(rows)

    def column(key: str, default: Any, dtype: Any) -> Any:
        return np.array([row.get(key, default) for row in rows], dtype).reshape(n)

    return RequestRows(
        n=n,
        slot=column("slot", 0, np.int32),
        observer=column("observer", Observer.CLIENT, np.uint8),
        outcome=column("outcome", Outcome.OK, np.uint8),
        refused=column("refused", False, np.bool_),
        end_ns=column("end_ns", START.wall_ns, np.int64),
        duration_s=column("duration_s", 1.0, np.float64),
        ttft_s=column("ttft_s", np.nan, np.float64),
        prompt_tokens=column("prompt_tokens", np.nan, np.float64),
        cached_tokens=column("cached_tokens", np.nan, np.float64),
        output_tokens=column("output_tokens", np.nan, np.float64),
        weight=column("weight", 1.0, np.float64),
        source=column("source", 1, np.uint64),
        kind=column("kind", 0, np.uint64),
        tenant=column("tenant", 0, np.uint64),
        trace_id=np.frombuffer(
            b"".join(row.get("trace_id", bytes(16)) for row in rows), np.uint8
        ).reshape(n, 16),
    )
