"""Counters and histograms that go on as they were: the usual batch, in a straight line.

Enters: points of known series, each later than its last and of one series each. Nothing is changed
before all of them were looked at: where one began anew, fell or has other bounds, the whole batch
is left to `Windows.fold`, which comes to the same result where nothing of that happens.
"""

from typing import Final, NamedTuple

import numpy as np

from pipeline.fold.histograms import LOG_FAMILY, Family
from pipeline.fold.increase import weights
from pipeline.fold.table import Round, Rows
from pipeline.fold.windows import HAS_BUCKETS, Windows, read_histograms
from pipeline.model import Bytes, Floats, Int32s, Int64s
from pipeline.signals import COMPONENTS, ComponentKind

KIND: Final = np.array([c.kind for c in COMPONENTS], np.uint8)


class Points(NamedTuple):
    """Points of a batch that are counters or histograms; a column has one entry a point."""

    at: Rows
    """Their positions."""
    kind: Bytes
    ids: Int64s
    elapsed_s: Floats
    interval_s: Floats


class _Buckets(NamedTuple):
    """The buckets of some of them, all of one family."""

    family: Family
    is_exact: bool
    """No bucket fell."""
    place: Rows | None
    """Which of the points; None = all."""
    row: Int32s
    counts: Floats
    last: Floats


def fold(windows: Windows, part: Round, points: Points) -> bool:
    """Take up `points` of `part` if all of them go on as they were; else change nothing."""
    table, samples, ids = windows.table, part.samples, points.ids
    start_ns = samples.start_ns.take(points.at)
    if np.count_nonzero(start_ns != table.start_ns.take(ids)):
        return False
    histograms = (points.kind == ComponentKind.HISTOGRAM).nonzero()[0]
    total, count = samples.value.take(points.at), np.zeros(len(ids))
    if len(histograms):
        read_histograms(part, points.at, histograms, total, count)
    increase, more = total - table.value.take(ids), count - table.count.take(ids)
    if np.count_nonzero(more < 0.0):
        return False
    if len(histograms) < len(ids):
        fell = increase < 0.0
        fell[histograms] = False
        if np.count_nonzero(fell):
            return False
    buckets = _read_buckets(windows, part, points, histograms)
    if buckets is None:
        return False
    fade, weight, elapsed_s = weights(points.elapsed_s, points.interval_s, windows.window_s)
    for one in buckets:
        _add_buckets(one, fade, weight)
    np.maximum(increase, 0.0, out=increase)  # a sum may fall while the count goes on
    windows.add(ids, fade, increase * weight, more * weight, elapsed_s)
    table.value[ids], table.count[ids] = total, count
    return True


def _read_buckets(
    windows: Windows, part: Round, points: Points, histograms: Rows
) -> list[_Buckets] | None:
    """The buckets of the points that have some; None where some fell or have other bounds."""
    table, samples = windows.table, part.samples
    at = points.at.take(histograms)
    row = samples.histogram.take(at)
    kept = HAS_BUCKETS.take(samples.component.take(at))
    kept &= row >= 0
    if np.count_nonzero(kept) < len(kept):
        histograms, at, row = histograms[kept], at[kept], row[kept]
    found: list[_Buckets] = []
    if not len(at):
        return found
    scale = samples.scale.take(at)
    for number, of, counts in windows.families.groups(samples.histograms, row, scale):
        place = None if len(of) == len(points.ids) else histograms.take(of)
        ids = points.ids if place is None else points.ids.take(place)
        if np.count_nonzero(table.family.take(ids) != number):
            return None
        rows, family = table.row.take(ids), windows.families.all[number]
        last = family.last.take(rows, axis=0)
        is_exact = number != LOG_FAMILY  # re-bucketed after a change of scale: the count tells
        if is_exact and np.count_nonzero(counts < last):
            return None
        found.append(_Buckets(family, is_exact, place, rows, counts, last))
    return found


def _add_buckets(buckets: _Buckets, fade: Floats, weight: Floats) -> None:
    family, is_exact, place, row, counts, last = buckets
    if place is not None:
        fade, weight = fade.take(place), weight.take(place)
    increase = np.subtract(counts, last, out=last)
    if not is_exact:
        np.maximum(increase, 0.0, out=increase)
    increase *= weight[:, None]
    window = family.window.take(row, axis=0)
    window *= fade[:, None]
    window += increase
    family.window[row] = window
    family.last[row] = counts
