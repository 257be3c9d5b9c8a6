"""A small scraper for machines without the Collector: engine pages in, OTLP metrics out.

What leaves is what the Collector's prometheus receiver would send for the same pages: counters as
cumulative sums under their own names, gauges, `up`, the target as resource, and for a target that
is gone `up` 0 and an end mark for each of its series. Format: Prometheus exposition text 0.0.4.
"""

import asyncio
import re
import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import grpc.aio
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    DataPointFlags,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
)

from pipeline.demo import http1

JOB: Final = "llamacpp"
EXPORT: Final = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
SCOPE: Final = "tailrace-demo-scraper"
INTERVAL_S: Final = 1.0
# Below the interval, so that a stopped engine delays no other's scrape.
TIMEOUT_S: Final = 0.9

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+\S+)?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


class Sample(NamedTuple):
    """One line of a page; `labels` in the page's order, empty ones left out."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


class Family(NamedTuple):
    """Samples of one name; `kind` is "counter" or "gauge"."""

    name: str
    kind: str
    description: str
    samples: tuple[Sample, ...]


def parse(page: str) -> list[Family]:
    """The counters and gauges of a page, all that llama.cpp has; untyped samples are gauges.

    Families of other types and lines that are no samples are left out.

    >>> parse("# TYPE tokens_total counter" + chr(10) + "tokens_total 12")[0].samples[0].value
    12.0
    """
    kinds: dict[str, str] = {}
    descriptions: dict[str, str] = {}
    samples: dict[str, list[Sample]] = {}
    for line in page.splitlines():
        if line.startswith("#"):
            _, keyword, name, *text = [*line.split(maxsplit=3), "", "", ""]
            if keyword == "TYPE":
                kinds[name] = text[0]
            elif keyword == "HELP":
                descriptions[name] = text[0]
        elif (sample := _sample(line)) is not None:
            samples.setdefault(sample.name, []).append(sample)
    return [
        Family(name, "gauge" if kind == "untyped" else kind, descriptions.get(name, ""), tuple(of))
        for name, of in samples.items()
        if (kind := kinds.get(name, "untyped")) in ("counter", "gauge", "untyped")
        and not _belongs_to_another(name, kinds)
    ]


def _sample(line: str) -> Sample | None:
    match = _SAMPLE.fullmatch(line.strip())
    if match is None:
        return None
    name, labels, value = match.groups()
    try:
        number = float(value)
    except ValueError:
        return None
    pairs = ((key, _unescape(text)) for key, text in _LABEL.findall(labels or ""))
    return Sample(name, tuple((key, text) for key, text in pairs if text), number)


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], text)


def _belongs_to_another(name: str, kinds: dict[str, str]) -> bool:
    """Whether `name` is a part (_bucket, _sum, _count) of a histogram or summary."""
    family, _, part = name.rpartition("_")
    return part in ("bucket", "sum", "count") and kinds.get(family) in ("histogram", "summary")


class Target:
    """One engine, and which series it had at the last scrape."""

    def __init__(self, address: str) -> None:
        """`address` is "ip:port"."""
        self.address = address
        self._last: list[Family] = []

    def found(self, page: str, time_ns: int) -> ResourceMetrics:
        """What is sent after a scrape that answered `page`."""
        self._last = parse(page)
        return _resource_metrics(
            self.address, [*map(_metric, self._last), _up(1.0)], time_ns, ended=()
        )

    def lost(self, time_ns: int) -> ResourceMetrics:
        """What is sent after a scrape that failed: the end of every series, once, and `up` 0."""
        ended, self._last = [_metric(family) for family in self._last], []
        return _resource_metrics(self.address, [_up(0.0)], time_ns, ended=ended)


def _up(value: float) -> Metric:
    return _metric(Family("up", "gauge", "The scraping was successful", (Sample("up", (), value),)))


def _metric(family: Family) -> Metric:
    points = [
        NumberDataPoint(as_double=sample.value, attributes=_attributes(sample.labels))
        for sample in family.samples
    ]
    metric = Metric(name=family.name, description=family.description)
    if family.kind == "counter":
        metric.sum.is_monotonic = True
        metric.sum.aggregation_temporality = (
            AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
        )
        metric.sum.data_points.extend(points)
    else:
        metric.gauge.data_points.extend(points)
    return metric


def _resource_metrics(
    address: str, metrics: Sequence[Metric], time_ns: int, *, ended: Sequence[Metric]
) -> ResourceMetrics:
    for metric in ended:
        for point in _points(metric):
            point.flags = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
            point.ClearField("as_double")
    for metric in (*metrics, *ended):
        for point in _points(metric):
            point.time_unix_nano = time_ns
    resource = ResourceMetrics()
    # As for every target on the loopback, server.address and server.port are not said.
    resource.resource.attributes.extend(
        _attributes(
            (("service.name", JOB), ("service.instance.id", address), ("url.scheme", "http"))
        )
    )
    scope = resource.scope_metrics.add()
    scope.scope.name = SCOPE
    scope.metrics.extend((*metrics, *ended))
    return resource


def _points(metric: Metric) -> Iterable[NumberDataPoint]:
    return metric.sum.data_points if metric.HasField("sum") else metric.gauge.data_points


def _attributes(pairs: Iterable[tuple[str, str]]) -> list[KeyValue]:
    return [KeyValue(key=key, value=AnyValue(string_value=text)) for key, text in pairs]


class Scraper:
    """Scrapes every target once an interval and exports what it finds; see `run`."""

    def __init__(self, addresses: Sequence[str], endpoint: str) -> None:
        """`endpoint` is the OTLP/gRPC address that gets the metrics."""
        self._targets = [Target(address) for address in addresses]
        self._endpoint = endpoint
        self.failed_exports = 0

    async def run(self) -> None:
        """Scrape for ever, on a fixed grid; an export that fails is counted, not repeated."""
        async with grpc.aio.insecure_channel(self._endpoint) as channel:
            export = channel.unary_unary(
                EXPORT,
                request_serializer=ExportMetricsServiceRequest.SerializeToString,
                response_deserializer=ExportMetricsServiceResponse.FromString,
            )
            due_s = time.monotonic()
            while True:
                request = ExportMetricsServiceRequest(
                    resource_metrics=await asyncio.gather(*map(_scrape, self._targets))
                )
                try:
                    await export(request, timeout=INTERVAL_S)
                except grpc.aio.AioRpcError:
                    self.failed_exports += 1
                due_s = max(due_s + INTERVAL_S, time.monotonic())
                await asyncio.sleep(due_s - time.monotonic())


async def _scrape(target: Target) -> ResourceMetrics:
    time_ns = time.time_ns()
    try:
        async with asyncio.timeout(TIMEOUT_S), http1.send(target.address, "/metrics") as answer:
            page = (await answer.read()).decode("utf-8", "replace")
    except OSError:
        return target.lost(time_ns)
    return target.found(page, time_ns)
