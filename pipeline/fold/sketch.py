"""Log-bucket sketches: counts in buckets whose width grows with the value.

The mapping is DDSketch's (Masson, Rim, Lee: VLDB 2019): bucket i holds (gamma^(i-1), gamma^i] with
gamma = (1 + a) / (1 - a), so a quantile is off by at most the relative error a. Counts are
integers: merging is addition, and the order of arrival leaves no trace.
"""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.model import Floats, Int32s, Int64s

_TINY: Final = 1e-300
"""Stands for zero, whose logarithm numpy warns of; far below any first bucket."""


class LogBuckets:
    """The mapping between values and buckets; values outside the range go to its ends.

    >>> buckets = LogBuckets(0.01, 1e-3, 600.0)
    >>> bool(abs(buckets.values[buckets.index(np.array([2.0]))[0]] / 2.0 - 1) <= 0.01)
    True
    """

    def __init__(self, relative_error: float, low: float, high: float) -> None:
        """Cover [low, high] with quantiles off by at most `relative_error`, 0 < it < 1."""
        gamma = (1 + relative_error) / (1 - relative_error)
        self._per_log = 1 / math.log(gamma)
        self._first = math.ceil(math.log(low) * self._per_log)
        self.n = math.ceil(math.log(high) * self._per_log) - self._first + 1
        powers = np.arange(self._first, self._first + self.n)
        self.values: Floats = 2 * np.power(gamma, powers) / (gamma + 1)
        """float64[n]: the value that stands for each bucket."""

    def index(self, values: Floats) -> Int32s:
        """int32[len(values)]: the bucket of each value; NaN is not allowed here."""
        at = np.maximum(values, _TINY)
        np.log(at, out=at)
        at *= self._per_log
        np.ceil(at, out=at)
        at -= self._first
        np.maximum(at, 0, out=at)
        np.minimum(at, self.n - 1, out=at)
        index: Int32s = at.astype(np.int32)
        return index

    def quantiles(self, counts: npt.NDArray[np.integer], q: tuple[float, ...]) -> Floats:
        """float64[len(q), rows] of counts [rows, n]; NaN for a row without samples.

        The quantile is the sample of rank floor(q * (count - 1)), as numpy's method "lower".
        """
        return self.totals_and_quantiles(counts, q)[1]

    def totals_and_quantiles(
        self, counts: npt.NDArray[np.integer], q: tuple[float, ...]
    ) -> tuple[Int64s, Floats]:
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
