"""OTLP/JSON against protobuf's own JSON mapping (ids converted), the specification's examples, and
each of OTLP's deviations, accepted and refused."""

import base64
import json
import math
import random
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import NumberDataPoint
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from pipeline.decode.otlp_json import MAX_ELEMENTS, to_protobuf
from pipeline.decode.reference import ReferenceDecoder
from pipeline.errors import Rejected
from pipeline.model import OtlpSignal, SpanColumns
from tests.decode import otlp

MESSAGES: dict[OtlpSignal, Any] = {
    OtlpSignal.TRACES: ExportTraceServiceRequest,
    OtlpSignal.METRICS: ExportMetricsServiceRequest,
    OtlpSignal.LOGS: ExportLogsServiceRequest,
    OtlpSignal.PROFILES: ExportProfilesServiceRequest,
}
IDS = {"traceId", "spanId", "parentSpanId", "profileId"}


def convert(signal: OtlpSignal, document: Any) -> Any:
    """The request that the JSON document becomes."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return MESSAGES[signal].FromString(to_protobuf(signal, body))


def otlp_json(node: Any) -> Any:
    """protobuf's JSON with its base64 ids as hex: OTLP's JSON."""
    if isinstance(node, list):
        return [otlp_json(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {
        key: base64.b64decode(value).hex() if key in IDS else otlp_json(value)
        for key, value in node.items()
    }


def document_of(message: Any) -> Any:
    return otlp_json(json_format.MessageToDict(message, use_integers_for_enums=True))


def same(left: Any, right: Any) -> bool:
    """Equal, NaN included."""
    return bool(
        left.SerializeToString(deterministic=True) == right.SerializeToString(deterministic=True)
    )


def span(fields: dict[str, Any] | str) -> Span:
    """The one span of a request whose span is this JSON object."""
    text = fields if isinstance(fields, str) else json.dumps(fields)
    body = '{"resourceSpans":[{"scopeSpans":[{"spans":[' + text + "]}]}]}"
    request = convert(OtlpSignal.TRACES, body.encode())
    found: Span = request.resource_spans[0].scope_spans[0].spans[0]
    return found


def attribute(value: Any) -> AnyValue:
    found: AnyValue = span({"attributes": [{"key": "k", "value": value}]}).attributes[0].value
    return found


def point(fields: dict[str, Any]) -> NumberDataPoint:
    metrics = [{"name": "m", "gauge": {"dataPoints": [fields]}}]
    document = {"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]}
    found: NumberDataPoint = (
        convert(OtlpSignal.METRICS, document)
        .resource_metrics[0]
        .scope_metrics[0]
        .metrics[0]
        .gauge.data_points[0]
    )
    return found


def refusal(document: Any, signal: OtlpSignal = OtlpSignal.TRACES) -> str:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    with pytest.raises(Rejected) as refused:
        to_protobuf(signal, body)
    assert refused.value.reason == "malformed"
    return refused.value.description


def is_refused_with_its_path(value: dict[str, Any]) -> bool:
    wrong = {"attributes": [{"key": "good"}, {"key": "bad", "value": value}]}
    told = refusal({"resourceSpans": [{"scopeSpans": [{"spans": [{}, wrong]}]}]})
    path = "$.resourceSpans[0].scopeSpans[0].spans[1].attributes[1].value."
    return told.startswith(path + list(value)[-1])


# oracles


@given(st.randoms(use_true_random=False))
def test_random_requests_survive_the_way_through_json(rnd: random.Random) -> None:
    for signal, make in (
        (OtlpSignal.TRACES, otlp.trace_request),
        (OtlpSignal.METRICS, otlp.metrics_request),
        (OtlpSignal.LOGS, otlp.logs_request),
    ):
        message = make(rnd)
        assert same(convert(signal, document_of(message)), message)


@pytest.mark.parametrize(
    "value",
    [
        {"stringValue": ""},
        {"boolValue": False},
        {"intValue": "0"},
        {"intValue": -1},
        {"intValue": 1e2},
        {"intValue": "-9223372036854775808"},
        {"doubleValue": 0},
        {"doubleValue": "1.5e3"},
        {"doubleValue": "-Infinity"},
        {"doubleValue": "NaN"},
        {"doubleValue": 18446744073709551616},
        {"bytesValue": "//79"},
        {"bytesValue": "__79"},
        {"bytesValue": "YQ"},
        {"bytesValue": ""},
        {"arrayValue": {}},
        {"arrayValue": {"values": [{}, {"stringValue": "x"}]}},
        {"kvlistValue": {"values": [{"key": "a", "value": {"arrayValue": {"values": []}}}]}},
        {"stringValue": None, "intValue": 5},
        {},
    ],
    ids=str,
)
def test_a_value_is_what_protobufs_own_mapping_makes_of_it(value: Any) -> None:
    expected = json_format.ParseDict(value, AnyValue())
    assert same(attribute(value), expected)


@pytest.mark.parametrize(
    "value",
    [
        {"intValue": 1.5},
        {"intValue": "1.5"},
        {"intValue": ""},
        {"intValue": " 1"},
        {"intValue": "0x10"},
        {"intValue": True},
        {"intValue": 9223372036854775808},
        {"intValue": "-9223372036854775809"},
        {"intValue": 10**40},
        {"doubleValue": "nan"},
        {"boolValue": "true"},
        {"boolValue": 1},
        {"stringValue": 1},
        {"bytesValue": 3},
        {"arrayValue": {"values": {}}},
        {"arrayValue": {"values": [None]}},
        {"stringValue": "a", "intValue": 5},
    ],
    ids=str,
)
def test_a_value_that_protobufs_own_mapping_refuses_is_refused_with_its_path(value: Any) -> None:
    with pytest.raises(json_format.ParseError):
        json_format.ParseDict(value, AnyValue())
    assert is_refused_with_its_path(value)


@pytest.mark.parametrize(
    "value",
    [{"doubleValue": "1e999"}, {"doubleValue": True}, {"bytesValue": "?"}, {"arrayValue": []}],
    ids=str,
)
def test_a_value_that_pythons_mapping_lets_pass_and_others_refuse_is_refused(value: Any) -> None:
    assert is_refused_with_its_path(value)


def test_every_field_of_profiles_is_mapped() -> None:
    message = ExportProfilesServiceRequest()
    message.dictionary.string_table.extend(["", "cpu"])
    message.dictionary.link_table.add(trace_id=bytes(range(16)), span_id=bytes(range(8)))
    message.dictionary.stack_table.add(location_indices=[1, 2])
    profile = message.resource_profiles.add().scope_profiles.add().profiles.add()
    profile.profile_id = bytes(range(16))
    profile.original_payload = b"\xff\xfe"
    profile.samples.add(values=[-1, 2**62], timestamps_unix_nano=[2**64 - 1], attribute_indices=[7])
    assert same(convert(OtlpSignal.PROFILES, document_of(message)), message)


# the specification's examples


def test_the_trace_example() -> None:
    request = convert(
        OtlpSignal.TRACES,
        rb"""
{"resourceSpans": [{
  "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "my.service"}}]},
  "scopeSpans": [{
    "scope": {"name": "my.library", "version": "1.0.0",
      "attributes": [{"key": "my.scope.attribute", "value": {"stringValue": "some attribute"}}]},
    "spans": [{
      "traceId": "5B8EFFF798038103D269B633813FC60C", "spanId": "EEE19B7EC3C1B174",
      "parentSpanId": "EEE19B7EC3C1B173", "name": "I'm a server span",
      "startTimeUnixNano": "1544712660000000000", "endTimeUnixNano": "1544712661000000000",
      "kind": 2,
      "attributes": [{"key": "my.span.attr", "value": {"stringValue": "some value"}}]}]}]}]}""",
    )
    found = request.resource_spans[0].scope_spans[0].spans[0]
    assert found.trace_id.hex() == "5b8efff798038103d269b633813fc60c"
    assert found.parent_span_id.hex() == "eee19b7ec3c1b173"
    assert (found.name, found.kind) == ("I'm a server span", Span.SPAN_KIND_SERVER)
    assert found.end_time_unix_nano - found.start_time_unix_nano == 1_000_000_000
    assert request.resource_spans[0].resource.attributes[0].value.string_value == "my.service"


def test_the_metrics_example() -> None:
    metrics = [
        {
            "name": "my.counter",
            "unit": "1",
            "sum": {
                "aggregationTemporality": 1,
                "isMonotonic": True,
                "dataPoints": [{"asDouble": 5, "timeUnixNano": "1544712660300000000"}],
            },
        },
        {
            "name": "my.histogram",
            "histogram": {
                "aggregationTemporality": 1,
                "dataPoints": [
                    {"count": 2, "sum": 2, "bucketCounts": [1, "1"], "explicitBounds": [1]}
                ],
            },
        },
        {
            "name": "my.exponential.histogram",
            "exponentialHistogram": {
                "aggregationTemporality": 1,
                "dataPoints": [
                    {
                        "count": 3,
                        "scale": -4,
                        "zeroCount": 1,
                        "positive": {"offset": -1, "bucketCounts": [0, "2"]},
                        "min": 0,
                        "zeroThreshold": 0,
                    }
                ],
            },
        },
    ]
    request = convert(
        OtlpSignal.METRICS, {"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]}
    )
    counter, histogram, exponential = request.resource_metrics[0].scope_metrics[0].metrics
    assert counter.sum.is_monotonic and counter.sum.data_points[0].as_double == 5.0
    explicit = histogram.histogram.data_points[0]
    assert (list(explicit.bucket_counts), list(explicit.explicit_bounds)) == ([1, 1], [1.0])
    assert not explicit.HasField("min")
    found = exponential.exponential_histogram.data_points[0]
    assert (found.scale, found.positive.offset) == (-4, -1)
    assert found.HasField("min") and not found.HasField("max")


def test_the_logs_example() -> None:
    record = {
        "timeUnixNano": "1544712660300000000",
        "severityNumber": 10,
        "severityText": "Information",
        "traceId": "5B8EFFF798038103D269B633813FC60C",
        "body": {"stringValue": "Example log record"},
        "attributes": [
            {"key": "b", "value": {"boolValue": True}},
            {"key": "i", "value": {"intValue": "10"}},
            {"key": "d", "value": {"doubleValue": 637.704}},
            {
                "key": "m",
                "value": {
                    "kvlistValue": {"values": [{"key": "some", "value": {"stringValue": "v"}}]}
                },
            },
        ],
    }
    request = convert(
        OtlpSignal.LOGS, {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}
    )
    found = request.resource_logs[0].scope_logs[0].log_records[0]
    assert (found.severity_number, found.body.string_value) == (10, "Example log record")
    values = {pair.key: pair.value for pair in found.attributes}
    assert values["b"].bool_value and values["i"].int_value == 10
    assert values["d"].double_value == 637.704
    assert values["m"].kvlist_value.values[0].value.string_value == "v"


# OTLP's deviations


@pytest.mark.parametrize("text", ["5b8efff798038103", "5B8EFFF798038103", "5b8EFFf798038103"])
def test_ids_are_hex_in_any_case(text: str) -> None:
    assert span({"spanId": text}).span_id == bytes.fromhex("5b8efff798038103")


@pytest.mark.parametrize(
    "text", ["AAECAwQFBgc=", "5b8", "5b8efff79803810g", "5b 8e", "\u0661\u0661"]
)
def test_an_id_that_is_not_hex_is_refused(text: str) -> None:
    told = refusal({"resourceSpans": [{"scopeSpans": [{"spans": [{"spanId": text}]}]}]})
    assert told == "$.resourceSpans[0].scopeSpans[0].spans[0].spanId: not hexadecimal"


def test_an_id_of_another_length_costs_only_its_span_the_joins() -> None:
    spans = [{"spanId": "5b8efff798038103"}, {"spanId": "5b8e"}, {"spanId": ""}]
    document = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
    body = to_protobuf(OtlpSignal.TRACES, json.dumps(document).encode())
    columns = ReferenceDecoder().decode(OtlpSignal.TRACES, body)
    assert isinstance(columns, SpanColumns)
    assert columns.n == 3
    assert columns.dropped["invalid_ids"] == 3  # the first has no trace id


def test_enums_are_integers_also_those_that_nobody_knows() -> None:
    assert span({"kind": 3}).kind == Span.SPAN_KIND_CLIENT
    assert span({"kind": 77}).kind == 77
    assert span({"kind": -1}).kind == -1


@pytest.mark.parametrize("kind", ["SPAN_KIND_CLIENT", "3", 1.5, 2**31, True])
def test_enum_names_and_anything_else_are_refused(kind: Any) -> None:
    told = refusal({"resourceSpans": [{"scopeSpans": [{"spans": [{"kind": kind}]}]}]})
    assert told.startswith("$.resourceSpans[0].scopeSpans[0].spans[0].kind: ")


def test_unknown_fields_are_ignored_whatever_they_hold() -> None:
    found = span('{"name": "a", "later": {"x": [1, {"y": null}]}, "": 1e5, "spans": "b"}')
    assert same(found, Span(name="a"))


def test_snake_case_names_are_unknown_fields() -> None:
    assert same(span({"trace_id": "zz", "start_time_unix_nano": 5, "Name": "x"}), Span())


@pytest.mark.parametrize("value", [5, "5", 5.0])
def test_64_bit_integers_are_numbers_or_decimal_strings(value: Any) -> None:
    assert span({"startTimeUnixNano": value}).start_time_unix_nano == 5


def test_the_largest_integers_keep_every_digit() -> None:
    assert span({"startTimeUnixNano": 2**64 - 1}).start_time_unix_nano == 2**64 - 1
    assert span({"startTimeUnixNano": str(2**64 - 1)}).start_time_unix_nano == 2**64 - 1
    assert point({"asInt": str(-(2**63))}).as_int == -(2**63)


@pytest.mark.parametrize("value", [-1, 2**64, "18446744073709551616", "-1", 1e30])
def test_integers_out_of_range_are_refused(value: Any) -> None:
    told = refusal({"resourceSpans": [{"scopeSpans": [{"spans": [{"endTimeUnixNano": value}]}]}]})
    assert told.endswith("endTimeUnixNano: not in 0 .. 18446744073709551615")


def test_not_a_number_and_infinity_are_strings() -> None:
    assert math.isnan(point({"asDouble": "NaN"}).as_double)
    assert point({"asDouble": "Infinity"}).as_double == math.inf
    assert "not JSON" in refusal(
        b'{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"gauge":{"dataPoints":['
        b'{"asDouble":NaN}]}}]}]}]}',
        OtlpSignal.METRICS,
    )


def test_null_is_absent() -> None:
    nulls = {
        "name": None,
        "kind": None,
        "attributes": None,
        "status": None,
        "startTimeUnixNano": None,
    }
    assert same(span({**nulls, "traceId": None}), Span())
    assert not point({"asInt": None}).HasField("as_int")
    assert convert(OtlpSignal.TRACES, {"resourceSpans": None}) == ExportTraceServiceRequest()


def test_a_zero_in_a_oneof_is_a_value() -> None:
    assert point({"asInt": 0}).WhichOneof("value") == "as_int"
    assert point({}).WhichOneof("value") is None


# what is no OTLP, and what must not hurt


def test_an_empty_body_and_an_empty_object_are_empty_requests() -> None:
    for signal in OtlpSignal:
        assert to_protobuf(signal, b"") == b""
        assert to_protobuf(signal, b" {} ") == b""


@pytest.mark.parametrize("body", [b"[]", b"1", b'"x"', b"null", b"true"])
def test_a_request_that_is_no_object_is_refused(body: bytes) -> None:
    assert refusal(body).startswith("$: Expected `object`")


@pytest.mark.parametrize(
    "body", [b"{", b'{"a":}', b"{} {}", b"{'a': 1}", b'{"a": 01}', b"\xff", b"\x1f\x8b\x08", b"nul"]
)
def test_broken_json_is_refused(body: bytes) -> None:
    assert refusal(body).startswith("not JSON: ")


def test_one_string_that_is_not_utf8_does_not_lose_the_batch() -> None:
    found = convert(
        OtlpSignal.TRACES,
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"a\xffb"},{"name":"\xc3\xbc"}]}]}]}',
    )
    names = [each.name for each in found.resource_spans[0].scope_spans[0].spans]
    assert names == ["a\ufffdb", "\u00fc"]


@pytest.mark.parametrize(
    ("escaped", "name"),
    [
        (r"a\ud800", "a\ufffd"),
        (r"\udc00b\ud83d", "\ufffdb\ufffd"),
        (r"\ud800\ud83d\ude00", "\ufffd\U0001f600"),
        (r"\\ud800\ud800", "\\ud800\ufffd"),
    ],
)
def test_half_a_surrogate_pair_is_replaced(escaped: str, name: str) -> None:
    assert span('{"name": "' + escaped + '"}').name == name


def test_deep_values_reach_the_decoder_which_stops_and_counts() -> None:
    value: Any = {"stringValue": "deep"}
    for _ in range(30):
        value = {"arrayValue": {"values": [value]}}
    attributes = [{"key": "deep", "value": value}, {"key": "k", "value": {"intValue": 1}}]
    assert len(span({"attributes": attributes}).attributes) == 2


@pytest.mark.parametrize("depth", [100, 5_000, 200_000])
def test_absurd_depth_is_cut_or_refused_and_never_crashes(depth: int) -> None:
    open_, close = '{"arrayValue":{"values":[', "]}}"
    value = open_ * depth + "{}" + close * depth
    body = '{"resourceSpans":[{"resource":{"attributes":[{"key":"k","value":' + value + "}]}}]}"
    try:
        kept = convert(OtlpSignal.TRACES, body.encode())
        assert kept.resource_spans[0].resource.attributes[0].key == "k"
    except Rejected as refused:
        assert "nested too deep" in refused.description


def test_more_elements_than_fit_in_memory_are_refused_before_parsing() -> None:
    body = b'{"resourceSpans":[' + b"{}," * (MAX_ELEMENTS + 1) + b"{}]}"
    with pytest.raises(Rejected) as refused:
        to_protobuf(OtlpSignal.TRACES, body)
    assert refused.value.reason == "too_many_items"


def test_a_refusal_never_repeats_what_was_sent() -> None:
    told = refusal({"resourceSpans": [{"schemaUrl": {"secret": 1}}]})
    assert told == "$.resourceSpans[0].schemaUrl: Expected `str`, got `object`"
