"""Log-bucket sketches: counts in buckets whose width grows with the value.

The mapping is DDSketch's (Masson, Rim, Lee: VLDB 2019): bucket i holds (gamma^(i-1), gamma^i] with
gamma = (1 + a) / (1 - a), so a quantile is off by at most the relative error a. Counts are
integers: merging is addition, and the order of arrival leaves no trace. Sketches leave as
exponential histograms (OpenTelemetry metrics data model, "ExponentialHistogram").
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from pipeline.model import Floats, Int32s, Int64s, UInt64s

_TINY: Final = 1e-300
"""Stands for zero, whose logarithm numpy warns of; far below any first bucket."""

EXPORT_ERROR_RATIO: Final = 0.1
"""What leaving adds to the error, as a share of it, where buckets are not those of OTLP."""

Counts: TypeAlias = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True, eq=False)
class ExponentialHistograms:
    """What OTLP's ExponentialHistogramDataPoint holds, a row a point; no value is negative.

    The buckets of row r are `counts[starts[r] : starts[r + 1]]`, without empty ones at the ends;
    the first has index `offset[r]`. Index i holds (base^i, base^(i + 1)], base = 2^(2^-scale).
    """

    scale: int
    zero_threshold: float
    """Values up to here are in `zero_count`: at and below the sketch's low end all look alike."""
    offset: Int32s
    starts: Int64s
    """int64[rows + 1]"""
    counts: UInt64s
    zero_count: UInt64s
    count: UInt64s
    """uint64[rows]: the zero count and all buckets."""
    sum: Floats


class LogBuckets:
    """The mapping between values and buckets; values outside the range go to its ends.

    >>> buckets = LogBuckets(0.01, 1e-3, 600.0)
    >>> bool(abs(buckets.values[buckets.index(np.array([2.0]))[0]] / 2.0 - 1) <= 0.01)
    True
    """

    def __init__(
        self, relative_error: float, low: float, high: float, *, is_exponential: bool = False
    ) -> None:
        """Cover [low, high] with quantiles off by at most `relative_error`, 0 < it < 1.

        If `is_exponential`, buckets are those of OTLP's exponential histograms, the widest within
        the error, and leave as they are.
        """
        gamma = (1 + relative_error) / (1 - relative_error)
        log: Callable[[float], float] = math.log
        self._log: np.ufunc = np.log
        self._per_log = 1 / math.log(gamma)
        self.scale = scale_within(relative_error * (1 if is_exponential else EXPORT_ERROR_RATIO))
        """Of the exponential histograms that sketches leave as."""
        if is_exponential:
            gamma = 2.0**2.0**-self.scale
            log, self._log = math.log2, np.log2
            self._per_log = 2.0**self.scale
        self._first = math.ceil(log(low) * self._per_log)
        self.n = math.ceil(log(high) * self._per_log) - self._first + 1
        powers = np.arange(self._first, self._first + self.n)
        self.values: Floats = 2 * np.power(gamma, powers) / (gamma + 1)
        """float64[n]: the value that stands for each bucket."""
        self.low = float(gamma**self._first)
        """The highest value of the first bucket, which holds all that are lower."""

    def index(self, values: Floats) -> Int32s:
        """int32[len(values)]: the bucket of each value; NaN is not allowed here."""
        at = np.maximum(values, _TINY)
        self._log(at, out=at)
        at *= self._per_log
        np.ceil(at, out=at)
        at -= self._first
        np.maximum(at, 0, out=at)
        np.minimum(at, self.n - 1, out=at)
        index: Int32s = at.astype(np.int32)
        return index

    def merge(self, *counts: Counts) -> Int64s:
        """int64[..., n]: counts of the same shape, put together; of none, an empty sketch [n].

        Raises ValueError for counts of other buckets.

        >>> LogBuckets(0.2, 0.5, 2.0).merge(np.array([1, 0, 0, 2]), np.array([0, 0, 1, 1]))
        array([1, 0, 1, 3])
        """
        merged = np.zeros(counts[0].shape if counts else self.n, np.int64)
        for part in counts:
            if part.shape != merged.shape or part.shape[-1] != self.n:
                raise ValueError(f"counts of shape {part.shape} are not of these {self.n} buckets")
            merged += part
        return merged

    def quantiles(self, counts: Counts, q: tuple[float, ...]) -> Floats:
        """float64[len(q), rows] of counts [rows, n]; NaN for a row without samples.

        The quantile is the sample of rank floor(q * (count - 1)), as numpy's method "lower".
        """
        return self.totals_and_quantiles(counts, q)[1]

    def totals_and_quantiles(self, counts: Counts, q: tuple[float, ...]) -> tuple[Int64s, Floats]:
        """How many samples each row of `counts` has, int64[rows], and its `quantiles`."""
        rows, width = counts.shape
        # One running count over all rows: the sample of a rank in a row is a place on it.
        running = np.cumsum(counts.reshape(-1), dtype=np.int64)
        ends = running[width - 1 :: width]
        totals = np.diff(ends, prepend=0)
        result = np.full((len(q), rows), np.nan)
        filled = totals.nonzero()[0]
        total, before = totals[filled], (ends - totals)[filled]
        for i, share in enumerate(q):
            rank = np.floor(share * (total - 1)).astype(np.int64)
            at = np.searchsorted(running, before + rank, side="right")
            result[i, filled] = self.values[at - filled * width]
        return totals, result

    def exponential(self, counts: Counts, sums: Floats) -> ExponentialHistograms:
        """Counts [rows, n] and the sums of what was counted, float64[rows], as OTLP has them.

        No count is lost or moved between rows. Each bucket goes whole to the one of OTLP that holds
        its value: the same one if these are exponential, else one narrow enough that the error
        grows by a tenth.
        """
        to = np.ceil(np.log2(self.values[1:]) * 2.0**self.scale).astype(np.int64) - 1
        base = int(to[0]) if len(to) else 0
        width = int(to[-1]) - base + 1 if len(to) else 1
        wide = np.zeros((len(counts), width), np.uint64)
        wide[:, to - base] = counts[:, 1:]
        column, filled = np.arange(width), wide > 0
        first = filled.argmax(axis=1)
        end = np.where(filled.any(axis=1), width - filled[:, ::-1].argmax(axis=1), first)
        inside = (column >= first[:, None]) & (column < end[:, None])
        return ExponentialHistograms(
            scale=self.scale,
            zero_threshold=self.low,
            offset=np.where(end > first, base + first, 0).astype(np.int32),
            starts=np.concatenate((np.zeros(1, np.int64), np.cumsum(end - first))),
            counts=wide[inside],
            zero_count=counts[:, 0].astype(np.uint64),
            count=counts.sum(axis=1, dtype=np.uint64),
            sum=sums,
        )


def scale_within(relative_error: float) -> int:
    """The smallest scale whose buckets, (base - 1) / (base + 1) wide, are within the error.

    >>> scale_within(0.05), scale_within(0.01)
    (3, 6)
    """
    gamma = (1 + relative_error) / (1 - relative_error)
    return math.ceil(-math.log2(math.log2(gamma)))
