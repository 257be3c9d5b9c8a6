"""The reference fleet: what it sends, and how old a decision is."""

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from pipeline.bench import payloads
from pipeline.bench.fleet import decision_ages_ms
from pipeline.bench.fleet_sender import request_spans, trace_body

MS = 1_000_000


def test_a_batch_is_as_old_as_the_first_update_decided_after_it_was_acknowledged() -> None:
    held = [(10 * MS, 1000), (110 * MS, 1100), (210 * MS, 1200)]
    sent = [(5 * MS, 1000), (6 * MS, 1001), (150 * MS, 1200)]
    assert decision_ages_ms(sent, held) == [5.0, 104.0, 60.0]


def test_batches_after_the_last_update_have_no_age() -> None:
    assert decision_ages_ms([(0, 1201)], [(0, 1200)]) == []
    assert decision_ages_ms([], [(0, 1)]) == decision_ages_ms([(0, 1)], []) == []


def test_a_request_is_five_spans_of_which_the_clients_names_the_endpoint() -> None:
    body = payloads.stamped(trace_body(4, [request_spans(3), request_spans(9)]), 10**18, 0.0)
    request = ExportTraceServiceRequest.FromString(body)
    (group,) = request.resource_spans
    (scope,) = group.scope_spans
    clients = [span for span in scope.spans if span.kind == Span.SPAN_KIND_CLIENT]
    assert len(scope.spans) == 10
    assert [span.attributes[0].value.string_value for span in clients] == ["10.0.0.3", "10.0.0.9"]
    assert all(span.end_time_unix_nano == 10**18 for span in scope.spans)
    called = {span.attributes[0].key for span in scope.spans if span not in clients}
    assert "server.address" not in called
    instance = {pair.key: pair.value.string_value for pair in group.resource.attributes}
    assert instance["service.instance.id"] == "gateway-4"
