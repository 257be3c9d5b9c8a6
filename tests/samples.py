"""Hand-made `SampleRows`, a point at a time, for tests of the endpoint fold."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.model import HistogramTable, SampleRows
from pipeline.signals import COMPONENT_INDEX

NS = 1_000_000_000


class Explicit(NamedTuple):
    """A histogram with explicit bounds; `counts` has one entry more than `bounds`."""

    bounds: Sequence[float]
    counts: Sequence[float]
    sum: float = float("nan")


class Exponential(NamedTuple):
    """An exponential histogram with positive buckets from index `offset`."""

    scale: int
    offset: int
    counts: Sequence[float]
    zero_count: float = 0.0
    sum: float = float("nan")


@dataclass(frozen=True, slots=True)
class Point:
    """One sample; times in seconds of event time."""

    component: str
    value: float = float("nan")
    time_s: float = 1000.0
    start_s: float = 0.0
    slot: int = 0
    series: int = 0
    """Tells series of one component and slot apart."""
    delta: bool = False
    ended: bool = False
    group: int = 0
    shard: int = 0
    count: float = float("nan")
    scale: float = 1.0
    histogram: Explicit | Exponential | None = None
    source: int = 1


def rows(points: Sequence[Point]) -> SampleRows:
    """The points as columns, in order."""
    histograms = [p.histogram for p in points if p.histogram is not None]
    number = iter(range(len(histograms)))
    return SampleRows(
        n=len(points),
        slot=np.array([p.slot for p in points], np.int32),
        component=np.array([COMPONENT_INDEX[p.component] for p in points], np.int32),
        series=np.array([_key(p) for p in points], np.uint64).reshape(-1, 2),
        start_ns=np.array([round(p.start_s * NS) for p in points], np.int64),
        time_ns=np.array([round(p.time_s * NS) for p in points], np.int64),
        value=np.array([p.value for p in points], np.float64),
        delta=np.array([p.delta for p in points], np.bool_),
        ended=np.array([p.ended for p in points], np.bool_),
        group=np.array([p.group for p in points], np.uint64),
        shard=np.array([p.shard for p in points], np.uint64),
        count=np.array([p.count for p in points], np.float64),
        histogram=np.array([-1 if p.histogram is None else next(number) for p in points], np.int32),
        scale=np.array([p.scale for p in points], np.float64),
        histograms=_table(histograms),
        source=np.array([p.source for p in points], np.uint64),
        hint=np.full(len(points), -1, np.int64),
    )


def _key(p: Point) -> tuple[int, int]:
    return COMPONENT_INDEX[p.component] + 1, p.slot << 40 | p.group << 24 | p.shard << 12 | p.series


def _table(histograms: Sequence[Explicit | Exponential]) -> HistogramTable:
    bounds = [h.bounds for h in histograms if isinstance(h, Explicit)]
    number = iter(range(len(bounds)))
    explicit = [isinstance(h, Explicit) for h in histograms]
    exponential = [h if isinstance(h, Exponential) else Exponential(0, 0, ()) for h in histograms]
    counts = [np.array(h.counts, np.float64) for h in histograms]
    zero = np.array([e.zero_count for e in exponential], np.float64)
    return HistogramTable(
        starts=np.cumsum([0, *(len(c) for c in counts)]).astype(np.int64),
        counts=np.concatenate([*counts, np.zeros(0)]),
        bounds=tuple(np.array(b, np.float64) for b in bounds),
        bounds_id=np.array([next(number) if e else -1 for e in explicit], np.int32),
        scale=np.array([e.scale for e in exponential], np.int32),
        offset=np.array([e.offset for e in exponential], np.int32),
        zero_count=zero,
        count=np.array([c.sum() for c in counts]) + zero,
        sum=np.array([h.sum for h in histograms], np.float64),
    )
