"""Real senders over OTLP/HTTP, down to decoded columns."""

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from pipeline.decode.inflate import inflate
from pipeline.decode.otlp_json import to_protobuf
from pipeline.decode.reference import ReferenceDecoder
from pipeline.errors import Overloaded
from pipeline.model import Client, Columns, Export, PointColumns, Receipt, SpanColumns
from pipeline.receive.config import HttpConfig, ReceiveConfig
from pipeline.receive.intake import Intake
from pipeline.receive.otlp_http import OtlpHttpServer
from pipeline.telemetry import Telemetry
from tests.parts import require


class Decoded:
    """A server on a thread of its own; whatever it takes is decoded and kept."""

    def __init__(self) -> None:
        self.columns: list[Columns] = []
        self.overloaded = 0
        """How many requests to refuse before the next one is taken."""
        self.decoder = ReferenceDecoder()
        self.loop = asyncio.new_event_loop()
        config = ReceiveConfig(http=HttpConfig(listen="127.0.0.1:0"))
        telemetry = Telemetry()
        self.server = OtlpHttpServer(config, Intake(config, self.submit, telemetry), telemetry)
        self.address = ""

    async def submit(self, export: Export, _client: Client) -> Receipt:
        if self.overloaded:
            self.overloaded -= 1
            raise Overloaded("bytes_in_flight", 1.0)
        body = inflate(export.body, export.encoding, export.max_bytes)
        if export.is_json:
            body = to_protobuf(export.signal, body)
        columns = self.decoder.decode(export.signal, body)
        self.columns.append(columns)
        return Receipt(columns.rejected if isinstance(columns, PointColumns) else 0)

    def run(self, work: Any) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self.loop)
        return future.result(30)

    def spans(self) -> list[str]:
        """The names of all spans, in order of arrival."""
        return [
            each.strings.text(code)
            for each in self.columns
            if isinstance(each, SpanColumns)
            for code in each.name
        ]


@contextmanager
def decoded() -> Iterator[Decoded]:
    sink = Decoded()
    thread = threading.Thread(target=sink.loop.run_forever)
    thread.start()
    try:
        sink.address = sink.run(sink.server.start())
        yield sink
        sink.run(sink.server.stop(1.0))
    finally:
        sink.loop.call_soon_threadsafe(sink.loop.stop)
        thread.join()
        sink.loop.close()


@pytest.mark.parametrize("compression", list(Compression))
def test_the_python_sdk_exports_and_nothing_is_lost(compression: Compression) -> None:
    """Scenario: one service sends 700 spans and a counter over one connection each."""
    with decoded() as sink:
        url = f"http://{sink.address}"
        resource = Resource.create({"service.name": "sdk"})
        spans = OTLPSpanExporter(endpoint=f"{url}/v1/traces", compression=compression)
        tracing = TracerProvider(resource=resource)
        tracing.add_span_processor(BatchSpanProcessor(spans, max_export_batch_size=200))
        tracer = tracing.get_tracer("test")
        for number in range(700):
            tracer.start_span(f"span {number}").end()
        reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(endpoint=f"{url}/v1/metrics", compression=compression)
        )
        metering = MeterProvider([reader], resource=resource)
        metering.get_meter("test").create_counter("calls").add(5)
        tracing.shutdown()
        metering.shutdown()
        assert sorted(sink.spans()) == sorted(f"span {number}" for number in range(700))
        points = [each for each in sink.columns if isinstance(each, PointColumns)]
        assert 5.0 in {float(value) for each in points for value in each.value}


def test_the_python_sdk_retries_what_was_refused_for_want_of_room() -> None:
    """Guarantees: two refusals later the batch arrives, once."""
    with decoded() as sink:
        sink.overloaded = 2
        tracing = TracerProvider()
        exporter = OTLPSpanExporter(endpoint=f"http://{sink.address}/v1/traces", timeout=30)
        tracing.add_span_processor(BatchSpanProcessor(exporter))
        tracing.get_tracer("test").start_span("patient").end()
        tracing.shutdown()
        assert sink.spans() == ["patient"]
        assert sink.overloaded == 0


def curl(sink: Decoded, path: str, body: str, *more: str) -> tuple[int, Any]:
    """Status and JSON answer of one POST of JSON."""
    found = shutil.which("curl")
    require("curl", found is not None, "apt-get install curl")

    async def run() -> bytes:
        process = await asyncio.create_subprocess_exec(
            str(found),
            *("-sS", "-w", "\n%{http_code}", "-H", "content-type: application/json", *more),
            *("--data-binary", "@-", f"http://{sink.address}{path}"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return (await process.communicate(body.encode()))[0]

    answer, _, status = asyncio.run(run()).decode().rpartition("\n")
    return int(status), json.loads(answer)


SPAN = {"traceId": "5B8EFFF798038103D269B633813FC60C", "spanId": "EEE19B7EC3C1B174", "name": "json"}


def traces(*spans: dict[str, Any]) -> str:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]})


@pytest.mark.parametrize("more", [(), ("-H", "transfer-encoding: chunked"), ("--http2",)])
def test_curl_sends_otlp_json(more: tuple[str, ...]) -> None:
    """Scenario: in one piece, in chunks (3 MB), and offering an upgrade to HTTP/2."""
    with decoded() as sink:
        assert curl(sink, "/v1/traces", traces(*[SPAN] * 30_000), *more) == (200, {})
        assert sink.spans() == ["json"] * 30_000
        columns = sink.columns[0]
        assert isinstance(columns, SpanColumns)
        assert columns.trace_id[0].tobytes().hex() == "5b8efff798038103d269b633813fc60c"
        assert columns.dropped == {}


def test_curl_reads_what_is_wrong_with_its_json() -> None:
    with decoded() as sink:
        status, told = curl(sink, "/v1/traces", traces(SPAN, {**SPAN, "kind": "SERVER"}))
        assert (status, told["code"]) == (400, 3)
        assert told["message"].startswith("$.resourceSpans[0].scopeSpans[0].spans[1].kind: ")
        assert sink.columns == []


def test_curl_reads_how_many_points_were_rejected() -> None:
    points = [{"timeUnixNano": "1700000000000000000", "asInt": 1}, {"asInt": 1}]
    metrics = [{"name": "m", "gauge": {"dataPoints": points}}]
    with decoded() as sink:
        document = json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]})
        answer = curl(sink, "/v1/metrics", document)
        assert answer == (200, {"partialSuccess": {"rejectedDataPoints": "1"}})
