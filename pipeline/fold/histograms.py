"""Histogram buckets per series: windows of increases, merged where bounds match, and quantiles.

Histograms of equal bounds live in one family, a matrix with a row per series. Exponential ones are
re-bucketed into a fixed logarithmic family (four buckets an octave, 19 % wide), so that a change of
scale is not a reset. Source of the quantile: linear interpolation inside the bucket, as Prometheus
does it.
"""

from typing import Final, NamedTuple

import numpy as np

from pipeline.fold.table import Rows
from pipeline.model import Bools, Floats, HistogramTable, Int32s, Int64s

PER_OCTAVE: Final = 4
LOWEST: Final = -20 * PER_OCTAVE  # 2^-20 s: a microsecond
HIGHEST: Final = 23 * PER_OCTAVE  # 2^23: 8 million tokens, 97 days
LOG_BOUNDS: Final[Floats] = np.exp2(np.arange(LOWEST, HIGHEST + 1) / PER_OCTAVE)
LOG_FAMILY: Final = 0
MAX_BUCKETS: Final = 512
MAX_FAMILIES: Final = 256
"""Distinct lists of bounds; a fleet of every engine and version shows about thirty."""


class Family:
    """The buckets of all series that share `bounds`; rows are handed out by `take`."""

    def __init__(self, bounds: Floats) -> None:
        """`bounds` float64[b], rising: b + 1 buckets."""
        self.bounds = bounds
        self.last: Floats = np.zeros((0, len(bounds) + 1))
        self.window: Floats = np.zeros((0, len(bounds) + 1))
        self._next = 0
        self._free: list[int] = []

    def take(self, k: int) -> Int32s:
        """int32[k] rows, zeroed."""
        reused = [self._free.pop() for _ in range(min(k, len(self._free)))]
        fresh = range(self._next, self._next + k - len(reused))
        self._next = fresh.stop
        if self._next > len(self.last):
            length = max(self._next, 2 * len(self.last), 64)
            more = np.zeros((length - len(self.last), len(self.bounds) + 1))
            self.last = np.concatenate([self.last, more])
            self.window = np.concatenate([self.window, more])
        rows = np.array([*reused, *fresh], np.int32)
        self.last[rows] = 0.0
        self.window[rows] = 0.0
        return rows

    def give(self, rows: Int32s) -> None:
        """Rows that are no longer used."""
        self._free += rows.tolist()


class Group(NamedTuple):
    """Histogram points of one family within a batch."""

    family: int
    at: Rows
    """Which of the given points."""
    counts: Floats
    """float64[len(at), width], not cumulative over the bounds."""


class Families:
    """All families, by bounds; a list of bounds beyond the limit is refused."""

    def __init__(self) -> None:
        """Only the logarithmic family exists from the start."""
        self.all: list[Family] = [Family(LOG_BOUNDS)]
        self._by_bounds: dict[bytes, int] = {}

    def groups(self, table: HistogramTable, rows: Rows | Int32s, scale: Floats) -> list[Group]:
        """The buckets of points `rows` of `table`, in their components' unit, family by family.

        Points without buckets, with an unfitting number of them, or of a refused family are in no
        group: their sums and counts are all that is known of them.
        """
        groups: list[Group] = []
        bounds_id, starts = table.bounds_id.take(rows), table.starts.take(rows)
        width = table.starts[1:].take(rows) - starts
        if self._is_one(table, bounds_id, width, scale):
            family = self._family(table.bounds[0] * scale[:1])
            if family >= 0:
                counts = _runs(table.counts, starts, int(width[0]))
                groups.append(Group(family, np.arange(len(rows)), counts))
            return groups
        explicit = np.flatnonzero(bounds_id >= 0)
        factors, parts = _parts(bounds_id.take(explicit), scale.take(explicit))
        several = np.flatnonzero(np.bincount(parts)).tolist()
        for part in several:
            number, k = divmod(part, len(factors))
            bounds = table.bounds[number]
            at = explicit if len(several) == 1 else explicit[parts == part]
            fits = width.take(at) == len(bounds) + 1
            if np.count_nonzero(fits) < len(fits):
                at = at[fits]
            family = self._family(bounds * factors[k])
            if family >= 0 and len(at):
                counts = _runs(table.counts, starts.take(at), len(bounds) + 1)
                groups.append(Group(family, at, counts))
        if len(explicit) < len(rows):
            exponential = np.flatnonzero(bounds_id < 0)
            counts = log_counts(table, rows[exponential], scale[exponential])
            groups.append(Group(LOG_FAMILY, exponential, counts))
        return groups

    def _is_one(
        self, table: HistogramTable, bounds_id: Int32s, width: Int64s, scale: Floats
    ) -> bool:
        """Whether all points have the same bounds, as those of one name do."""
        return (
            len(table.bounds) == 1
            and len(scale) > 0
            and np.minimum.reduce(bounds_id) >= 0
            and not np.count_nonzero(width != len(table.bounds[0]) + 1)
            and not np.count_nonzero(scale != scale[0])
        )

    def _family(self, bounds: Floats) -> int:
        """The family of `bounds`; -1 = none, or no room for another."""
        if not 0 < len(bounds) < MAX_BUCKETS:
            return -1
        key = bounds.tobytes()
        number = self._by_bounds.get(key, -1)
        if number < 0 and len(self.all) < MAX_FAMILIES:
            number = self._by_bounds[key] = len(self.all)
            self.all.append(Family(bounds))
        return number


def _parts(bounds_id: Int32s, scale: Floats) -> tuple[Floats, Int64s]:
    """The distinct scales, and int64[k]: which bounds at which scale each point has."""
    if not len(scale) or np.count_nonzero(scale == scale[0]) == len(scale):
        return scale[:1], bounds_id.astype(np.int64)
    factors, factor = np.unique(scale, return_inverse=True)
    return factors, bounds_id.astype(np.int64) * len(factors) + factor


def _runs(values: Floats, starts: Int64s, width: int) -> Floats:
    """float64[k, width], perhaps a view: the `width` values from each of `starts`, at least one."""
    values = np.ascontiguousarray(values, np.float64)
    if np.count_nonzero(starts[1:] - starts[:-1] == width) == len(starts) - 1:
        return values[starts[0] : starts[0] + len(starts) * width].reshape(-1, width)
    step = values.itemsize
    every = np.ndarray((len(values) - width + 1, width), np.float64, values, 0, (step, step))
    return every[starts]


def log_counts(table: HistogramTable, rows: Rows | Int32s, scale: Floats) -> Floats:
    """float64[k, buckets] of exponential points `rows`, each bucket put where its middle is.

    A bucket (base^i, base^(i + 1)] has its middle, in logarithms, at (i + 1/2) / 2^scale octaves.
    """
    counts = np.zeros((len(rows), len(LOG_BOUNDS) + 1))
    counts[:, 0] = table.zero_count[rows]
    width = table.starts[rows + 1] - table.starts[rows]
    row = np.repeat(np.arange(len(rows)), width)
    within = np.arange(len(row)) - np.repeat(np.cumsum(width) - width, width)
    source = table.starts[rows][row] + within
    octave = (table.offset[rows][row] + within + 0.5) * np.exp2(-table.scale[rows][row])
    octave += np.log2(scale)[row]
    bucket = np.clip(np.ceil(octave * PER_OCTAVE) - LOWEST, 0, len(LOG_BOUNDS)).astype(np.intp)
    np.add.at(counts, (row, bucket), table.counts[source])
    return counts


def quantile(cumulative: Floats, bounds: Floats, q: float) -> tuple[Floats, Bools]:
    """The q-quantile of each row of `cumulative` float64[k, b + 1], and whether it is censored.

    NaN for an empty row. In the overflow bucket the value is the top bound, a lower limit.

    >>> quantile(np.array([[0.0, 10.0, 20.0, 20.0]]), np.array([1.0, 2.0, 4.0]), 0.75)
    (array([3.]), array([False]))
    >>> quantile(np.array([[1.0, 1.0, 1.0, 10.0]]), np.array([1.0, 2.0, 4.0]), 0.5)
    (array([4.]), array([ True]))
    """
    total = cumulative[:, -1]
    wanted = q * total
    bucket = np.add.reduce(cumulative < wanted[:, None], axis=1, dtype=np.intp)
    row = np.arange(len(cumulative))
    before = np.where(bucket > 0, cumulative[row, bucket - 1], 0.0)
    inside = cumulative[row, bucket] - before
    lows = np.concatenate([np.minimum(bounds[:1], 0.0), bounds])
    highs = np.append(bounds, bounds[-1])
    low = lows[bucket]
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(inside > 0.0, (wanted - before) / inside, 0.0)
    value = low + (highs[bucket] - low) * share
    empty = ~(total > 0.0)
    value[empty] = np.nan
    return value, (bucket == len(bounds)) & ~empty
