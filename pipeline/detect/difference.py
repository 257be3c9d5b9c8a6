"""First difference: how far a value jumped, against how far this series usually jumps.

The difference is taken from the range of the last few values, so that a value that returns from a
spike of one sample is no second jump. No difference is taken across a gap.
Source: EWMA control of differences (Roberts 1959), the strongest naive detector of KPI curves.
"""

from typing import Final

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
from pipeline.detect.protocol import Scores
from pipeline.detect.rows import Part, RowDetector
from pipeline.model import Bools, Floats

HEAD: Final = 5
"""Lines before the last values."""


class Difference(RowDetector):
    """float64 state of 13 + `lags` facts a series."""

    name = "difference"

    def __init__(
        self,
        *,
        lags: int = 2,
        memory: float = 400.0,
        warm_up: float = 30.0,
        relative_floor: float = 1e-3,
    ) -> None:
        """A jump is what lies beyond the last `lags` (>= 1) values.

        `memory` of its scale and `warm_up` are in samples; sigma is not below `relative_floor` of
        the last value.
        """
        if lags < 1:
            raise ValueError("lags is at least 1")
        self._lags = lags
        self._memory = memory
        self._warm_up = warm_up
        self._relative_floor = relative_floor
        self._tail = Tail()
        self._deviation = Deviation(accept=np.inf, warm_up=warm_up)
        head = {"last_s": np.nan, "interval_s": np.nan, "count": 0.0, "floor": TINY, "scale": 0.0}
        values = {f"value_{lag}": 0.0 for lag in range(1, lags + 1)}
        super().__init__({**head, **values, **self._tail.facts})

    def _score(self, lines: Floats, samples: Part) -> Scores:
        last_s, interval_s, count, floor, scale = lines[:HEAD]
        values, tail = lines[HEAD : HEAD + self._lags], lines[HEAD + self._lags :]
        steps, is_gap = steps_since(last_s, interval_s, samples.time_s)
        is_gap |= count == 0.0
        low, high = values[0].copy(), values[0].copy()
        for value in values[1:]:
            np.minimum(low, value, out=low)
            np.maximum(high, value, out=high)
        expected = np.clip(samples.value, low, high)
        sigma = sigma_of(scale, values[0], floor, self._relative_floor)
        z = standardised(samples.value - expected, sigma)
        z[is_gap | (count < self._warm_up)] = np.nan
        scores = Scores(self._tail.score(z, tail, count), expected, 3.0 * sigma)
        self._tail.learn(z, tail, count)
        self._learn_scale(lines, samples.value - values[0], sigma, steps, is_gap)
        for lag in range(self._lags - 1, 0, -1):
            values[lag] = np.where(is_gap, samples.value, values[lag - 1])
        values[0] = samples.value
        keep_time(last_s, interval_s, samples.time_s)
        count += 1.0
        return scores

    def _learn_scale(
        self, lines: Floats, jump: Floats, sigma: Floats, steps: Floats, is_gap: Bools
    ) -> None:
        count, scale = lines[2], lines[4]
        age = np.maximum(count - 1.0, 0.0)  # of differences
        weight = weights(steps, age, self._memory)
        weight = protected(weight, self._deviation.outlying(jump, sigma, count))
        weight[is_gap] = 0.0
        self._deviation.learn_scale(scale, jump, sigma, count, weight)
