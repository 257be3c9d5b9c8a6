"""The spans as they arrive over the wire from the real SDK."""

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from pipeline.clock import NS_PER_S
from pipeline.demo.spans import SpanSender
from pipeline.demo.traffic import Attempt, Job
from pipeline.keys import RESOURCE_KEYS, SPAN_KEYS

JOB = Job("ba be", "blue", stream=True)
STARTED_NS = 1_700_000_000 * NS_PER_S
ANSWERED = Attempt("127.0.0.1:8000", JOB, 0, STARTED_NS, 0.25, 0.05, 200, "", 146, 48)
REFUSED = Attempt("127.0.0.1:8001", JOB, 1, STARTED_NS, 0.001, error="ConnectionRefusedError")


@pytest.fixture
def received() -> Iterator[tuple[str, "queue.Queue[ResourceSpans]"]]:
    """An OTLP trace server: its address, and what it is sent."""
    spans: queue.Queue[ResourceSpans] = queue.Queue()

    def export(request: ExportTraceServiceRequest, _: object) -> ExportTraceServiceResponse:
        for resource in request.resource_spans:
            spans.put(resource)
        return ExportTraceServiceResponse()

    handler = grpc.unary_unary_rpc_method_handler(
        export,
        request_deserializer=ExportTraceServiceRequest.FromString,
        response_serializer=ExportTraceServiceResponse.SerializeToString,
    )
    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"Export": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", spans
    server.stop(0).wait()


def values(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def sent(
    received: tuple[str, "queue.Queue[ResourceSpans]"], attempt: Attempt
) -> tuple[dict[str, Any], Span]:
    address, spans = received
    with SpanSender(address, "agent-1") as sender:
        sender.send(attempt)
    resource = spans.get(timeout=10)
    return values(resource.resource.attributes), resource.scope_spans[0].spans[0]


def test_an_answered_attempt_is_a_client_span_with_its_tokens_and_first_chunk(
    received: tuple[str, "queue.Queue[ResourceSpans]"],
) -> None:
    resource, span = sent(received, ANSWERED)
    assert resource["service.name"] == "tailrace-demo-client"
    assert resource["tailrace.agent_id"] == "agent-1"
    assert span.kind == Span.SPAN_KIND_CLIENT
    assert span.name == "text_completion tailrace-tiny"
    assert span.start_time_unix_nano == STARTED_NS
    assert span.end_time_unix_nano - span.start_time_unix_nano == NS_PER_S // 4
    assert values(span.attributes) == {
        "http.request.method": "POST",
        "url.path": "/v1/completions",
        "http.response.status_code": 200,
        "server.address": "127.0.0.1",
        "server.port": 8000,
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": "tailrace-tiny",
        "gen_ai.request.max_tokens": 48,
        "gen_ai.request.stream": True,
        "gen_ai.usage.input_tokens": 146,
        "gen_ai.usage.output_tokens": 48,
        "gen_ai.response.time_to_first_chunk": 0.05,
        "tailrace.tenant": "blue",
        "tailrace.agent_id": "agent-1",
    }


def test_a_refused_attempt_is_an_error_without_status_and_tokens(
    received: tuple[str, "queue.Queue[ResourceSpans]"],
) -> None:
    _, span = sent(received, REFUSED)
    attributes = values(span.attributes)
    assert span.status.code == 2
    assert attributes["error.type"] == "ConnectionRefusedError"
    assert attributes["http.request.resend_count"] == 1
    assert attributes.keys().isdisjoint(
        {"http.response.status_code", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"}
    )


def test_every_attribute_is_one_that_the_service_reads(
    received: tuple[str, "queue.Queue[ResourceSpans]"],
) -> None:
    resource, span = sent(received, ANSWERED)
    known = {key.name for key in (*SPAN_KEYS, *RESOURCE_KEYS)}
    sdk_only = {"telemetry.sdk.language", "telemetry.sdk.version"}
    assert (resource.keys() | values(span.attributes).keys()) - sdk_only <= known
