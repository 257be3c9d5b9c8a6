"""The demo's own scraper: pages as Prometheus reads them, OTLP as the Collector sends it."""

import asyncio
import math
from collections.abc import Iterator

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ResourceMetrics
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pipeline.demo.scrape import EXPORT, Sample, Scraper, Target, parse

PAGE = """\
# HELP llamacpp:tokens_predicted_total Number of generation tokens processed
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 243
# HELP llamacpp:n_tokens_max Largest observed sequence length
# TYPE llamacpp:n_tokens_max counter
llamacpp:n_tokens_max 211
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2.5
"""
ADDRESS = "127.0.0.1:8000"


@pytest.fixture
def page() -> str:
    """What the real Prometheus library writes, with everything that needs an escape."""
    registry = CollectorRegistry()
    counter = Counter("asked", "of them", ["who", "why"], registry=registry)
    counter.labels('quote " here', "back \\ slash, comma").inc(3)
    counter.labels("line\nend", "brace }").inc(0.5)
    Gauge("deep", "a level", registry=registry).set(-math.inf)
    Gauge("unset", "a label without a value", ["gone"], registry=registry).labels("").set(1e-9)
    Histogram("took_seconds", "left out", registry=registry).observe(1)
    Summary("size_bytes", "left out", registry=registry).observe(1)
    return generate_latest(registry).decode()


def metrics_of(resource: ResourceMetrics) -> dict[str, Metric]:
    return {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}


def attributes_of(resource: ResourceMetrics) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in resource.resource.attributes}


def test_a_page_reads_as_the_prometheus_library_reads_it(page: str) -> None:
    ours = {
        (sample.name, sample.labels, sample.value)
        for family in parse(page)
        for sample in family.samples
    }
    theirs = {
        (sample.name, tuple((k, v) for k, v in sample.labels.items() if v), sample.value)
        for family in text_string_to_metric_families(page)
        if family.type in ("counter", "gauge")
        for sample in family.samples
    }
    assert len(ours) >= 5
    assert ours == theirs


def test_an_engines_page_keeps_its_names_types_and_descriptions() -> None:
    families = {family.name: family for family in parse(PAGE)}
    assert families.keys() == {
        "llamacpp:tokens_predicted_total",
        "llamacpp:n_tokens_max",
        "llamacpp:requests_processing",
    }
    predicted = families["llamacpp:tokens_predicted_total"]
    assert (predicted.kind, predicted.description) == (
        "counter",
        "Number of generation tokens processed",
    )
    assert families["llamacpp:n_tokens_max"].kind == "counter"
    assert families["llamacpp:requests_processing"].kind == "gauge"


def test_a_sample_without_a_type_is_a_gauge() -> None:
    (family,) = parse("orphan 3")
    assert (family.kind, family.samples) == ("gauge", (Sample("orphan", (), 3.0),))


@pytest.mark.parametrize("line", ["", "   ", "no_value", "x NotANumber", '{a="b"} 1', "# EOF"])
def test_lines_that_are_no_samples_are_left_out(line: str) -> None:
    assert parse(line) == []


def test_counters_leave_as_cumulative_sums_and_gauges_as_gauges_at_the_time_of_the_scrape() -> None:
    metrics = metrics_of(Target(ADDRESS).found(PAGE, 77))
    predicted = metrics["llamacpp:tokens_predicted_total"]
    assert predicted.sum.is_monotonic
    assert predicted.sum.aggregation_temporality == 2
    (point,) = predicted.sum.data_points
    assert (point.as_double, point.time_unix_nano, point.start_time_unix_nano) == (243.0, 77, 0)
    (gauge,) = metrics["llamacpp:requests_processing"].gauge.data_points
    assert gauge.as_double == 2.5
    (up,) = metrics["up"].gauge.data_points
    assert (up.as_double, up.time_unix_nano) == (1.0, 77)


def test_the_resource_names_job_and_instance_but_no_address_as_for_every_loopback_target() -> None:
    assert attributes_of(Target(ADDRESS).found(PAGE, 1)) == {
        "service.name": "llamacpp",
        "service.instance.id": ADDRESS,
        "url.scheme": "http",
    }


def test_a_lost_target_is_down_and_its_series_end_once() -> None:
    target = Target(ADDRESS)
    target.found(PAGE, 1)
    lost = metrics_of(target.lost(2))
    assert lost["up"].gauge.data_points[0].as_double == 0.0
    (ended,) = lost["llamacpp:tokens_predicted_total"].sum.data_points
    assert (ended.flags, ended.time_unix_nano) == (1, 2)
    assert not ended.HasField("as_double")
    assert metrics_of(target.lost(3)).keys() == {"up"}


class Sink:
    """An OTLP metrics server that keeps what it is sent."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[ExportMetricsServiceRequest] = asyncio.Queue()

    async def export(
        self, request: ExportMetricsServiceRequest, _context: object
    ) -> ExportMetricsServiceResponse:
        self.requests.put_nowait(request)
        return ExportMetricsServiceResponse()

    def handlers(self) -> Iterator[grpc.GenericRpcHandler]:
        service, _, method = EXPORT.strip("/").partition("/")
        handler = grpc.unary_unary_rpc_method_handler(
            self.export,
            request_deserializer=ExportMetricsServiceRequest.FromString,
            response_serializer=ExportMetricsServiceResponse.SerializeToString,
        )
        yield grpc.method_handlers_generic_handler(service, {method: handler})


async def answer_page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(PAGE)}\r\n\r\n"
    writer.write((head + PAGE).encode())
    writer.close()
    await writer.wait_closed()


async def test_every_target_is_scraped_and_exported_also_the_one_that_is_gone() -> None:
    sink = Sink()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(tuple(sink.handlers()))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    engine = await asyncio.start_server(answer_page, "127.0.0.1", 0)
    alive = f"127.0.0.1:{engine.sockets[0].getsockname()[1]}"
    gone = "127.0.0.1:1"
    scraper = asyncio.create_task(Scraper([alive, gone], f"127.0.0.1:{port}").run())
    try:
        request = await asyncio.wait_for(sink.requests.get(), 10)
    finally:
        scraper.cancel()
        await asyncio.gather(scraper, return_exceptions=True)
        engine.close()
        await server.stop(0)
    ups = {
        attributes_of(resource)["service.instance.id"]: metrics_of(resource)["up"]
        .gauge.data_points[0]
        .as_double
        for resource in request.resource_metrics
    }
    assert ups == {alive: 1.0, gone: 0.0}
