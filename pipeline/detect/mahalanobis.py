"""Mahalanobis: many signals of one endpoint at once, and which of them it is.

Differences (or levels) of signals become normal deviates by the tail of each, so that a signal that
rarely moves does not outweigh the others (a Gaussian copula); the correlation of those is learned,
shrunk and inverted now and then, all endpoints at once, without BLAS. d^2 = sum z_i (P z)_i, whose
terms are the contributions; Wilson and Hilferty (1931) make it a deviate, its own tail a score.
Source: Mahalanobis 1936; shrinkage after Ledoit and Wolf 2004 with a fixed intensity.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from pipeline.detect.baseline import (
    OUTLYING,
    TINY,
    Deviation,
    keep_time,
    protected,
    sigma_of,
    standardised,
    steps_since,
    weights,
)
from pipeline.detect.calibrate import Tail, chi_squared_deviate, normal_deviate
from pipeline.detect.ordered import total
from pipeline.detect.rows import Table, taken_array
from pipeline.model import Bools, Floats, Int64s

BLOCK_ENTRIES: Final = 65_536
"""Values of a block of endpoints: temporaries stay in the cache."""

HEAD: Final = {"last_s": np.nan, "interval_s": np.nan, "count": 0.0, "since_inverse": 0.0}
PER_SIGNAL: Final = {"floor": TINY, "value": np.nan, "known": 0.0, "level": 0.0, "scale": 0.0}


KNOWN: Final = list(PER_SIGNAL).index("known")


class Vectors(NamedTuple):
    """New samples of m signals of k different endpoints; time moves forward per endpoint."""

    row: Int64s
    """int64[k], unique, ascending."""
    time_s: Floats
    values: Floats
    """float64[k, m]; NaN = missing."""


class VectorScores(NamedTuple):
    """How unusual endpoints are, and why."""

    score: Floats
    """float64[k], -log10 of the tail probability, >= 0; NaN = not known yet."""
    distance: Floats
    """float64[k], the squared distance d^2."""
    contributions: Floats
    """float64[k, m]: each signal's part of d^2, adding up to it; a small one may be negative."""
    z: Floats
    """float64[k, m]: each signal's own normal deviate, 0 where missing or not known yet."""


class Mahalanobis:
    """State of n endpoints: 11 + 12 m facts in float64 and two matrices of m * m in float32."""

    name = "mahalanobis"

    def __init__(
        self,
        *,
        signals: int,
        is_difference: bool = True,
        memory: float = 400.0,
        shrinkage: float = 0.6,
        refresh: float = 32.0,
        warm_up: float = 100.0,
        relative_floor: float = 1e-3,
    ) -> None:
        """`signals` is m; residuals are first differences, or deviations from the level.

        Correlations are taken `shrinkage` smaller and inverted every `refresh` samples of an
        endpoint; `memory` and `warm_up` are in samples.
        """
        self._m = signals
        self._is_difference = is_difference
        self._memory = memory
        self._shrinkage = shrinkage
        self._refresh = refresh
        self._warm_up = warm_up
        self._relative_floor = relative_floor
        self._tail = Tail()
        self._deviation = Deviation(accept=np.inf, warm_up=warm_up)
        facts = {**HEAD, **self._tail.facts}
        for name, blank in {**PER_SIGNAL, **self._tail.facts}.items():
            facts |= {f"{name}_{i}": blank for i in range(signals)}
        self._table = Table(facts, {})
        self._correlation = np.zeros((signals, 0, signals), np.float32)
        self._inverse = np.zeros((signals, 0, signals), np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes of state."""
        return self._table.nbytes + self._correlation.nbytes + self._inverse.nbytes

    def resize(self, n: int) -> None:
        """Have room for n endpoints; never shrinks."""
        more = n - self._table.n
        if more > 0:
            self._table.resize(n)
            one = np.repeat(np.eye(self._m, dtype=np.float32)[:, None], more, axis=1)
            self._correlation = np.concatenate((self._correlation, one), axis=1)
            self._inverse = np.concatenate((self._inverse, one), axis=1)

    def forget(self, rows: Int64s) -> None:
        """Let `rows` start afresh."""
        self._table.forget(rows)
        self._correlation[:, rows] = self._inverse[:, rows] = np.eye(self._m)[:, None]

    def set_floor(self, rows: Int64s, floor: Floats) -> None:
        """No scale of `rows` is taken to be smaller than `floor` float64[m] > 0, by signal."""
        for i, least in enumerate(floor.tolist()):
            self._table.fact(f"floor_{i}")[rows] = least

    def export_state(self) -> dict[str, Any]:
        """The state as numpy arrays and plain values."""
        return {
            **self._table.export_state(),
            "correlation": self._correlation.copy(),
            "inverse": self._inverse.copy(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from an exported state; `ValueError` when it does not fit."""
        correlation = taken_array(state, "correlation", self._correlation)
        inverse = taken_array(state, "inverse", self._inverse)
        lines = state.get("lines")
        n = lines.shape[-1] if isinstance(lines, np.ndarray) else -1
        if correlation.shape != (self._m, n, self._m) or inverse.shape != correlation.shape:
            raise ValueError("correlation: another number of endpoints or signals")
        self._table.restore(state)
        self._correlation, self._inverse = correlation, inverse

    def score(self, vectors: Vectors, learn: Bools) -> VectorScores:
        """Score first, then learn where `learn` bool[k]; no vectors give no scores."""
        k, m = len(vectors.row), self._m
        scores = VectorScores(np.empty(k), np.empty(k), np.empty((k, m)), np.empty((k, m)))
        rows = max(1, BLOCK_ENTRIES // m)
        for begin in range(0, k, rows):
            part = slice(begin, begin + rows)
            block = Vectors(vectors.row[part], vectors.time_s[part], vectors.values[part])
            for column, found in zip(scores, self._block(block, learn[part]), strict=True):
                column[part] = found
        return scores

    def _block(self, vectors: Vectors, learn: Bools) -> VectorScores:
        lines, is_view = self._table.read(vectors.row, learn)
        with np.errstate(all="ignore"):  # NaN is "missing", and floors bound what is divided by
            scores = self._score(lines, vectors, learn)
        if not is_view:
            self._table.write(vectors.row, learn, lines)
        return scores

    def _score(self, lines: Floats, vectors: Vectors, learn: Bools) -> VectorScores:
        last_s, interval_s, count, _ = lines[: len(HEAD)]
        tail = lines[len(HEAD) : len(HEAD) + len(self._tail.facts)]
        floor, value, known, level, scale = self._signals(lines)[: len(PER_SIGNAL)]
        now = np.ascontiguousarray(vectors.values.T)
        steps, is_gap = steps_since(last_s, interval_s, vectors.time_s)
        residual = now - (value if self._is_difference else level)
        residual[:, is_gap & self._is_difference] = np.nan
        sigma = sigma_of(scale, level, floor, self._relative_floor)
        residual[known == 0.0] = np.nan  # nothing to compare with
        is_there = ~np.isnan(residual)
        z = standardised(residual, sigma)
        z[known < self._warm_up] = np.nan
        residual[~is_there] = 0.0
        by_endpoint = np.ascontiguousarray(self._deviates(lines, z).T)
        contributions = by_endpoint * self._times_inverse(vectors.row, by_endpoint)
        distance = total(contributions.T)
        deviate = np.maximum(chi_squared_deviate(distance, total(is_there.astype(np.float64))), 0.0)
        deviate[count < self._warm_up] = np.nan
        scores = VectorScores(
            self._tail.score(deviate, tail, count), distance, contributions, by_endpoint
        )
        self._tail.learn(deviate, tail, count)
        self._learn_tails(lines, z)
        self._learn_signals(lines, now, residual, is_there, sigma, steps)
        self._learn_correlation(lines, vectors.row, by_endpoint, learn, steps)
        keep_time(last_s, interval_s, vectors.time_s)
        count += 1.0
        return scores

    def _signals(self, lines: Floats) -> Floats:
        """float64[facts, m, k], a view: `PER_SIGNAL`, then the facts of each signal's tail."""
        first = len(HEAD) + len(self._tail.facts)
        return lines[first:].reshape(len(PER_SIGNAL) + len(self._tail.facts), self._m, -1)

    def _deviates(self, lines: Floats, z: Floats) -> Floats:
        """float64[m, k] normal deviates that are as unlikely as `z`; 0 where that is NaN."""
        signals = self._signals(lines)
        tails = signals[len(PER_SIGNAL) :].reshape(len(self._tail.facts), -1)
        score = self._tail.score(z.reshape(-1), tails, signals[KNOWN].reshape(-1))
        deviate = normal_deviate(score).reshape(z.shape)
        deviate[np.isnan(deviate)] = 0.0
        return deviate

    def _learn_tails(self, lines: Floats, z: Floats) -> None:
        signals = self._signals(lines)
        tails = signals[len(PER_SIGNAL) :]
        flat = tails.reshape(len(tails), -1)  # a copy where rows of the table lie between
        self._tail.learn(z.reshape(-1), flat, signals[KNOWN].reshape(-1))
        np.copyto(tails, flat.reshape(tails.shape))

    def _learn_signals(
        self,
        lines: Floats,
        now: Floats,
        residual: Floats,
        is_there: Bools,
        sigma: Floats,
        steps: Floats,
    ) -> None:
        _, value, known, level, scale = self._signals(lines)[: len(PER_SIGNAL)]
        is_now = ~np.isnan(now)
        is_out = self._deviation.outlying(residual, sigma, known)
        weight = protected(weights(steps, known, self._memory), is_out)
        self._deviation.learn_scale(scale, residual, sigma, known, weight * is_there)
        weight[~is_now] = 0.0
        level += weight * np.where(is_now, now - level, 0.0)
        np.copyto(value, now, where=is_now)
        known += is_now

    def _learn_correlation(
        self, lines: Floats, row: Int64s, z: Floats, learn: Bools, steps: Floats
    ) -> None:
        count, since = lines[2], lines[3]
        is_old = (count >= self._warm_up) & learn
        at = np.flatnonzero(is_old)
        if not len(at):
            return
        z32 = np.clip(z[at], -OUTLYING, OUTLYING).astype(np.float32)
        age = count.take(at) - self._warm_up
        weight = weights(steps.take(at), age, self._memory)[:, None].astype(np.float32)
        weighted, kept, rows = weight * z32, 1.0 - weight, row[at]
        for j in range(self._m):
            of_signal = self._correlation[j].take(rows, axis=0)
            of_signal *= kept
            of_signal += weighted * z32[:, j, None]
            self._correlation[j, rows] = of_signal
        since[at] += 1.0
        due = at[since[at] >= self._refresh]
        since[due] = 0.0
        if len(due):
            self._invert(row[due])

    def _times_inverse(self, row: Int64s, z: Floats) -> Floats:
        """float64[k, m] P z, added up in the order of signals."""
        product = np.zeros(z.shape)
        for j in range(self._m):
            of_signal = self._inverse[j].take(row, axis=0) * z[:, j, None]
            product += of_signal
        return product

    def _invert(self, row: Int64s) -> None:
        """Invert the shrunk correlations of `row`.

        By Gauss and Jordan, without a search for pivots: the matrices are positive definite.
        """
        m, matrix = self._m, self._correlation.take(row, axis=1).astype(np.float64)
        variance = np.stack([matrix[j, :, j] for j in range(m)])
        root = np.sqrt(np.maximum(variance, 0.01))  # constants
        for j in range(m):
            matrix[j] /= root[j][:, None]
            matrix[j] /= root.T
            matrix[j] *= 1.0 - self._shrinkage
            matrix[j, :, j] = 1.0
        for j in range(m):
            pivot = 1.0 / matrix[j, :, j]
            matrix[j, :, j] = 1.0
            matrix[j] *= pivot[:, None]
            for i in range(m):
                if i != j:
                    factor = matrix[i, :, j].copy()
                    matrix[i, :, j] = 0.0
                    matrix[i] -= factor[:, None] * matrix[j]
        self._inverse[:, row] = matrix
