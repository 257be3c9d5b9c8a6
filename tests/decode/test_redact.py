"""What the journal keeps decodes to the same columns, and holds no prompt."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from pipeline.decode.columns import decode_logs, decode_points, decode_profiles, decode_spans
from pipeline.decode.redact import redact
from pipeline.model import OtlpSignal
from tests.builders import any_value, key_values, span_request
from tests.decode import oracle, otlp

randoms = st.integers(min_value=0, max_value=2**32).map(random.Random)
few = settings(max_examples=60, deadline=None)
SECRET = "tell me how the moon was made"


@few
@given(randoms)
def test_redacted_spans_decode_to_the_same_rows(rnd: random.Random) -> None:
    body = otlp.disordered(otlp.trace_request(rnd), rnd)
    kept = decode_spans(redact(OtlpSignal.TRACES, body))
    assert oracle.span_rows(kept) == oracle.span_rows(decode_spans(body))


@few
@given(randoms)
def test_redacted_points_decode_to_the_same_rows_and_series(rnd: random.Random) -> None:
    body = otlp.disordered(otlp.metrics_request(rnd), rnd)
    kept, whole = decode_points(redact(OtlpSignal.METRICS, body)), decode_points(body)
    assert oracle.point_rows(kept) == oracle.point_rows(whole)
    assert (kept.series == whole.series).all()
    assert kept.rejected == whole.rejected


@few
@given(randoms)
def test_redacted_log_records_decode_to_the_same_rows(rnd: random.Random) -> None:
    body = otlp.disordered(otlp.logs_request(rnd), rnd)
    kept = decode_logs(redact(OtlpSignal.LOGS, body))
    assert oracle.log_rows(kept) == oracle.log_rows(decode_logs(body))


def test_no_prompt_is_kept_wherever_a_sender_puts_it() -> None:
    request = span_request(
        (
            {"service.name": "app", "app.greeting": SECRET},
            [
                {
                    "gen_ai.prompt": SECRET,
                    "gen_ai.input.messages": SECRET,
                    "url.full": f"http://a/v1/completions?prompt={SECRET}",
                    "server.port": 1,
                }
            ],
        )
    )
    group = request.resource_spans[0]
    span = group.scope_spans[0].spans[0]
    group.scope_spans[0].scope.attributes.extend(key_values({"scope.note": SECRET}))
    span.events.add(name=SECRET).attributes.extend(key_values({"content": SECRET}))
    span.links.add().attributes.extend(key_values({"content": SECRET}))
    span.status.message = SECRET
    body = request.SerializeToString()
    assert SECRET.encode() in body
    kept = redact(OtlpSignal.TRACES, body)
    assert SECRET.encode() not in kept
    assert decode_spans(kept).attributes.numbers("server.port").tolist() == [1.0]


def test_no_log_body_is_kept_but_an_access_logs_pairs() -> None:
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    records.add(body=any_value(SECRET)).attributes.extend(key_values({"prompt": SECRET}))
    records.add(body=any_value({"response_code": 200, "body": SECRET}))
    kept = redact(OtlpSignal.LOGS, request.SerializeToString())
    assert SECRET.encode() not in kept
    assert decode_logs(kept).attributes.numbers("response_code")[1] == 200.0


def test_profiles_and_garbage_leave_nothing() -> None:
    assert redact(OtlpSignal.PROFILES, b"\x0a\x00") == b""
    assert redact(OtlpSignal.TRACES, b"\xff\xff") == b""
    assert decode_profiles(b"").n == 0
