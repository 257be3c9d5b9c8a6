"""OTLP requests for tests: random ones, and their bytes with every legal disorder on the wire."""

import random
import struct
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pipeline.keys import LOG_KEYS, POINT_KEYS, RESOURCE_KEYS, SPAN_KEYS, Key

NOW_NS = 1_700_000_000_000_000_000

# attributes

TEXTS = ("", "a", "200", "-", " 7 ", "1.5e3", "nan", "0x10", "Z\u00fcrich", "x" * 600)


def put(attributes: Any, key: str, value: Any) -> None:
    """Append one attribute; None = an empty AnyValue, a tuple = an array, a dict = a kvlist."""
    pair = attributes.add(key=key)
    fill(pair.value, value)


def fill(target: Any, value: Any) -> None:
    """Set an AnyValue."""
    match value:
        case None:
            target.SetInParent()
        case bool():
            target.bool_value = value
        case int():
            target.int_value = value
        case float():
            target.double_value = value
        case str():
            target.string_value = value
        case bytes():
            target.bytes_value = value
        case tuple():
            target.array_value.SetInParent()
            for element in value:
                fill(target.array_value.values.add(), element)
        case dict():
            target.kvlist_value.SetInParent()
            for key, element in value.items():
                put(target.kvlist_value.values, key, element)


def any_value(rnd: random.Random) -> Any:
    choices: tuple[Any, ...] = (
        None,
        rnd.random() < 0.5,
        rnd.choice((0, -1, 200, 8000, 2**53 + 1, -(2**63), 2**63 - 1)),
        rnd.choice((0.0, -0.0, 8000.0, 1.5, 1e300, float("inf"), float("nan"))),
        rnd.choice(TEXTS),
        rnd.choice(TEXTS),
        b"\xff\x00",
        (),
        ("stop", "length"),
        (5, "x"),
        ((),),
        {"a": 1},
    )
    return rnd.choice(choices)


def attributes(rnd: random.Random, target: Any, keys: tuple[Key, ...]) -> None:
    """Up to 8 attributes: known keys, unknown ones, now and then the same key twice."""
    pool = [key.name for key in rnd.sample(keys, 4)] + ["custom.label", ""]
    for _ in range(rnd.randrange(8)):
        put(target, rnd.choice(pool), any_value(rnd))


def _resource_and_scopes(rnd: random.Random, group: Any) -> int:
    if rnd.random() < 0.8:
        attributes(rnd, group.resource.attributes, RESOURCE_KEYS)
    group.schema_url = rnd.choice(("", "https://opentelemetry.io/schemas/1.38.0"))
    return rnd.randrange(3)


def _scope(rnd: random.Random, scope: Any) -> None:
    scope.name = rnd.choice(("", "vllm", "otelcol/prometheusreceiver"))
    scope.version = rnd.choice(("", "0.1"))
    attributes(rnd, scope.attributes, RESOURCE_KEYS)


# requests


def trace_request(rnd: random.Random) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    for _ in range(rnd.randrange(3)):
        group = request.resource_spans.add()
        for _ in range(_resource_and_scopes(rnd, group)):
            holder = group.scope_spans.add()
            _scope(rnd, holder.scope)
            for _ in range(rnd.randrange(4)):
                _span(rnd, holder.spans.add())
    return request


def _span(rnd: random.Random, span: Any) -> None:
    span.name = rnd.choice(("", "GET /", "llm_request"))
    span.trace_id = rnd.choice((rnd.randbytes(16), bytes(16), b"short", b""))
    span.span_id = rnd.choice((rnd.randbytes(8), bytes(8), b"longer than 8"))
    span.parent_span_id = rnd.choice((b"", rnd.randbytes(8), b"bad"))
    span.trace_state = rnd.choice(("", "ot=th:8"))
    span.kind = rnd.choice((0, 2, 3, 9, 300))
    span.status.code = rnd.choice((0, 1, 2))
    span.flags = rnd.choice((0, 1, 0x301, 0xFFFFFFFF))
    span.start_time_unix_nano = rnd.choice((0, NOW_NS, 2**63, 2**64 - 1))
    span.end_time_unix_nano = rnd.choice((0, NOW_NS + 5, NOW_NS - 5))
    span.events.add(name="first token", time_unix_nano=NOW_NS)
    span.links.add(trace_id=rnd.randbytes(16))
    attributes(rnd, span.attributes, SPAN_KEYS)


def metrics_request(rnd: random.Random) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    for _ in range(rnd.randrange(3)):
        group = request.resource_metrics.add()
        for _ in range(_resource_and_scopes(rnd, group)):
            holder = group.scope_metrics.add()
            _scope(rnd, holder.scope)
            for _ in range(rnd.randrange(4)):
                _metric(rnd, holder.metrics.add())
    return request


def _metric(rnd: random.Random, metric: Any) -> None:
    metric.name = rnd.choice(("", "vllm:num_requests_running", "gen_ai.server.request.duration"))
    metric.unit = rnd.choice(("", "s"))
    metric.description = rnd.choice(("", "how many"))
    kinds = ("gauge", "sum", "histogram", "exponential_histogram", "summary", "")
    kind = rnd.choice(kinds)
    if not kind:
        return
    data = getattr(metric, kind)
    data.SetInParent()
    if kind in {"sum", "histogram", "exponential_histogram"}:
        data.aggregation_temporality = rnd.choice((0, 1, 2, 2))
    if kind == "sum":
        data.is_monotonic = rnd.random() < 0.5
    for _ in range(rnd.randrange(3)):
        point = data.data_points.add()
        point.start_time_unix_nano = rnd.choice((0, NOW_NS, 2**64 - 1))
        point.time_unix_nano = rnd.choice((0, NOW_NS, NOW_NS + 1))
        point.flags = rnd.choice((0, 0, 1))
        attributes(rnd, point.attributes, POINT_KEYS)
        _value(rnd, kind, point)


def _value(rnd: random.Random, kind: str, point: Any) -> None:
    if kind in {"gauge", "sum"}:
        choice = rnd.randrange(4)
        if choice == 0:
            point.as_int = rnd.choice((0, -5, 2**40))
        elif choice < 3:
            point.as_double = rnd.choice((0.0, -1.5, float("nan"), float("inf")))
        return
    if kind != "summary" and rnd.random() < 0.7:
        point.sum = 12.5
    if kind == "summary":
        point.sum = rnd.choice((0.0, 3.5))
        point.count = rnd.randrange(9)
    elif kind == "histogram":
        size = rnd.randrange(4)
        point.bucket_counts.extend(rnd.randrange(300) for _ in range(size))
        point.explicit_bounds.extend(sorted(rnd.random() for _ in range(max(0, size - 1))))
        point.count = sum(point.bucket_counts) + rnd.choice((0, 0, 0, 1))
    else:
        point.scale = rnd.choice((0, 3, -2, 20, -10, 21, 2**31 - 1))
        point.zero_count = rnd.randrange(3)
        point.positive.offset = rnd.choice((0, -4, 100, 2**31 - 1))
        point.positive.bucket_counts.extend(rnd.randrange(300) for _ in range(rnd.randrange(4)))
        point.negative.bucket_counts.extend(rnd.randrange(2) for _ in range(rnd.randrange(2)))
        total = sum(point.positive.bucket_counts) + sum(point.negative.bucket_counts)
        point.count = total + point.zero_count + rnd.choice((0, 0, 0, 1))


def logs_request(rnd: random.Random) -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    for _ in range(rnd.randrange(3)):
        group = request.resource_logs.add()
        for _ in range(_resource_and_scopes(rnd, group)):
            holder = group.scope_logs.add()
            _scope(rnd, holder.scope)
            for _ in range(rnd.randrange(4)):
                record = holder.log_records.add()
                record.time_unix_nano = rnd.choice((0, NOW_NS))
                record.observed_time_unix_nano = rnd.choice((0, NOW_NS, 2**63))
                record.severity_number = rnd.choice((0, 9, 17))  # type: ignore[assignment]  # an enum
                record.trace_id = rnd.choice((b"", rnd.randbytes(16), b"bad"))
                attributes(rnd, record.attributes, LOG_KEYS)
                if rnd.random() < 0.7:
                    body = any_value(rnd)
                    if rnd.random() < 0.6:
                        body = {key.name: any_value(rnd) for key in rnd.sample(LOG_KEYS, 3)}
                    fill(record.body, body)
    return request


# the wire

_FIXED: dict[int, tuple[int, str]] = {
    FieldDescriptor.TYPE_DOUBLE: (1, "<d"),
    FieldDescriptor.TYPE_FIXED64: (1, "<Q"),
    FieldDescriptor.TYPE_SFIXED64: (1, "<q"),
    FieldDescriptor.TYPE_FIXED32: (5, "<I"),
}


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def _scalar(kind: int, value: Any) -> tuple[int, bytes]:
    if kind in _FIXED:
        wire, form = _FIXED[kind]
        return wire, struct.pack(form, value)
    if kind == FieldDescriptor.TYPE_SINT32:
        return 0, varint((value << 1) ^ (value >> 31))
    return 0, varint(int(value))


def _one(descriptor: Any, value: Any, rnd: random.Random) -> bytes:
    if descriptor.type == FieldDescriptor.TYPE_MESSAGE:
        return field(descriptor.number, disordered(value, rnd))
    if isinstance(value, str | bytes):
        return field(descriptor.number, value.encode() if isinstance(value, str) else value)
    wire, payload = _scalar(descriptor.type, value)
    return varint(descriptor.number << 3 | wire) + payload


def _chunks(descriptor: Any, value: Any, rnd: random.Random) -> list[bytes]:
    """The encodings of one field, whose order among themselves matters."""
    if descriptor.is_repeated and descriptor.type in {
        *_FIXED,
        FieldDescriptor.TYPE_UINT64,
    }:
        cut = rnd.randrange(len(value) + 1)  # packed, then not packed
        packed = b"".join(_scalar(descriptor.type, one)[1] for one in value[:cut])
        return [field(descriptor.number, packed)] + [
            _one(descriptor, one, rnd) for one in value[cut:]
        ]
    if descriptor.is_repeated:
        return [_one(descriptor, one, rnd) for one in value]
    if descriptor.type == FieldDescriptor.TYPE_MESSAGE and rnd.random() < 0.3:
        chunks = _grouped(value, rnd)  # a singular message, sent in two parts that merge
        cut = rnd.randrange(len(chunks) + 1)
        return [
            field(descriptor.number, b"".join(chunks[:cut])),
            field(descriptor.number, b"".join(chunks[cut:])),
        ]
    return [_one(descriptor, value, rnd)]


def _grouped(message: Any, rnd: random.Random) -> list[bytes]:
    """A message's encodings: fields interleaved at random, the order inside each field kept."""
    queues = [_chunks(descriptor, value, rnd) for descriptor, value in message.ListFields()]
    if rnd.random() < 0.3:
        queues.append([field(1000, b"from the future"), varint(2000 << 3) + varint(7)])
    if rnd.random() < 0.2:  # a group: start, a field inside, end
        queues.append([varint(1500 << 3 | 3) + field(1, b"x") + varint(1500 << 3 | 4)])
    if rnd.random() < 0.2:  # a known number with a wire type that it does not have
        queues.append([varint(1 << 3 | 5) + b"1234"])
    chunks = []
    while any(queues):
        queue = rnd.choice([queue for queue in queues if queue])
        chunks.append(queue.pop(0))
    return chunks


def disordered(message: Any, rnd: random.Random) -> bytes:
    """Bytes that parse to `message`, as untidily as protobuf allows."""
    return b"".join(_grouped(message, rnd))
