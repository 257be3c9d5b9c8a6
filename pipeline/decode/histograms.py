"""Histogram points, explicit and exponential -> a `HistogramTable`; what contradicts itself is out.

Refused before anything is laid out for it: too many buckets, a scale or offset no float64 needs.
Refused after: bounds that do not rise, bucket and bound numbers that do not fit each other, a count
that is not the sum of its buckets (OTLP: "must be equal").
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from pipeline.decode.strings import Learned, count
from pipeline.model import Bools, Floats, HistogramTable, Int32s, Int64s

MAX_BOUNDS: Final = 1023
"""Explicit bounds of a point; real ones have 10 to 40."""

MAX_EXPONENTIAL_BUCKETS: Final = 160
"""The SDKs' default maximum."""

SCALES: Final = range(-10, 21)
"""The scales that SDKs use; base = 2 ** (2 ** -scale)."""

_EXPONENT_REACH: Final = 1100
"""float64 spans 2 ** -1074 to 2 ** 1024: no bucket lies past this many powers of two."""

_EXACT_COUNTS: Final = 2.0**53
_MAX_LAYOUTS: Final = 512
_BAD: Final = -2
_EXPONENTIAL: Final = -1


class Bounds:
    """Distinct explicit bounds: each is checked and laid out once."""

    def __init__(self) -> None:
        """Start with none known."""
        self._reset()

    def _reset(self) -> None:
        self.ids: Learned[tuple[float, ...]] = Learned(self._learn)
        self.arrays: list[Floats] = []

    def trim(self) -> None:
        """Forget all bounds when there are too many; call between batches."""
        if len(self.ids) > _MAX_LAYOUTS:
            self._reset()

    def _learn(self, bounds: tuple[float, ...]) -> int:
        array = np.array(bounds, np.float64)
        rising = bool(np.isfinite(array).all() and (array[1:] > array[:-1]).all())
        found = len(self.arrays) if rising else _BAD
        if rising:
            array.flags.writeable = False
            self.arrays.append(array)
        self.ids[bounds] = found
        return found


class _Rows:
    """Python lists that the walk over points fills, one entry a point (buckets: one a bucket)."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.buckets: list[int] = []
        self.bounds_id: list[int] = []
        self.scale: list[int] = []
        self.offset: list[int] = []
        self.zero_count: list[int] = []
        self.negative: list[int] = []

    def explicit(self, point: Any, bounds: Bounds) -> None:
        found, edges = point.bucket_counts, point.explicit_bounds
        n = len(found)
        fits = n == len(edges) + 1 or (n == 0 and len(edges) == 0)
        if not fits or n > MAX_BOUNDS + 1:
            self._add((), _BAD)
            return
        self._add(found, bounds.ids[tuple(edges)])

    def exponential(self, point: Any) -> None:
        positive, negative = point.positive, point.negative
        scale, offset = point.scale, positive.offset
        found, below = positive.bucket_counts, negative.bucket_counts
        size = len(found)
        if (
            scale not in SCALES
            or max(size, len(below)) > MAX_EXPONENTIAL_BUCKETS
            or max(abs(offset), abs(offset + size)) > _EXPONENT_REACH * 2.0**scale + 1
        ):
            self._add((), _BAD)
            return
        self._add(found, _EXPONENTIAL, scale, offset, point.zero_count, sum(below))

    def _add(
        self,
        buckets: Sequence[int],
        bounds_id: int,
        scale: int = 0,
        offset: int = 0,
        zero_count: int = 0,
        negative: int = 0,
    ) -> None:
        self.sizes.append(len(buckets))
        self.buckets.extend(buckets)
        self.bounds_id.append(bounds_id)
        self.scale.append(scale)
        self.offset.append(offset)
        self.zero_count.append(zero_count)
        self.negative.append(negative)


def empty() -> HistogramTable:
    """The table of no histograms."""
    return histogram_table([], [], Bounds(), {})[0]


def histogram_table(
    points: Sequence[Any], exponential: Sequence[bool], bounds: Bounds, dropped: dict[str, int]
) -> tuple[HistogramTable, Bools]:
    """The table of all `points` and which of them are sound; a bad one has a row, to be ignored.

    Negative buckets of sound points are left out, of the count too, and counted.
    """
    rows = _Rows()
    for point, is_exponential in zip(points, exponential, strict=True):
        if is_exponential:
            rows.exponential(point)
        else:
            rows.explicit(point, bounds)
    starts = np.zeros(len(points) + 1, np.int64)
    np.cumsum(rows.sizes, out=starts[1:])
    counts = np.array(rows.buckets, np.float64)
    total = np.array([point.count for point in points], np.float64)
    negative = np.array(rows.negative, np.float64)
    zero_count = np.array(rows.zero_count, np.float64)
    bounds_id = np.array(rows.bounds_id, np.int32)
    sound = (bounds_id != _BAD) & (total < _EXACT_COUNTS)
    sound &= (_sums(counts, starts) + negative + zero_count == total) | _countless(
        starts, bounds_id
    )
    count(dropped, "negative_buckets", int((negative[sound] > 0).sum()))
    used, compact = _in_order_of_use(bounds_id)
    table = HistogramTable(
        starts=starts,
        counts=counts,
        bounds=tuple(bounds.arrays[i] for i in used),
        bounds_id=compact,
        scale=np.array(rows.scale, np.int32),
        offset=np.array(rows.offset, np.int32),
        zero_count=zero_count,
        count=total - negative,
        sum=np.array([point.sum for point in points], np.float64),
    )
    return table, sound


def _countless(starts: Int64s, bounds_id: Int32s) -> Bools:
    """Explicit points without any bucket: OTLP lets them carry just count and sum."""
    countless: Bools = (np.diff(starts) == 0) & (bounds_id != _EXPONENTIAL)
    return countless


def _sums(counts: Floats, starts: Int64s) -> Floats:
    """float64[h]: the sum of each row; exact below 2 ** 53."""
    result = np.zeros(len(starts) - 1)
    filled = np.flatnonzero(np.diff(starts))
    if len(filled):
        result[filled] = np.add.reduceat(counts, starts[filled])
    return result


def _in_order_of_use(bounds_id: Int32s) -> tuple[list[int], Int32s]:
    """The bounds that occur, by first use, and `bounds_id` renumbered so (negative ones stay)."""
    used = list(dict.fromkeys(i for i in bounds_id.tolist() if i >= 0))
    place = {old: new for new, old in enumerate(used)}
    renumbered = [place.get(i, i) for i in bounds_id.tolist()]
    return used, np.array(renumbered, np.int32)
