"""The detectors of the service as a scorer: every metric of every curve is a row of one bank.

Enters: curves. Leaves: the score of each row as it was known when its sample came. All curves go
through the bank in step, sample by sample, as live series do; none sees another.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from pipeline.detect.border import Border
from pipeline.detect.joint import unusualness
from pipeline.detect.peaks import PeaksOverThreshold
from pipeline.detect.refractory import Refractory
from pipeline.evaluate.scorer import Scores
from pipeline.evaluate.sets import Curve
from pipeline.model import Floats, Int64s

TELL_EVERY: Final = 20_000
"""Rounds between two lines for whoever waits: about two seconds."""


class _Rows(NamedTuple):
    """Where the metrics of each curve are in the bank; longer curves come first."""

    order: list[int]
    first: list[int]
    n: int

    @classmethod
    def of(cls, curves: Sequence[Curve]) -> "_Rows":
        order = sorted(range(len(curves)), key=lambda i: -curves[i].n)
        widths = [curves[i].value.shape[1] for i in order]
        first = np.concatenate(([0], np.cumsum(widths)))
        return cls(order, first[:-1].tolist(), int(first[-1]))


class BankScorer:
    """Single metrics by their rarest residual behind a refractory bar, several by all of them."""

    name = "peaks over threshold"

    def __init__(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """`progress` takes a line now and then."""
        self._progress = progress

    def scores(self, curves: Sequence[Curve]) -> list[Scores]:
        """As `Scorer`; samples that the border refuses are not known."""
        if not curves:
            return []
        rows = _Rows.of(curves)
        measured = self._measured(curves, rows)
        found: list[Scores] = [Scores(np.zeros(0), np.zeros((0, 0)))] * len(curves)
        for at, first in zip(rows.order, rows.first, strict=True):
            curve = curves[at]
            columns = slice(first, first + curve.value.shape[1])
            single, unusual, drifted = (each[: curve.n, columns] for each in measured)
            if curve.value.shape[1] == 1:
                found[at] = Scores(single[:, 0].copy(), single.copy())
            else:
                found[at] = Scores(unusualness(unusual, drifted), unusual.copy())
        return found

    def _measured(self, curves: Sequence[Curve], rows: _Rows) -> tuple[Floats, Floats, Floats]:
        """float64[rounds, n] each: single score, `unusual`, `drifted`; NaN = not known."""
        times, values, lasting = _stacked(curves, rows)
        bank, border, bar = PeaksOverThreshold(), Border(), Refractory()
        for part in (bank, border, bar):
            part.resize(rows.n)
        single, unusual, drifted = (np.full(values.shape, np.nan) for _ in range(3))
        every = np.arange(rows.n)
        for i in range(len(values)):
            k = lasting[i]
            for admitted in border.admit(every[:k], times[i, :k], values[i, :k]):
                if len(admitted.restarted):
                    bank.forget(admitted.restarted)
                samples = admitted.samples
                seen = bank.measure(samples, np.ones(len(samples.row), np.bool_))
                single[i, samples.row] = bar.passed(samples.row, seen.scores.score)
                unusual[i, samples.row], drifted[i, samples.row] = seen.unusual, seen.drifted
            if i % TELL_EVERY == TELL_EVERY - 1:
                self._progress(f"{i + 1:,} of {len(values):,} samples a curve")
        return single, unusual, drifted


def _stacked(curves: Sequence[Curve], rows: _Rows) -> tuple[Floats, Floats, Int64s]:
    """Times and values float64[rounds, n], and how many rows each round has, int64[rounds]."""
    longest = curves[rows.order[0]].n
    times, values = np.zeros((longest, rows.n)), np.zeros((longest, rows.n))
    lasting = np.zeros(longest, np.int64)
    for at, first in zip(rows.order, rows.first, strict=True):
        curve = curves[at]
        width = curve.value.shape[1]
        times[: curve.n, first : first + width] = curve.time_s[:, None]
        values[: curve.n, first : first + width] = curve.value
        lasting[: curve.n] += width
    return times, values, lasting
