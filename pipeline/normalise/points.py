"""The points of a batch that mean something: values checked, laid out as samples.

Enters: decoded `PointColumns`, and what is known of each point's series (`Known`). Leaves:
`Points`, which every step makes shorter, with a count for what it leaves out, and `SampleRows` at
the end.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from pipeline.model import (
    NO_RECORDED_VALUE,
    Bools,
    Floats,
    Int32s,
    Int64s,
    PointColumns,
    SampleRows,
    UInt64s,
)
from pipeline.normalise.shapes import REASONS, Flag, Shapes

Rows: TypeAlias = np.ndarray[tuple[int], np.dtype[np.intp]]
Meanings: TypeAlias = npt.NDArray[np.void]
"""Rows of `MEANING`."""

_MIX: Final = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio
_MIX_2: Final = np.uint64(0xBF58476D1CE4E5B9)  # splitmix64's multiplier
_Column = TypeVar("_Column", bound=npt.NDArray[Any])

MEANING: Final = np.dtype(
    [
        ("first", np.uint64),  # both halves of the key
        ("second", np.uint64),
        ("group", np.uint64),
        ("shard", np.uint64),
        ("scale", np.float64),
        ("agrees", np.int64),  # the state of its reporter that it confirms
        ("flags", np.int32),
        ("component", np.int32),
        ("shape", np.int32),
        ("reporter", np.int32),
    ]
)
"""What is known of one series: 64 bytes, so that a look at it is one at memory."""


class Known(NamedTuple):
    """What is known of the series of each point of a batch."""

    meaning: Meanings
    plan: Int64s
    """A number for the series; -1 = it is not kept."""


class Runs(NamedTuple):
    """Points of one resource that come one after the other; there is at least one."""

    begins: Rows
    lengths: Int64s

    @staticmethod
    def of(resource: Int32s) -> "Runs":
        """The runs of a batch of at least one point."""
        inner = (resource[1:] != resource[:-1]).nonzero()[0]
        borders = np.empty(len(inner) + 2, np.intp)
        borders[0], borders[-1] = 0, len(resource)
        np.add(inner, 1, out=borders[1:-1])
        return Runs(borders[:-1], borders[1:] - borders[:-1])


@dataclass(slots=True)
class Points:
    """The points of a batch that are read; arrays have one entry per such point."""

    at: Rows | None
    """Their positions in the batch; None = it is all of them."""
    meaning: Meanings
    value: Floats
    ended: Bools
    special: int
    """All flags that occur in the batch."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self.value)

    def pick(self, column: _Column) -> _Column:
        """The entries of these points, of a column with one for each point of the batch."""
        return column if self.at is None else column.take(self.at, axis=0)  # type: ignore[return-value]

    def rows(self, at: Rows) -> Rows:
        """The positions in the batch of some of these points."""
        return at if self.at is None else self.at[at]

    def keep(self, mask: Bools) -> None:
        """Only those in `mask` from here on."""
        rows = np.flatnonzero(mask)
        self.at = self.rows(rows)
        for name in ("meaning", "value", "ended"):
            setattr(self, name, getattr(self, name).take(rows))

    def has(self, flag: int) -> Bools:
        """bool[k]: which of them have a flag."""
        has: Bools = np.not_equal(self.meaning["flags"] & flag, 0)
        return has


def select(
    columns: PointColumns, meaning: Meanings, shapes: Shapes, dropped: Counter[str]
) -> Points:
    """The points that are read, with values in their components' units."""
    flags, at = meaning["flags"], None
    special = int(np.bitwise_or.reduce(flags))
    if special & Flag.CLASH:
        dropped["unit_mismatch"] += int(np.count_nonzero(flags & Flag.CLASH))
    value = columns.value
    if special & Flag.UNUSED:
        unused = flags & Flag.UNUSED
        reasons = np.bincount(shapes.reason.take(meaning["shape"]))
        for reason, n in zip(REASONS, reasons.tolist(), strict=False):
            if reason:
                dropped[reason] += n
        at = np.flatnonzero(unused == 0)
        meaning, value = meaning.take(at), value.take(at)
    if special & Flag.INFO:
        value = np.where(meaning["flags"] & Flag.INFO, shapes.value.take(meaning["shape"]), value)
    value = value * meaning["scale"]
    points = Points(at, meaning, value, np.zeros(len(value), np.bool_), special)
    if np.count_nonzero(columns.flags):
        points.ended = np.not_equal(points.pick(columns.flags) & NO_RECORDED_VALUE, 0)
        if special & Flag.INFO:
            # The end of an info series says that its labels changed; the next point has the new.
            over = points.ended & points.has(Flag.INFO)
            dropped["unused_metric"] += int(over.sum())
            points.keep(~over)
    return points


def check_values(points: Points, columns: PointColumns, dropped: Counter[str]) -> None:
    """Leave out what is no number, infinite or negative: none of ours is below 0."""
    good = points.value >= 0.0
    good &= points.value < np.inf
    good |= points.pick(columns.histogram) >= 0
    good |= points.ended
    if np.count_nonzero(good) < len(good):
        bad_label = ~good & points.has(Flag.INFO)
        dropped["bad_label"] += int(bad_label.sum())
        dropped["bad_value"] += int((~good & ~bad_label).sum())
        points.keep(good)
    if points.special & Flag.RATIO:
        over = points.value > 1.0
        over &= points.has(Flag.RATIO)
        n_over = np.count_nonzero(over)
        if n_over:
            dropped["ratio_clamped"] += int(n_over)
            points.value[over] = 1.0


def drop_priorities(points: Points, columns: PointColumns, dropped: Counter[str]) -> None:
    """Series per priority stand beside their total: drop them where the total is there too."""
    if not points.special & Flag.PRIORITY:
        return
    has = points.has(Flag.PRIORITY)
    metric = points.pick(columns.metric)
    has_total = np.zeros(len(columns.metrics.name), np.bool_)
    has_total[metric[~has]] = True
    extra = has & has_total[metric]
    if extra.any():
        dropped["part_of_total"] += int(extra.sum())
        points.keep(~extra)


def samples(
    points: Points,
    columns: PointColumns,
    shapes: Shapes,
    slot: Int32s,
    source: UInt64s,
    plan: Int64s,
) -> SampleRows:
    """The samples of `points`, of endpoints `slot` int32[k] and with the hash of their `source`.

    `plan` has a number for each point of the batch.
    """
    meaning, pick = points.meaning, points.pick
    n = len(points)
    series = pick(columns.series)
    if points.special & Flag.INFO:
        series = _info_series(points, series, source)
    return SampleRows(
        n=n,
        slot=slot,
        component=meaning["component"],
        series=series,
        start_ns=pick(columns.start_ns),
        time_ns=pick(columns.time_ns),
        value=points.value,
        delta=points.has(Flag.DELTA) if points.special & Flag.DELTA else np.zeros(n, np.bool_),
        ended=points.ended,
        group=meaning["group"],
        shard=meaning["shard"],
        count=_counts(points, columns, shapes),
        histogram=pick(columns.histogram),
        scale=meaning["scale"],
        histograms=columns.histograms,
        source=source,
        hint=pick(plan),
    )


def _info_series(points: Points, series: UInt64s, source: UInt64s) -> UInt64s:
    """One series whatever the labels say, so that a new value replaces the old."""
    info = np.flatnonzero(points.has(Flag.INFO))
    meaning = points.meaning[info]
    part = meaning["component"].astype(np.uint64) * _MIX_2
    series = series.copy()
    series[info, 0] = source[info] * _MIX_2
    series[info, 1] = (meaning["group"] ^ (meaning["shard"] * _MIX)) + part
    return series


def _counts(points: Points, columns: PointColumns, shapes: Shapes) -> Floats:
    """What goes along with each value: a summary's count, a code; else NaN."""
    count = np.full(len(points), np.nan)
    if points.special & Flag.CODE:
        count = shapes.code.take(points.meaning["shape"])
    if points.special & Flag.SUMMARY:
        count = np.where(points.has(Flag.SUMMARY), points.pick(columns.count), count)
    return count
