"""Every kind of bad input, sent to a whole service: right answer, counted, and nothing else lost.

Beside each bad item travels a good request to a known endpoint, which must arrive every time.
"""

import gzip
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from pipeline.model import OtlpSignal
from tests.builders import key_values, span_request
from tests.e2e.embedded import Running, running

NS = 1_000_000_000
MEMBER = "10.1.1.1:8000"
CONFIG = f"""
pools:
  - {{name: chat, membership: static, members: [{{address: "{MEMBER}"}}]}}
"""
GOOD: dict[str, Any] = {
    "kind": 3,
    "server.address": "10.1.1.1",
    "server.port": 8000,
    "gen_ai.operation.name": "chat",
    "http.response.status_code": 200,
}


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with running(CONFIG) as found:
        yield found


def now_ns(service: Running) -> int:
    return service.service._clock.now().wall_ns


def spans(service: Running, *rows: dict[str, Any]) -> ExportTraceServiceRequest:
    end_ns = now_ns(service)
    times = {"end_ns": end_ns, "start_ns": end_ns - NS}
    return span_request(({"service.name": "gateway"}, [{**times, **GOOD, **row} for row in rows]))


def invalid_utf8(service: Running) -> bytes:
    body = spans(service, {}, {"http.route": "BAD!"}).SerializeToString()
    return body.replace(b"BAD!", b"\xff\xfe\xfd\xfc")


def deep_kvlist(service: Running) -> bytes:
    """Nested by hand: the official classes refuse to build, or to read, what is sent here."""
    value = AnyValue(string_value="deep").SerializeToString()
    for _ in range(100):
        pair = _field(1, b"k") + _field(2, value)
        value = _field(6, _field(1, pair))
    span = spans(service, {}).resource_spans[0].scope_spans[0].spans[0].SerializeToString()
    deep = span + _field(9, _field(1, b"http.route") + _field(2, value))
    scope = _field(2, _field(2, span) + _field(2, deep))
    return _field(1, scope)


def _field(number: int, payload: bytes) -> bytes:
    size, length = len(payload), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + payload


def duplicate_keys(service: Running) -> bytes:
    request = spans(service, {}, {})
    span = request.resource_spans[0].scope_spans[0].spans[1]
    span.attributes.append(KeyValue(key="server.port", value=AnyValue(int_value=1)))
    return request.SerializeToString()


def unknown_fields(service: Running) -> bytes:
    return spans(service, {}, {}).SerializeToString() + b"\xfa\x3e\x03abc"


TABLE: dict[str, tuple[Callable[[Running], bytes], int, str]] = {
    # what is sent: (body, requests that count, what is counted beside them)
    "invalid UTF-8 in one attribute": (invalid_utf8, 2, "decode/invalid_utf8"),
    "a kvlist nested 100 deep": (deep_kvlist, 2, "decode/bad_attribute"),
    "duplicate attribute keys": (duplicate_keys, 2, ""),
    "unknown fields": (unknown_fields, 2, ""),
    "zero times": (
        lambda s: spans(s, {}, {"start_ns": 0, "end_ns": 0}).SerializeToString(),
        2,  # it was a request, whenever it was
        "normalise/no_time",
    ),
    "a start of zero": (
        lambda s: spans(s, {}, {"start_ns": 0}).SerializeToString(),
        2,
        "normalise/no_time",
    ),
    "an end far in the future": (
        lambda s: spans(s, {}, {"end_ns": now_ns(s) + 3600 * NS}).SerializeToString(),
        1,
        "fold/future",
    ),
    "an end before the start": (
        lambda s: spans(s, {}, {"start_ns": now_ns(s) + NS}).SerializeToString(),
        2,
        "normalise/end_before_start",
    ),
    "an end past 2^63": (
        lambda s: spans(s, {}, {"end_ns": 2**64 - 1, "start_ns": 1}).SerializeToString(),
        1,
        "decode/time_clamped",
    ),
    "an invalid trace id": (
        lambda s: spans(s, {}, {"trace_id": b"short"}).SerializeToString(),
        2,
        "decode/invalid_ids",
    ),
}


def calls(service: Running) -> float:
    """Requests that the fold has taken in."""
    loop = service.service._loop
    return float(loop.request_fold.window(60, service.service._clock.now()).calls.sum())


@pytest.mark.parametrize("what", TABLE)
def test_a_bad_span_costs_only_itself(service: Running, what: str) -> None:
    body, counted, reason = TABLE[what]
    before, dropped = calls(service), service.dropped().get(reason, 0)
    assert service.code(body(service)) == "OK"
    assert calls(service) - before == counted
    if reason:
        assert service.dropped()[reason] == dropped + 1


@pytest.mark.parametrize(
    ("body", "metadata", "code"),
    [
        (b"\xff" * 40, (), "INVALID_ARGUMENT"),  # garbage
        (b"\x0a\x7f\x00", (), "INVALID_ARGUMENT"),  # cut off inside the first message
        (b"\x1f\x8b" + b"\x99" * 60, (("grpc-encoding", "gzip"),), "INVALID_ARGUMENT"),
        (b"", (), "OK"),  # an empty request is a success
    ],
)
def test_a_request_that_is_no_otlp_is_refused_for_good_and_the_next_one_arrives(
    service: Running, body: bytes, metadata: tuple[tuple[str, str], ...], code: str
) -> None:
    del metadata
    refused = service.value("received_requests_total", signal="traces", outcome="rejected")
    assert service.code(body) == code
    after = service.value("received_requests_total", signal="traces", outcome="rejected")
    assert after - refused == (code != "OK")
    before = calls(service)
    assert service.code(spans(service, {}).SerializeToString()) == "OK"
    assert calls(service) - before == 1


def test_a_65_mib_message_is_refused_and_the_next_one_arrives(service: Running) -> None:
    failures = service.value("prehandler_failures_total")
    assert service.code(bytes(65 << 20)) == "RESOURCE_EXHAUSTED"
    assert service.value("prehandler_failures_total") == failures + 1
    before = calls(service)
    assert service.code(spans(service, {}).SerializeToString()) == "OK"
    assert calls(service) - before == 1


def test_a_gzipped_body_is_read_though_nobody_said_so_and_a_cut_one_is_refused(
    service: Running,
) -> None:
    body = gzip.compress(spans(service, {}).SerializeToString())
    before = service.value("received_items_total", signal="traces")
    assert service.code(body) == "OK"
    assert service.value("received_items_total", signal="traces") > before
    assert service.code(body[:-9]) == "INVALID_ARGUMENT"


def gauges(values: list[float], time_ns: int) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    group = request.resource_metrics.add()
    pairs = {"service.name": "vllm", "service.instance.id": MEMBER}
    group.resource.attributes.extend(key_values(pairs))
    metrics = group.scope_metrics.add().metrics
    for value in values:
        metric = metrics.add(name="vllm:num_requests_waiting")
        metric.gauge.data_points.add(as_double=value, time_unix_nano=time_ns)
    return request


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_a_gauge_that_is_no_number_or_negative_is_dropped_and_the_good_one_stays(
    service: Running, value: float
) -> None:
    dropped = sum(service.dropped().values())
    body = gauges([3.0, value], now_ns(service)).SerializeToString()
    assert service.code(body, OtlpSignal.METRICS) == "OK"
    assert sum(service.dropped().values()) == dropped + 1


def test_points_without_time_are_told_to_the_sender_exactly(service: Running) -> None:
    good, bad = gauges([3.0], now_ns(service)), gauges([1.0, 2.0], 0)
    good.MergeFrom(bad)
    answer = service.export(good.SerializeToString(), OtlpSignal.METRICS)
    told = ExportMetricsServiceResponse.FromString(answer).partial_success
    assert told.rejected_data_points == 2
    assert told.error_message


@pytest.mark.parametrize("signal", list(OtlpSignal))
def test_empty_requests_of_every_signal_succeed_with_an_unset_partial_success(
    service: Running, signal: OtlpSignal
) -> None:
    assert service.export(b"", signal) == b""
