"""OTLP message classes that hold only what is read, built at run time from the official schema.

Strings become bytes (invalid UTF-8 cannot fail a parse), attributes and the elements of arrays and
key-value lists become repeated bytes (nesting cannot fail one either, and costs nothing), enums
become int32, nanoseconds become signed (a value past 2^63 shows as negative). Numbers and oneofs
are the official ones; fields that are not listed are skipped as unknown.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

_PACKAGE: Final = "tailrace.pruned"
_POINT: Final = "attributes start_time_unix_nano time_unix_nano flags"
_FIELDS: Final[Mapping[str, str]] = {
    "ExportTraceServiceRequest": "resource_spans",
    "ResourceSpans": "resource scope_spans",
    "ScopeSpans": "scope spans",
    "Span": "trace_id span_id trace_state parent_span_id name kind start_time_unix_nano"
    " end_time_unix_nano attributes status flags",
    "Status": "code",
    "ExportMetricsServiceRequest": "resource_metrics",
    "ResourceMetrics": "resource scope_metrics",
    "ScopeMetrics": "scope metrics",
    "Metric": "name description unit gauge sum histogram exponential_histogram summary",
    "Gauge": "data_points",
    "Sum": "data_points aggregation_temporality is_monotonic",
    "Histogram": "data_points aggregation_temporality",
    "ExponentialHistogram": "data_points aggregation_temporality",
    "Summary": "data_points",
    "NumberDataPoint": f"{_POINT} as_double as_int",
    "HistogramDataPoint": f"{_POINT} count sum bucket_counts explicit_bounds",
    "ExponentialHistogramDataPoint": f"{_POINT} count sum scale zero_count positive negative",
    "ExponentialHistogramDataPoint.Buckets": "offset bucket_counts",
    "SummaryDataPoint": f"{_POINT} count sum",
    "ExportLogsServiceRequest": "resource_logs",
    "ResourceLogs": "resource scope_logs",
    "ScopeLogs": "scope log_records",
    "LogRecord": "time_unix_nano observed_time_unix_nano severity_number body attributes trace_id",
    "ExportProfilesServiceRequest": "resource_profiles",
    "ResourceProfiles": "scope_profiles",
    "ScopeProfiles": "profiles",
    "Resource": "attributes",
    "InstrumentationScope": "name version attributes",
    "KeyValue": "key value",
    "AnyValue": "string_value bool_value int_value double_value array_value kvlist_value"
    " bytes_value",
    "ArrayValue": "values",
    "KeyValueList": "values",
}
"""Message (as named inside its OTLP package) -> the fields that are read."""

_OPAQUE: Final = frozenset({"attributes", "values", "profiles"})
"""Repeated messages kept as bytes, one object each."""


def _local(message: Descriptor) -> str:
    """The message's name inside its package: `Span`, `ExponentialHistogramDataPoint.Buckets`."""
    return message.full_name.removeprefix(f"{message.file.package}.")


def _reachable(message: Descriptor, found: dict[str, Descriptor]) -> Iterator[Descriptor]:
    if _local(message) in found or _local(message) not in _FIELDS:
        return
    found[_local(message)] = message
    yield message
    for field in message.fields:
        if field.message_type is not None:
            yield from _reachable(field.message_type, found)


def _prune_field(field: FieldDescriptor, pruned: descriptor_pb2.FieldDescriptorProto) -> None:
    kind: Any = field.type
    if field.message_type is not None and (
        field.name in _OPAQUE or _local(field.message_type) not in _FIELDS
    ):
        kind = FieldDescriptor.TYPE_BYTES
    elif field.message_type is not None:
        pruned.type_name = f".{_PACKAGE}.{_local(field.message_type).replace('.', '_')}"
    elif field.type == FieldDescriptor.TYPE_STRING:
        kind = FieldDescriptor.TYPE_BYTES
    elif field.type == FieldDescriptor.TYPE_ENUM:
        kind = FieldDescriptor.TYPE_INT32
    elif field.name.endswith("time_unix_nano"):
        kind = FieldDescriptor.TYPE_SFIXED64
    elif field.type == FieldDescriptor.TYPE_DOUBLE and field.containing_oneof is not None:
        pruned.default_value = "nan"  # absence shows in the value: no presence call per point
    pruned.name, pruned.number, pruned.type = field.name, field.number, kind
    pruned.label = (
        descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
        if field.is_repeated
        else descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    )


def _prune(message: Descriptor, pruned: descriptor_pb2.DescriptorProto) -> None:
    pruned.name = _local(message).replace(".", "_")
    oneofs: list[str] = []
    for name in _FIELDS[_local(message)].split():
        field = message.fields_by_name[name]
        target = pruned.field.add()
        _prune_field(field, target)
        oneof = field.containing_oneof
        # An `optional` of proto3 is a oneof of its own; in proto2, used here, presence is a given.
        if oneof is not None and len(oneof.fields) > 1:
            if oneof.name not in oneofs:
                oneofs.append(oneof.name)
                pruned.oneof_decl.add(name=oneof.name)
            target.oneof_index = oneofs.index(oneof.name)


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="tailrace/pruned.proto", package=_PACKAGE, syntax="proto2"
    )
    found: dict[str, Descriptor] = {}
    for service in (
        trace_service_pb2,
        metrics_service_pb2,
        logs_service_pb2,
        profiles_service_pb2,
    ):
        for request in service.DESCRIPTOR.message_types_by_name.values():
            for message in _reachable(request, found):
                _prune(message, file.message_type.add())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        message.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{_PACKAGE}.{message.name}")
        )
        for message in file.message_type
    }


_CLASSES: Final = _build()

TraceRequest: Final[Any] = _CLASSES["ExportTraceServiceRequest"]
MetricsRequest: Final[Any] = _CLASSES["ExportMetricsServiceRequest"]
LogsRequest: Final[Any] = _CLASSES["ExportLogsServiceRequest"]
ProfilesRequest: Final[Any] = _CLASSES["ExportProfilesServiceRequest"]
KeyValue: Final[Any] = _CLASSES["KeyValue"]
AnyValue: Final[Any] = _CLASSES["AnyValue"]
