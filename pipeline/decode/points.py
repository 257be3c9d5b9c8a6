"""ExportMetricsServiceRequest -> `PointColumns`.

A series key is uint64[2], the low and the high half of XXH3-128 digests, added modulo 2 ** 64:

    series = metric + RESOURCE * resource + SCOPE * scope + POINT * point
    metric = XXH3-128(text(name) text(unit) kind temporality monotonic text(scope name) text(scope
             version)); text(s) = u32 LE length, bytes as sent; the rest a byte each
    others = sum over attributes of XXH3-128(pair), as in `decode.values`; the first of equal keys
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, Final

import numpy as np

from pipeline.decode import pruned
from pipeline.decode.attributes import AttributeCache, AttributeRows, with_codes
from pipeline.decode.envelope import Envelope, lay_flat, parse, raw_attributes, times
from pipeline.decode.histograms import Bounds, histogram_table
from pipeline.decode.metrics import MetricCache
from pipeline.decode.strings import Strings, count
from pipeline.keys import POINT_KEYS
from pipeline.model import (
    NO_RECORDED_VALUE,
    Bools,
    Bytes,
    Floats,
    HistogramTable,
    Int32s,
    Int64s,
    MetricTable,
    OtlpSignal,
    PointColumns,
    PointKind,
    Temporality,
    UInt32s,
    UInt64s,
)

RESOURCE: Final = np.uint64(0x9E3779B97F4A7C15)
SCOPE: Final = np.uint64(0xC2B2AE3D27D4EB4F)
POINT: Final = np.uint64(0x165667B19E3779F9)
"""Odd, so that no information is lost; different, so that an attribute's place matters."""

_KINDS: Final = {
    "gauge": PointKind.GAUGE,
    "sum": PointKind.SUM,
    "histogram": PointKind.HISTOGRAM,
    "exponential_histogram": PointKind.EXPONENTIAL_HISTOGRAM,
    "summary": PointKind.SUMMARY,
}
_TEMPORALITIES: Final = (Temporality.DELTA, Temporality.CUMULATIVE)


@dataclass(frozen=True, slots=True, eq=False)
class _Walked:
    """The m metrics and n points of a request, in wire order."""

    metric_ids: list[int]
    metric_scope: list[int]
    points: list[Any]
    metric: Int32s
    """int32[n]: the metric of a point."""

    def only(self, kept: Bools) -> "_Walked":
        points = list(compress(self.points, kept.tolist()))
        return replace(self, points=points, metric=self.metric[kept])


@dataclass(frozen=True, slots=True, eq=False)
class _Measured:
    """What n points say, and which of them are to be rejected (reason -> bool[n])."""

    start_ns: Int64s
    time_ns: Int64s
    flags: UInt32s
    value: Floats
    count: Floats
    histogram: Int32s
    histograms: HistogramTable
    unsound: Mapping[str, Bools]
    noted: dict[str, int]


class PointDecoder:
    """Decodes metrics requests; owns what is remembered of points, shares the rest."""

    def __init__(self, strings: Strings, resources: AttributeCache) -> None:
        """`resources` must be a hashed cache: its lanes enter the series key."""
        self._strings = strings
        self._resources = resources
        self._attributes = AttributeCache(POINT_KEYS, strings, hashed=True)
        self._metrics = MetricCache(strings)
        self._bounds = Bounds()

    def __len__(self) -> int:
        """How many attributes of points are remembered."""
        return len(self._attributes)

    def trim(self) -> None:
        """Empty the caches that are full; call between batches."""
        self._attributes.trim()
        self._metrics.trim()
        self._bounds.trim()

    def decode(self, body: bytes) -> PointColumns:
        """One request's points; `Rejected` when the framing is broken."""
        dropped: dict[str, int] = {}
        request = parse(pruned.MetricsRequest, OtlpSignal.METRICS, body)
        envelope = lay_flat(request.resource_metrics, "scope_metrics", "metrics")
        walked = self._walk(envelope, dropped)
        metrics, lanes = self._metrics.table(np.array(walked.metric_ids, np.int32), dropped)
        measured = self._measure(walked, metrics)
        kept = np.ones(len(walked.points), np.bool_)
        for reason, unsound in measured.unsound.items():
            count(dropped, reason, int((kept & unsound).sum()))
            kept &= ~unsound
        rejected = len(kept) - int(kept.sum())
        if rejected:
            walked = walked.only(kept)
            measured = self._measure(walked, metrics)
        for reason, n in measured.noted.items():
            count(dropped, reason, n)
        return self._assemble(envelope, walked, metrics, lanes, measured, dropped, rejected)

    def _walk(self, envelope: Envelope, dropped: dict[str, int]) -> _Walked:
        scopes = [(scope.name, scope.version) for scope in envelope.scopes]
        metric_ids: list[int] = []
        metric_scope: list[int] = []
        points: list[Any] = []
        counts: list[int] = []
        identities = self._metrics.ids
        for scope, metric in zip(envelope.scope.tolist(), envelope.items, strict=True):
            field = metric.WhichOneof("data")
            if field is None:
                count(dropped, "unknown_metric_type", 1)
                continue
            data = getattr(metric, field)
            found = data.data_points
            points.extend(found)
            counts.append(len(found))
            identity = (
                metric.name,
                metric.unit,
                metric.description,
                *_type(_KINDS[field], data),
                *scopes[scope],
            )
            metric_ids.append(identities[identity])
            metric_scope.append(scope)
        rows = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        return _Walked(metric_ids, metric_scope, points, rows)

    def _measure(self, walked: _Walked, metrics: MetricTable) -> _Measured:
        points = walked.points
        kind = metrics.kind[walked.metric]
        noted: dict[str, int] = {}
        time_ns = times([point.time_unix_nano for point in points], noted)
        flags = np.array([point.flags for point in points], np.uint32)
        ended = (flags & NO_RECORDED_VALUE) != 0
        value, has_value = _numbers(points, kind)
        histogram, histograms, sound = _histograms(points, kind, ended, self._bounds, noted)
        counts = np.full(len(points), np.nan)
        counted = np.flatnonzero(kind >= PointKind.HISTOGRAM)
        counts[counted] = [points[i].count for i in counted.tolist()]
        value[ended] = np.nan
        counts[ended] = np.nan
        needs_temporality = (kind != PointKind.GAUGE) & (kind != PointKind.SUMMARY)
        return _Measured(
            start_ns=times([point.start_time_unix_nano for point in points], noted),
            time_ns=time_ns,
            flags=flags,
            value=value,
            count=counts,
            histogram=histogram,
            histograms=histograms,
            unsound={
                "no_time": time_ns == 0,
                "unspecified_temporality": needs_temporality
                & (metrics.temporality[walked.metric] == Temporality.UNSPECIFIED),
                "bad_histogram": ~sound,
                "no_value": ~has_value & ~ended,
            },
            noted=noted,
        )

    def _assemble(
        self,
        envelope: Envelope,
        walked: _Walked,
        metrics: MetricTable,
        metric_lanes: UInt64s,
        measured: _Measured,
        dropped: dict[str, int],
        rejected: int,
    ) -> PointColumns:
        raw, counts = raw_attributes(walked.points)
        rows = self._attributes.rows(raw, counts)
        resource_rows = self._resources.rows(envelope.resource_raw, envelope.resource_counts)
        series = self._series(envelope, walked, metric_lanes, resource_rows)
        series += POINT * self._attributes.lanes(rows)
        scope_ids = self._strings.ids([scope.name for scope in envelope.scopes], dropped)
        metric_scope = np.array(walked.metric_scope, np.int32)
        scope = metric_scope[walked.metric]
        strings, codes, resources, attributes = with_codes(
            self._strings,
            [metrics.name, metrics.unit, metrics.description, scope_ids],
            self._resources.columns(resource_rows, dropped),
            self._attributes.columns(rows, dropped),
        )
        return PointColumns(
            n=len(walked.points),
            strings=strings,
            resources=resources,
            attributes=attributes,
            metrics=replace(metrics, name=codes[0], unit=codes[1], description=codes[2]),
            histograms=measured.histograms,
            resource=envelope.scope_resource[scope],
            scope=codes[3][scope],
            metric=walked.metric,
            series=series,
            start_ns=measured.start_ns,
            time_ns=measured.time_ns,
            value=measured.value,
            count=measured.count,
            flags=measured.flags,
            histogram=measured.histogram,
            dropped=dropped,
            rejected=rejected,
        )

    def _series(
        self, envelope: Envelope, walked: _Walked, metric_lanes: UInt64s, resources: AttributeRows
    ) -> UInt64s:
        """uint64[n, 2]: the series key without the points' own attributes."""
        raw, counts = raw_attributes(envelope.scopes)
        scope_lanes = SCOPE * self._resources.lanes(self._resources.rows(raw, counts))
        scope_lanes += (RESOURCE * self._resources.lanes(resources))[envelope.scope_resource]
        lanes = metric_lanes + scope_lanes[np.array(walked.metric_scope, np.int32)]
        return lanes[walked.metric]


def _type(kind: PointKind, data: Any) -> tuple[int, int, bool]:
    """Kind, temporality and monotonicity; a summary is cumulative, a gauge has no temporality."""
    if kind is PointKind.GAUGE:
        return kind, Temporality.UNSPECIFIED, False
    if kind is PointKind.SUMMARY:
        return kind, Temporality.CUMULATIVE, False
    sent = data.aggregation_temporality
    temporality = sent if sent in _TEMPORALITIES else Temporality.UNSPECIFIED
    return kind, temporality, kind is PointKind.SUM and data.is_monotonic


def _numbers(points: Sequence[Any], kind: Bytes) -> tuple[Floats, Bools]:
    """float64[n] of numbers and summaries' sums (NaN elsewhere), and which points have a value."""
    value = np.full(len(points), np.nan)
    has_value = np.ones(len(points), np.bool_)
    summaries = np.flatnonzero(kind == PointKind.SUMMARY)
    value[summaries] = [points[i].sum for i in summaries.tolist()]
    numbers = np.flatnonzero(kind <= PointKind.SUM)
    value[numbers] = [points[i].as_double for i in numbers.tolist()]
    for i in numbers[np.isnan(value[numbers])].tolist():  # an int, a NaN as sent, or nothing
        member = points[i].WhichOneof("value")
        if member == "as_int":
            value[i] = points[i].as_int
        has_value[i] = member is not None
    return value, has_value


def _histograms(
    points: Sequence[Any], kind: Bytes, ended: Bools, bounds: Bounds, noted: dict[str, int]
) -> tuple[Int32s, HistogramTable, Bools]:
    """The row of each point in the table of histograms (-1 = none), and which points are sound."""
    is_histogram = (kind == PointKind.HISTOGRAM) | (kind == PointKind.EXPONENTIAL_HISTOGRAM)
    rows = np.flatnonzero(is_histogram & ~ended)
    exponential = kind[rows] == PointKind.EXPONENTIAL_HISTOGRAM
    found = [points[i] for i in rows.tolist()]
    table, ok = histogram_table(found, exponential.tolist(), bounds, noted)
    histogram = np.full(len(points), -1, np.int32)
    histogram[rows] = np.arange(len(rows))
    sound = np.ones(len(points), np.bool_)
    sound[rows] = ok
    return histogram, table, sound
