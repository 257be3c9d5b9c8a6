"""Refractory bar: after a score, only a larger one is news, and less so as time passes.

Enters: scores of rows. Leaves: those that stand out of what came shortly before, 0 for the others.
The bar falls exponentially: a second anomaly soon after is heard, an episode is told once. Source:
the refractory period of spike detection; cool-downs of CAD OSE and Skyline do the same in steps.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from pipeline.detect.rows import Table
from pipeline.model import Floats, Int64s

MEMORY: Final = 50.0
"""Samples in which the bar falls to a third."""


class Refractory:
    """State of n rows: one float64 each."""

    def __init__(self, *, memory: float = MEMORY) -> None:
        """The bar loses 1 / `memory` of its height with each sample."""
        self._kept = 1.0 - 1.0 / memory
        self._table = Table({"bar": 0.0}, {})

    @property
    def nbytes(self) -> int:
        """Bytes of state."""
        return self._table.nbytes

    def resize(self, n: int) -> None:
        """Have room for n rows; never shrinks."""
        self._table.resize(n)

    def forget(self, rows: Int64s) -> None:
        """Let `rows` start afresh."""
        self._table.forget(rows)

    def export_state(self) -> dict[str, Any]:
        """The state as numpy arrays and plain values."""
        return self._table.export_state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from an exported state; `ValueError` when it does not fit."""
        self._table.restore(state)

    def passed(self, row: Int64s, score: Floats) -> Floats:
        """float64[k]: |score| of `row` int64[k] where it exceeds the bar, else 0; NaN gives 0.

        >>> bar = Refractory(memory=2.0)
        >>> bar.resize(1)
        >>> [float(bar.passed(np.array([0]), np.array([x]))[0]) for x in (4.0, -3.0, 1.0, 3.0)]
        [4.0, 3.0, 0.0, 3.0]
        """
        bars = self._table.fact("bar")
        bar = bars.take(row)
        bar *= self._kept
        size = np.abs(score)
        stands_out = size > bar  # NaN does not
        bars[row] = np.where(stands_out, size, bar)
        return np.where(stands_out, size, 0.0)
