"""Peers: a value against median and MAD of the other members of its group.

The others are taken as they were before the bucket of time of the sample, so that the order of
series within a round changes nothing; what all do together is no outlier. To be one, the value now
and the one before must both be, against the same others. A lasting difference from the others
(another kind of hardware) becomes usual. Source: Hampel identifier (Davies and Gather 1993),
leave-one-out, in its own deviation from the group.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from pipeline.detect.baseline import (
    TINY,
    Deviation,
    keep_time,
    protected,
    sigma_of,
    standardised,
    steps_since,
    weights,
)
from pipeline.detect.calibrate import Tail
from pipeline.detect.peer_order import Groups
from pipeline.detect.protocol import Samples, Scores
from pipeline.detect.rows import Part, RowDetector, picked, taken_array
from pipeline.model import Bools, Floats, Int32s, Int64s

SIGMA_PER_MAD: Final = 1.4826022185056018
"""Of a normal distribution."""
OLD: Final = 1e9
"""Samples of a series that is no longer young."""
STALE_STEPS: Final = 5.0
"""A peer that was not heard for so many buckets, and so many of its intervals, is none."""

HEAD: Final = {
    "last_s": np.nan,
    "interval_s": np.nan,
    "count": 0.0,
    "floor": TINY,
    "usual": 0.0,
    "scale": 0.0,
    "run": 0.0,
    "run_level": 0.0,
    "spread": 0.0,
    "value": np.nan,
    "value_s": -np.inf,
    "before": np.nan,
    "before_s": -np.inf,
    "before_interval_s": np.nan,
}


class Peers(RowDetector):
    """float64 state of 21 facts a series, and its group in int32."""

    name = "peers"

    def __init__(
        self,
        *,
        bucket_s: float = 15.0,
        least_peers: int = 3,
        memory: float = 400.0,
        spread_memory: float = 50.0,
        accept: float = 100.0,
        warm_up: float = 5.0,
        relative_floor: float = 1e-3,
    ) -> None:
        """Time is cut into buckets of `bucket_s`; fewer than `least_peers` others tell nothing.

        `memory` of what is usual for a member, `accept` and `warm_up` are in samples. No group is
        known before `set_groups`.
        """
        self._bucket_s = bucket_s
        self._least_peers = least_peers
        self._memory = memory
        self._spread_memory = spread_memory
        self._warm_up = warm_up
        self._relative_floor = relative_floor
        self._tail = Tail()
        self._deviation = Deviation(accept=accept, warm_up=30.0)
        self._groups = Groups(np.zeros(0, np.int32))
        super().__init__({**HEAD, **self._tail.facts})

    def resize(self, n: int) -> None:
        """Have room for n series; new ones belong to no group."""
        super().resize(n)
        more = n - len(self._groups.of)
        if more > 0:
            blank = np.full(more, -1, np.int32)
            self._groups = Groups(np.concatenate((self._groups.of, blank)))

    def set_groups(self, groups: Int32s) -> None:
        """The group of every row, int32[n], -1 = none; a row that changes it starts afresh."""
        if len(groups) != self._table.n:
            raise ValueError(f"{len(groups)} groups for {self._table.n} rows")
        moved = np.flatnonzero(groups != self._groups.of)
        if len(moved):
            floor = self._table.fact("floor")[moved]
            super().forget(moved)
            self._table.fact("floor")[moved] = floor
            self._groups = Groups(groups.astype(np.int32))

    @property
    def nbytes(self) -> int:
        """Bytes of state."""
        return self._table.nbytes + self._groups.nbytes

    def export_state(self) -> dict[str, Any]:
        """The state as numpy arrays and plain values."""
        return {**self._table.export_state(), "groups": self._groups.of.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from an exported state; `ValueError` when it does not fit."""
        groups: Int32s = taken_array(state, "groups", self._groups.of)
        lines = state.get("lines")
        if not isinstance(lines, np.ndarray) or lines.shape[-1:] != groups.shape:
            raise ValueError("groups: another number of rows")
        self._table.restore(state)
        self._groups = Groups(groups)

    def score(self, samples: Samples, learn: Bools) -> Scores:
        """Score, then learn where `learn`; what has too few peers is not known."""
        bucket = np.floor(samples.time_s / self._bucket_s)
        if not len(bucket) or bucket.min() == bucket.max():
            return self._block(samples, learn)
        k = len(bucket)
        scores = Scores(np.empty(k), np.empty(k), np.empty(k))
        for each in np.unique(bucket):  # of a round: one or two
            at = np.flatnonzero(bucket == each)
            found_all = self._block(picked(samples, at), learn[at])
            for column, found in zip(scores, found_all, strict=True):
                column[at] = found
        return scores

    def _score(self, lines: Floats, samples: Part) -> Scores:
        last_s, interval_s, count, floor, usual, scale, run, run_level, spread = lines[:9]
        tail, now = lines[len(HEAD) :], samples.value
        steps, _ = steps_since(last_s, interval_s, samples.time_s)
        begin_s = self._begin_s(samples)
        others = self._groups.others(samples.row, lambda rows: self._before(rows, begin_s))
        is_unknown = others.size < self._least_peers
        median = np.where(is_unknown, now, others.median)
        expected = median + usual
        sigma = sigma_of(scale, median, floor, self._relative_floor)
        np.fmax(sigma, SIGMA_PER_MAD * np.fmax(spread, others.mad), out=sigma)
        z = standardised(_both(now - expected, others.own - expected), sigma)
        is_unknown |= np.isnan(z)
        z[is_unknown | (count < self._warm_up)] = np.nan
        expected[is_unknown] = np.nan
        scores = Scores(self._tail.score(z, tail, count), expected, 3.0 * sigma)
        self._tail.learn(z, tail, count)
        weight = weights(steps, count, self._spread_memory)
        weight[is_unknown] = 0.0
        spread += weight * np.where(is_unknown, 0.0, others.mad - spread)
        residual = np.where(is_unknown, 0.0, now - expected)
        is_out = self._deviation.outlying(residual, sigma, count)
        # Without the head start of the young: what is different from the first is no usual thing.
        weight = protected(weights(steps, count + OLD, self._memory), is_out)
        weight[is_unknown] = 0.0
        self._deviation.learn_scale(scale, residual, sigma, count, weight)
        usual += weight * residual
        done = self._deviation.accepted(run, run_level, is_out, residual, now - median)
        usual[done] = run_level[done]
        self._remember(lines, samples, begin_s)
        keep_time(last_s, interval_s, samples.time_s)
        count += 1.0
        return scores

    def _begin_s(self, samples: Part) -> float:
        """When the bucket began that all `samples` are of."""
        if not len(samples.time_s):
            return 0.0
        return float(np.floor(samples.time_s[0] / self._bucket_s)) * self._bucket_s

    def _before(self, rows: Int64s, begin_s: float) -> Floats:
        """float64[k] the last values of `rows` from before `begin_s`; NaN = none, or stale.

        Whether a row has had its sample of the present bucket makes no difference.
        """
        names = ("value", "value_s", "interval_s", "before", "before_s", "before_interval_s")
        value, value_s, interval_s, before, before_s, before_interval_s = (
            self._table.fact(name).take(rows) for name in names
        )
        is_late = value_s >= begin_s
        known = np.where(is_late, before, value)
        when_s = np.where(is_late, before_s, value_s)
        allowed_s = np.where(is_late, before_interval_s, interval_s)
        allowed_s = STALE_STEPS * np.fmax(allowed_s, self._bucket_s)
        known[(when_s >= begin_s) | (begin_s - when_s > allowed_s)] = np.nan
        return known

    @staticmethod
    def _remember(lines: Floats, samples: Part, begin_s: float) -> None:
        interval_s = lines[1]
        value, value_s, before, before_s, before_interval_s = lines[9:14]
        is_new = value_s < begin_s
        for line, last in ((before, value), (before_s, value_s), (before_interval_s, interval_s)):
            np.copyto(line, last, where=is_new)
        value[:], value_s[:] = samples.value, samples.time_s


def _both(now: Floats, last: Floats) -> Floats:
    """The smaller of two deviations where they agree in sign, else 0; NaN where one is unknown.

    >>> _both(np.array([5.0, 5.0, -2.0]), np.array([3.0, -3.0, -9.0])).tolist()
    [3.0, 0.0, -2.0]
    """
    smaller = np.minimum(np.abs(now), np.abs(last))
    return np.where(now * last >= 0.0, np.copysign(smaller, now), np.abs(now * last * 0.0))
