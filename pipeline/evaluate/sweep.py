"""All thresholds at once: the F1 of every one, the best, and the one that keeps a budget.

Enters: series of scores and labels. Leaves: thresholds that are scores themselves, ascending, each
with exact counts. How: a row alarms at the thresholds from the largest score of the rows that would
join it to an earlier alarm up to its own, so counts at all thresholds are sums of intervals.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from pipeline.evaluate.events import GAP_ROWS, Series, runs
from pipeline.model import Floats, Int64s

GRID: Final = np.concatenate([np.arange(2.0, 20.0, 0.5), np.arange(20.0, 200.0, 4.0)])
"""The coarse thresholds that the published naive rows were chosen from."""
OUTSIDE: Final = -1
"""In place of a segment's number."""


class Intervals(NamedTuple):
    """The rows of some series, each with the thresholds at which it alarms."""

    threshold: Floats  # float64[k]: all distinct scores, ascending, -inf first
    start: Int64s  # int64[n]: index of the lowest threshold at which the row alarms ...
    stop: Int64s  # int64[n]: ... and of the first above it at which it does not
    segment: Int64s  # int64[n]: number of its labelled segment, OUTSIDE elsewhere
    offset: Int64s  # int64[n]: rows since the segment's first
    length: Int64s  # int64[s]: rows of each segment


class Choice(NamedTuple):
    """A threshold and its F1."""

    threshold: float
    f1: float


class Sweep(NamedTuple):
    """Counts at each of k thresholds; see `events.Counts`."""

    threshold: Floats  # float64[k], ascending, -inf first
    tp: Int64s
    fp: Int64s
    fn: Int64s

    @property
    def f1(self) -> Floats:
        """float64[k]; 0.0 where there is nothing."""
        total = 2 * self.tp + self.fp + self.fn
        share: Floats = 2 * self.tp / np.maximum(total, 1)
        return share

    def best(self) -> Choice:
        """The middle of the thresholds that count alike and best; of several such the highest.

        An end would be as good here and nowhere else: one side of it is the next false row, the
        other the next miss.
        """
        f1 = self.f1
        high = len(f1) - 1 - int(np.argmax(f1[::-1]))
        worse = np.flatnonzero(f1[:high] < f1[high])
        lower = self.threshold[worse[-1] + 1 if len(worse) else 0]
        upper = self.threshold[min(high + 1, len(f1) - 1)]
        middle = lower / 2 + upper / 2  # the sum may overflow
        is_between = np.isfinite(middle) and lower < middle < upper
        return Choice(float(middle if is_between else self.threshold[high]), float(f1[high]))

    def best_of(self, grid: Floats) -> Choice:
        """The best of the thresholds in `grid`; of equals the first."""
        f1 = self.f1[np.searchsorted(self.threshold, grid, side="right") - 1]
        at = int(np.argmax(f1))
        return Choice(float(grid[at]), float(f1[at]))


def intervals(series: Sequence[Series], gap_rows: int | None) -> Intervals:
    """The rows of `series`, at least one, ready for sweeps with and without a delay."""
    scores = np.concatenate([np.array([-np.inf]), *(each.score for each in series)])
    threshold, rank = np.unique(scores, return_inverse=True)
    stop = rank[1:].astype(np.int64)
    cuts = np.cumsum([len(each.score) for each in series])[:-1]
    numbers = [_numbered(each) for each in series]
    before = np.cumsum([0, *(len(length) for _, _, length in numbers)]).tolist()
    return Intervals(
        threshold=threshold,
        start=np.concatenate([_before(part, gap_rows) for part in np.split(stop, cuts)]),
        stop=stop,
        segment=np.concatenate(
            [
                np.where(segment == OUTSIDE, OUTSIDE, segment + more)
                for (segment, _, _), more in zip(numbers, before, strict=False)
            ]
        ),
        offset=np.concatenate([offset for _, offset, _ in numbers]),
        length=np.concatenate([length for _, _, length in numbers]),
    )


def sweep(rows: Intervals, delay_rows: int | None = None) -> Sweep:
    """Event counts at every threshold, or with `delay_rows` those of prompt events."""
    is_outside = rows.segment == OUTSIDE
    size = len(rows.threshold)
    fp = _covering(rows.start[is_outside], rows.stop[is_outside], size)
    is_inside = ~is_outside
    weight = np.ones(len(rows.length), np.int64)
    if delay_rows is not None:
        is_inside &= rows.offset <= delay_rows
        weight = rows.length
    segment = rows.segment[is_inside]
    segment, start, stop = _disjoint(segment, rows.start[is_inside], rows.stop[is_inside], size)
    tp = _covering(start, stop, size, weight[segment])
    return Sweep(rows.threshold, tp, fp, weight.sum() - tp)


def budget_threshold(
    series: Sequence[Series], per_series_day: float, gap_rows: int = GAP_ROWS
) -> float:
    """The lowest score from which on upwards the series alarm at most so often; labels are unused.

    Fewer alarms at a lower threshold, where neighbours have merged into long ones, are no reason
    to go there.
    """
    rows = intervals(series, gap_rows)
    number = _covering(rows.start, rows.stop, len(rows.threshold))
    allowed = per_series_day * sum(each.days for each in series)
    above = np.flatnonzero(number > allowed + 1e-9)
    lowest = min(1, len(rows.threshold) - 1)  # -inf is no score
    return float(rows.threshold[max(lowest, above[-1] + 1 if len(above) else 0)])


def _numbered(series: Series) -> tuple[Int64s, Int64s, Int64s]:
    """Segment and offset of each row, OUTSIDE and 0 elsewhere, and the length of each segment."""
    first, last = runs(series.label)
    length = last - first + 1
    segment = np.full(len(series.label), OUTSIDE)
    offset = np.zeros(len(series.label), np.int64)
    segment[series.label] = np.repeat(np.arange(len(first)), length)
    offset[series.label] = np.flatnonzero(series.label) - np.repeat(first, length)
    return segment, offset, length


def _before(rank: Int64s, gap_rows: int | None) -> Int64s:
    """Largest rank of the rows that would join a row to an earlier alarm; 0 of none."""
    start = np.zeros(len(rank), np.int64)
    for lag in range(1, 1 if gap_rows is None else gap_rows + 2):
        np.maximum(start[lag:], rank[:-lag], out=start[lag:])
    return start


def _covering(start: Int64s, stop: Int64s, size: int, weight: Int64s | None = None) -> Int64s:
    """Of each index below `size`, the weight of the intervals [start, stop) that hold it.

    >>> _covering(np.array([0, 1, 3]), np.array([2, 4, 1]), 4).tolist()
    [1, 2, 1, 1]
    """
    is_real = stop > start
    parts = None if weight is None else weight[is_real]
    opened = np.bincount(start[is_real], parts, size + 1)
    closed = np.bincount(stop[is_real], parts, size + 1)
    return np.cumsum(opened - closed)[:size].astype(np.int64)


def _disjoint(
    segment: Int64s, start: Int64s, stop: Int64s, size: int
) -> tuple[Int64s, Int64s, Int64s]:
    """Intervals that cover what the given ones do, once a segment: a segment is hit once."""
    is_real = stop > start
    segment, start, stop = segment[is_real], start[is_real], stop[is_real]
    order = np.lexsort((start, segment))
    segment, start, stop = segment[order], start[order], stop[order]
    base = segment * (size + 1)
    reached = np.maximum.accumulate(base + stop)
    start = np.maximum(start, np.append(-1, reached[:-1]) - base)
    return segment, start, stop
