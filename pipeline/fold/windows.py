"""Counters and histograms as increases over an exponentially fading window, in the series table.

Enters: the points of a batch whose components are counters or histograms, at most one a series.
Both are one arithmetic: a total that rises, beside a count and buckets that counters lack.
"""

from collections import Counter
from typing import Final, NamedTuple

import numpy as np

from pipeline.fold.histograms import LOG_FAMILY, Families
from pipeline.fold.increase import Change, compare, weights
from pipeline.fold.table import Round, Rows, SeriesTable
from pipeline.model import Bools, Floats, Int32s, Int64s
from pipeline.signals import COMPONENTS, ComponentKind

IS_HISTOGRAM: Final = np.array([c.kind is ComponentKind.HISTOGRAM for c in COMPONENTS])
HAS_BUCKETS: Final = np.array([c.buckets for c in COMPONENTS])


class _Buckets(NamedTuple):
    """The buckets of some points, all of one family."""

    family: int
    at: Rows
    """Which of the points."""
    row: Int32s
    """Of the family's matrices."""
    counts: Floats
    last: Floats


class Windows:
    """The moving part of a series table."""

    def __init__(self, table: SeriesTable, window_s: float) -> None:
        """`window_s` is the shortest time constant."""
        self.table = table
        self.window_s = window_s
        self.families = Families()

    def fold(self, part: Round, at: Rows, dropped: Counter[str]) -> None:
        """Take up the points at positions `at`, all of counters or histograms."""
        table, samples, ids = self.table, part.samples, part.ids[at]
        total, count = samples.value[at], np.zeros(len(at))
        histograms = np.flatnonzero(IS_HISTOGRAM.take(samples.component[at]))
        if len(histograms):
            read_histograms(part, at, histograms, total, count)
        last_total, last_count = table.value.take(ids), table.count.take(ids)
        fell = total < last_total
        fell[histograms] = count[histograms] < last_count[histograms]
        buckets = self._read_buckets(part, at, ids, histograms, fell) if len(histograms) else []
        first = table.fresh.take(ids)
        change = self._compare(part, at, first, fell, dropped)
        increase = total - last_total
        more = count - last_count
        if change.whole is not None:
            increase = np.where(change.whole, total, increase)
            more = np.where(change.whole, count, more)
        self._add(ids, first, change, np.maximum(increase, 0.0), more, buckets)
        is_delta = samples.delta[at]
        if is_delta.any():
            total, count = np.where(is_delta, 0.0, total), np.where(is_delta, 0.0, count)
        table.value[ids], table.count[ids] = total, count

    def leave(self, ids: Int64s) -> None:
        """The series `ids` have no buckets any more."""
        family = self.table.family[ids]
        for number in np.unique(family[family >= 0]).tolist():
            self.families.all[number].give(self.table.row[ids[family == number]])
        self.table.family[ids] = -1

    def _compare(
        self, part: Round, at: Rows, first: Bools, fell: Bools, dropped: Counter[str]
    ) -> Change:
        table, ids, samples = self.table, part.ids[at], part.samples
        change = compare(
            time_ns=samples.time_ns[at],
            start_ns=samples.start_ns[at],
            delta=samples.delta[at],
            first=first,
            fell=fell,
            last_time_ns=table.time_ns.take(ids),
            last_start_ns=table.start_ns.take(ids),
            heard_since_ns=part.first_ns.take(part.source[at]),
        )
        if change.overlaps:
            dropped["overlap"] += change.overlaps
        return change

    def _read_buckets(
        self, part: Round, at: Rows, ids: Int64s, histograms: Rows, fell: Bools
    ) -> list[_Buckets]:
        """Buckets of the points that have some; marks in `fell` where one of them fell."""
        samples = part.samples
        row = samples.histogram[at[histograms]]
        kept = HAS_BUCKETS.take(samples.component[at[histograms]]) & (row >= 0)
        where, scale = histograms[kept], samples.scale[at[histograms[kept]]]
        if not len(where):
            return []
        found = []
        table_rows = row.astype(np.intp)[kept]
        for group in self.families.groups(samples.histograms, table_rows, scale):
            place = where[group.at]
            self._enter(group.family, ids[place])
            rows = self.table.row.take(ids[place])
            last = self.families.all[group.family].last[rows]
            found.append(_Buckets(group.family, place, rows, group.counts, last))
            if group.family != LOG_FAMILY:  # re-bucketed after a change of scale: the count tells
                lower = group.counts < last
                if lower.any():
                    fell[place] |= lower.any(axis=1)
        return found

    def _enter(self, family: int, ids: Int64s) -> None:
        """Move series whose bounds are new or have changed into `family`, as if new."""
        table = self.table
        moving = ids[table.family.take(ids) != family]
        if len(moving):
            self.leave(moving)
            table.family[moving] = family
            table.row[moving] = self.families.all[family].take(len(moving))
            table.fresh[moving] = True

    def _add(
        self,
        ids: Int64s,
        first: Bools,
        change: Change,
        increase: Floats,
        more: Floats,
        buckets: list[_Buckets],
    ) -> None:
        """Let the windows fade over the elapsed time and take up the increases."""
        table = self.table
        fade, weight, elapsed_s = weights(
            change.elapsed_s, table.interval_s.take(ids), self.window_s
        )
        kept = fade
        if change.whole is not None and first.any():
            kept = np.where(first, 0.0, fade)
            for window in (table.increase, table.samples, table.elapsed_s):
                window[ids[first]] = 0.0  # also of what is no number
        from_zero = None if change.whole is None else change.whole | first
        self._add_buckets(buckets, from_zero, kept, weight)
        gain, samples = increase * weight, more * weight
        self.add(ids, fade, gain, samples, elapsed_s)

    def add(
        self, ids: Int64s, fade: Floats, gain: Floats, samples: Floats, elapsed_s: Floats
    ) -> None:
        """Add to what the windows keep of `ids` after `fade`; changes `gain` and `samples`."""
        table = self.table
        missing = np.isnan(gain)
        if np.count_nonzero(missing):  # a sum may be missing; the mean then has no samples
            gain[missing] = samples[missing] = 0.0
        for window, added in (
            (table.increase, gain),
            (table.samples, samples),
            (table.elapsed_s, elapsed_s),
        ):
            faded = window.take(ids)
            faded *= fade
            faded += added
            window[ids] = faded

    def _add_buckets(
        self, buckets: list[_Buckets], from_zero: Bools | None, kept: Floats, weight: Floats
    ) -> None:
        for number, at, row, counts, last in buckets:
            family = self.families.all[number]
            if from_zero is not None:
                last[from_zero[at]] = 0.0
            increase = np.maximum(counts - last, 0.0)
            increase *= weight[at][:, None]
            window = family.window[row]
            window *= kept[at][:, None]
            window += increase
            family.window[row] = window
            family.last[row] = counts


def read_histograms(part: Round, at: Rows, places: Rows, total: Floats, count: Floats) -> None:
    """Put sums and counts of the histograms among the points `at`, at `places`, into columns."""
    samples, table = part.samples, part.samples.histograms
    rows = at.take(places)
    row = samples.histogram.take(rows)
    if np.minimum.reduce(row) < 0:  # a summary: its sum is the value
        has_row = row >= 0
        count[places[~has_row]] = samples.count[rows[~has_row]]
        rows, places, row = rows[has_row], places[has_row], row[has_row]
    total[places] = table.sum.take(row) * samples.scale.take(rows)
    count[places] = table.count.take(row)
