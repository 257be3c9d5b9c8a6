"""Prometheus text pages -> OTLP, as the Collector's prometheus receiver sends them.

Counters become monotonic cumulative sums, histograms per-bucket counts, untyped samples and gauges
gauges; empty labels are dropped, `up` joins the page in the same resource.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


class Sample(NamedTuple):
    """One line of a page."""

    name: str
    labels: Mapping[str, str]
    value: float


class Family(NamedTuple):
    """The samples of one metric, with what the page says about it."""

    name: str
    kind: str
    description: str
    samples: list[Sample]
    unit: str = ""


def parse(page: str) -> list[Family]:
    """The families of a page, in its order."""
    kinds: dict[str, str] = {}
    descriptions: dict[str, str] = {}
    families: dict[str, Family] = {}
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            kinds[name] = kind
        elif line.startswith("# HELP "):
            _, _, name, descriptions[name] = (*line.split(" ", 3), "")[:4]
        elif found := _SAMPLE.match(line):
            name, labels, value = found.groups()
            pairs = {k: v for k, v in _LABEL.findall(labels or "") if v}
            family = _family_name(name, kinds)
            kind = kinds.get(family, "untyped")
            entry = families.setdefault(
                family, Family(family, kind, descriptions.get(family, ""), [])
            )
            entry.samples.append(Sample(name, pairs, float(value)))
    return list(families.values())


def _family_name(name: str, kinds: Mapping[str, str]) -> str:
    for suffix in ("_bucket", "_sum", "_count"):
        base = name.removesuffix(suffix)
        if base != name and kinds.get(base) in ("histogram", "summary"):
            return base
    return name


def scrape(
    page: str,
    *,
    job: str,
    instance: str,
    time_ns: int,
    start_ns: int = 0,
    up: float | None = 1.0,
    resource: Mapping[str, str] | None = None,
) -> bytes:
    """The export request for one scrape of `page` at `time_ns`; `up=None`: without it."""
    families = parse(page)
    if up is not None:
        families.append(Family("up", "gauge", "", [Sample("up", {}, up)]))
    host, _, port = instance.rpartition(":")
    attributes = {"service.name": job, "service.instance.id": instance, "server.port": port}
    if host not in ("localhost", "::1", "0.0.0.0") and not host.startswith("127."):
        attributes["server.address"] = host
    return request(families, attributes | dict(resource or {}), time_ns, start_ns)


def request(
    families: Iterable[Family], resource: Mapping[str, str], time_ns: int, start_ns: int = 0
) -> bytes:
    """An ExportMetricsServiceRequest of one resource."""
    message = ExportMetricsServiceRequest()
    group = message.resource_metrics.add()
    group.resource.attributes.extend(_pairs(resource))
    metrics = group.scope_metrics.add().metrics
    for family in families:
        metric = metrics.add(name=family.name, description=family.description, unit=family.unit)
        if family.kind == "histogram":
            _add_histograms(metric, family, time_ns, start_ns)
        elif family.kind == "summary":
            _add_summaries(metric, family, time_ns, start_ns)
        else:
            _add_numbers(metric, family, time_ns, start_ns)
    return message.SerializeToString()


def _pairs(labels: Mapping[str, str]) -> list[KeyValue]:
    pairs = []
    for key, value in labels.items():
        pair = KeyValue(key=key)
        pair.value.string_value = value
        pairs.append(pair)
    return pairs


def _add_numbers(metric: Metric, family: Family, time_ns: int, start_ns: int) -> None:
    is_counter = family.kind == "counter"
    points = metric.sum.data_points if is_counter else metric.gauge.data_points
    if is_counter:
        metric.sum.is_monotonic = True
        metric.sum.aggregation_temporality = _CUMULATIVE
    for sample in family.samples:
        point = points.add(time_unix_nano=time_ns, as_double=sample.value)
        point.start_time_unix_nano = start_ns if is_counter else 0
        point.attributes.extend(_pairs(sample.labels))


def _by_labels(family: Family) -> dict[tuple[tuple[str, str], ...], list[Sample]]:
    groups: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in family.samples:
        labels = {k: v for k, v in sample.labels.items() if k not in ("le", "quantile")}
        groups.setdefault(tuple(sorted(labels.items())), []).append(sample)
    return groups


def _add_histograms(metric: Metric, family: Family, time_ns: int, start_ns: int) -> None:
    metric.histogram.aggregation_temporality = _CUMULATIVE
    for labels, samples in _by_labels(family).items():
        point = metric.histogram.data_points.add(time_unix_nano=time_ns)
        point.start_time_unix_nano = start_ns
        point.attributes.extend(_pairs(dict(labels)))
        cumulative = {float(s.labels["le"]): s.value for s in samples if "le" in s.labels}
        before = 0.0
        for bound in sorted(cumulative):
            point.bucket_counts.append(int(cumulative[bound] - before))
            before = cumulative[bound]
            if bound != float("inf"):
                point.explicit_bounds.append(bound)
        for sample in samples:
            if sample.name.endswith("_sum"):
                point.sum = sample.value
            if sample.name.endswith("_count"):
                point.count = int(sample.value)


def _add_summaries(metric: Metric, family: Family, time_ns: int, start_ns: int) -> None:
    for labels, samples in _by_labels(family).items():
        point = metric.summary.data_points.add(time_unix_nano=time_ns)
        point.start_time_unix_nano = start_ns
        point.attributes.extend(_pairs(dict(labels)))
        for sample in samples:
            if sample.name.endswith("_sum"):
                point.sum = sample.value
            if sample.name.endswith("_count"):
                point.count = int(sample.value)
