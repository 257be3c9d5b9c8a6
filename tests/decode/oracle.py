"""What decoding must give, spelled out item by item on the official protobuf classes."""

import math
import re
import struct
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import xxhash

from pipeline.keys import LOG_KEYS, POINT_KEYS, RESOURCE_KEYS, SPAN_KEYS, Key, KeyKind
from pipeline.model import Attributes, Dictionary, LogColumns, PointColumns, SpanColumns

INT64_MAX = 2**63 - 1
Row = dict[str, Any]


def clamp(value: int) -> int:
    return min(value, INT64_MAX)


def small(value: int) -> int:
    return max(0, min(value, 255))


def identity(raw: bytes, size: int) -> bytes:
    return raw if len(raw) == size else bytes(size)


def _text(value: Any, nested: bool = False) -> str | None:  # noqa: PLR0911  # a case a line
    which = value.WhichOneof("value")
    if which == "string_value":
        return str(value.string_value)
    if which == "int_value":
        return str(value.int_value)
    if which == "bool_value":
        return "true" if value.bool_value else "false"
    if which == "double_value" and not math.isnan(value.double_value):
        number = value.double_value
        if abs(number) < 2**53 and number == int(number):
            return str(int(number))
        return repr(number)
    if which == "array_value" and not nested and value.array_value.values:
        return _text(value.array_value.values[0], True)
    return None


def _number(value: Any) -> float | None:
    which = value.WhichOneof("value")
    if which in {"int_value", "double_value", "bool_value"}:
        return float(getattr(value, which))
    if which == "string_value":
        text = value.string_value.strip(" ")
        if re.fullmatch(r"[+-]?\d{1,40}(\.\d{0,40})?([eE][+-]?\d{1,3})?", text, re.ASCII):
            return float(text)
    return None


def known(pairs: Iterable[Any], keys: tuple[Key, ...]) -> Row:
    """Key -> coerced value of the first usable attribute; NaN as None."""
    kinds = {key.name: key.kind for key in keys}
    found: Row = {}
    seen = set()
    for pair in pairs:
        kind = kinds.get(pair.key)
        if kind is None or pair.key in seen:
            continue
        value = _number(pair.value) if kind is KeyKind.NUMBER else _text(pair.value)
        if value is not None:
            seen.add(pair.key)
            if not (isinstance(value, float) and math.isnan(value)):
                found[pair.key] = value
    return found


def attribute_rows(columns: Attributes, strings: Dictionary) -> list[Row]:
    rows: list[Row] = [{} for _ in range(columns.n)]
    for key, codes in columns.text.items():
        for row, code in zip(rows, codes.tolist(), strict=True):
            if code >= 0:
                row[key] = strings.text(code)
    for key, numbers in columns.number.items():
        for row, number in zip(rows, numbers.tolist(), strict=True):
            if not math.isnan(number):
                row[key] = number
    return rows


# spans and logs


def expected_spans(request: Any) -> list[Row]:
    return [
        {
            "name": span.name,
            "trace_state": span.trace_state,
            "scope": holder.scope.name,
            "kind": small(span.kind),
            "status": small(span.status.code),
            "flags": span.flags & 0x3FF,
            "start_ns": clamp(span.start_time_unix_nano),
            "end_ns": clamp(span.end_time_unix_nano),
            "trace_id": identity(span.trace_id, 16),
            "span_id": identity(span.span_id, 8),
            "parent_span_id": identity(span.parent_span_id, 8),
            "resource": known(group.resource.attributes, RESOURCE_KEYS),
            "attributes": known(span.attributes, SPAN_KEYS),
        }
        for group in request.resource_spans
        for holder in group.scope_spans
        for span in holder.spans
    ]


def invalid_ids(request: Any) -> int:
    """Spans with an id that is no id."""
    return sum(
        len(span.trace_id) != 16
        or len(span.span_id) != 8
        or not any(span.trace_id)
        or not any(span.span_id)
        or len(span.parent_span_id) not in {0, 8}
        for group in request.resource_spans
        for holder in group.scope_spans
        for span in holder.spans
    )


def span_rows(columns: SpanColumns) -> list[Row]:
    attributes = attribute_rows(columns.attributes, columns.strings)
    resources = attribute_rows(columns.resources, columns.strings)
    return [
        {
            "name": columns.strings.text(columns.name[i]),
            "trace_state": columns.strings.text(columns.trace_state[i]),
            "scope": columns.strings.text(columns.scope[i]),
            "kind": columns.kind[i],
            "status": columns.status[i],
            "flags": columns.flags[i],
            "start_ns": columns.start_ns[i],
            "end_ns": columns.end_ns[i],
            "trace_id": columns.trace_id[i].tobytes(),
            "span_id": columns.span_id[i].tobytes(),
            "parent_span_id": columns.parent_span_id[i].tobytes(),
            "resource": resources[columns.resource[i]],
            "attributes": attributes[i],
        }
        for i in range(columns.n)
    ]


def expected_logs(request: Any) -> list[Row]:
    return [
        {
            "scope": holder.scope.name,
            "time_ns": clamp(record.time_unix_nano),
            "observed_ns": clamp(record.observed_time_unix_nano),
            "severity": small(record.severity_number),
            "trace_id": identity(record.trace_id, 16),
            "resource": known(group.resource.attributes, RESOURCE_KEYS),
            "attributes": known([*record.attributes, *record.body.kvlist_value.values], LOG_KEYS),
        }
        for group in request.resource_logs
        for holder in group.scope_logs
        for record in holder.log_records
    ]


def log_rows(columns: LogColumns) -> list[Row]:
    attributes = attribute_rows(columns.attributes, columns.strings)
    resources = attribute_rows(columns.resources, columns.strings)
    return [
        {
            "scope": columns.strings.text(columns.scope[i]),
            "time_ns": columns.time_ns[i],
            "observed_ns": columns.observed_ns[i],
            "severity": columns.severity[i],
            "trace_id": columns.trace_id[i].tobytes(),
            "resource": resources[columns.resource[i]],
            "attributes": attributes[i],
        }
        for i in range(columns.n)
    ]


# points

KINDS = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
MASK = 2**64 - 1


def halves(data: bytes) -> tuple[int, int]:
    digest = xxhash.xxh3_128_intdigest(data)
    return digest & MASK, digest >> 64


def counted(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def pair_bytes(pair: Any) -> bytes:
    value = pair.value
    which = value.WhichOneof("value")
    payloads: dict[str | None, bytes] = {
        None: b"n",
        "string_value": b"s" + value.string_value.encode(),
        "bool_value": b"b" + bytes([value.bool_value]),
        "int_value": b"i" + struct.pack("<q", value.int_value),
        "double_value": b"d" + struct.pack("<d", value.double_value),
        "bytes_value": b"y" + value.bytes_value,
    }
    return counted(pair.key.encode()) + payloads[which]


def attribute_sum(pairs: Iterable[Any]) -> tuple[int, int]:
    first: dict[str, Any] = {}
    for pair in pairs:
        first.setdefault(pair.key, pair)
    lanes = [halves(pair_bytes(pair)) for pair in first.values()]
    return sum(low for low, _ in lanes), sum(high for _, high in lanes)


def series_key(group: Any, holder: Any, metric: Any, point: Any) -> tuple[int, int]:
    """The documented series key, for attributes without arrays and key-value lists."""
    kind = metric.WhichOneof("data")
    data = getattr(metric, kind)
    temporality = {"gauge": 0, "summary": 2}.get(kind)
    if temporality is None:
        temporality = data.aggregation_temporality
    monotonic = kind == "sum" and data.is_monotonic
    own = halves(
        counted(metric.name.encode())
        + counted(metric.unit.encode())
        + bytes([KINDS.index(kind), temporality, monotonic])
        + counted(holder.scope.name.encode())
        + counted(holder.scope.version.encode())
    )
    sums = [
        (0x9E3779B97F4A7C15, attribute_sum(group.resource.attributes)),
        (0xC2B2AE3D27D4EB4F, attribute_sum(holder.scope.attributes)),
        (0x165667B19E3779F9, attribute_sum(point.attributes)),
    ]
    low, high = (
        (own[lane] + sum(factor * lanes[lane] for factor, lanes in sums)) & MASK for lane in (0, 1)
    )
    return low, high


def walk_points(request: Any) -> Iterator[tuple[Any, Any, Any, str, Any]]:
    for group in request.resource_metrics:
        for holder in group.scope_metrics:
            for metric in holder.metrics:
                kind = metric.WhichOneof("data")
                if kind is not None:
                    for point in getattr(metric, kind).data_points:
                        yield group, holder, metric, kind, point


def is_sound(kind: str, metric: Any, point: Any) -> bool:  # noqa: PLR0911  # a case a line
    if point.time_unix_nano == 0:
        return False
    ended = point.flags & 1
    if kind in {"sum", "histogram", "exponential_histogram"} and (
        getattr(metric, kind).aggregation_temporality not in {1, 2}
    ):
        return False
    if ended or kind == "summary":
        return True
    if kind in {"gauge", "sum"}:
        return point.WhichOneof("value") is not None
    if point.count >= 2**53:
        return False
    if kind == "histogram":
        buckets, bounds = list(point.bucket_counts), list(point.explicit_bounds)
        if not buckets and not bounds:
            return True
        rising = all(map(math.isfinite, bounds)) and all(a < b for a, b in pairwise(bounds))
        return len(buckets) == len(bounds) + 1 and rising and sum(buckets) == point.count
    reach = 1100 * 2.0**point.scale + 1 if -10 <= point.scale <= 20 else -1
    low, size = point.positive.offset, len(point.positive.bucket_counts)
    total = sum(point.positive.bucket_counts) + sum(point.negative.bucket_counts)
    return bool(
        abs(low) <= reach and abs(low + size) <= reach and total + point.zero_count == point.count
    )


def _nan_as_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _expected_histogram(kind: str, point: Any) -> Row | None:
    if kind not in {"histogram", "exponential_histogram"} or point.flags & 1:
        return None
    row: Row = {"sum": point.sum if point.HasField("sum") else None, "count": point.count}
    if kind == "histogram":
        return row | {"counts": list(point.bucket_counts), "bounds": list(point.explicit_bounds)}
    return row | {
        "counts": list(point.positive.bucket_counts),
        "count": point.count - sum(point.negative.bucket_counts),
        "scale": point.scale,
        "offset": point.positive.offset,
        "zero_count": point.zero_count,
    }


def expected_points(request: Any) -> list[Row]:
    rows = []
    for group, holder, metric, kind, point in walk_points(request):
        if not is_sound(kind, metric, point):
            continue
        value: float = math.nan
        if not point.flags & 1:
            if kind == "summary":
                value = point.sum
            elif kind in {"gauge", "sum"}:
                value = float(getattr(point, point.WhichOneof("value")))
        rows.append(
            {
                "name": metric.name,
                "unit": metric.unit,
                "description": metric.description,
                "kind": KINDS.index(kind),
                "scope": holder.scope.name,
                "start_ns": clamp(point.start_time_unix_nano),
                "time_ns": clamp(point.time_unix_nano),
                "flags": point.flags,
                "value": _nan_as_none(value),
                "count": float(point.count)
                if kind not in {"gauge", "sum"} and not point.flags & 1
                else None,
                "histogram": _expected_histogram(kind, point),
                "resource": known(group.resource.attributes, RESOURCE_KEYS),
                "attributes": known(point.attributes, POINT_KEYS),
            }
        )
    return rows


def _histogram_row(columns: PointColumns, i: int) -> Row | None:
    row = int(columns.histogram[i])
    if row < 0:
        return None
    table = columns.histograms
    found: Row = {
        "sum": _nan_as_none(float(table.sum[row])),
        "count": table.count[row],
        "counts": table.counts[table.starts[row] : table.starts[row + 1]].tolist(),
    }
    if table.bounds_id[row] >= 0:
        return found | {"bounds": table.bounds[table.bounds_id[row]].tolist()}
    return found | {
        "scale": table.scale[row],
        "offset": table.offset[row],
        "zero_count": table.zero_count[row],
    }


def point_rows(columns: PointColumns) -> list[Row]:
    text = columns.strings.text
    attributes = attribute_rows(columns.attributes, columns.strings)
    resources = attribute_rows(columns.resources, columns.strings)
    return [
        {
            "name": text(columns.metrics.name[metric]),
            "unit": text(columns.metrics.unit[metric]),
            "description": text(columns.metrics.description[metric]),
            "kind": columns.metrics.kind[metric],
            "scope": text(columns.scope[i]),
            "start_ns": columns.start_ns[i],
            "time_ns": columns.time_ns[i],
            "flags": columns.flags[i],
            "value": _nan_as_none(float(columns.value[i])),
            "count": _nan_as_none(float(columns.count[i])),
            "histogram": _histogram_row(columns, i),
            "resource": resources[columns.resource[i]],
            "attributes": attributes[i],
        }
        for i, metric in enumerate(columns.metric.tolist())
    ]
