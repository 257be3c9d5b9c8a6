"""Level: a value against its exponentially weighted level, in its usual deviation.

Source: EWMA chart (Roberts 1959) with Huber-weighted learning (Gelper et al. 2010, "Robust
forecasting with exponential and Holt-Winters smoothing"). A shift that lasts becomes the level.
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
from pipeline.model import Floats

HEAD: Final = {
    "last_s": np.nan,
    "interval_s": np.nan,
    "count": 0.0,
    "floor": TINY,
    "level": 0.0,
    "scale": 0.0,
    "run": 0.0,
    "run_level": 0.0,
}


class Level(RowDetector):
    """float64 state of 15 facts a series."""

    name = "level"

    def __init__(
        self,
        *,
        memory: float = 100.0,
        scale_memory: float = 400.0,
        accept: float = 100.0,
        warm_up: float = 30.0,
        relative_floor: float = 1e-3,
    ) -> None:
        """`memory` of the level, `scale_memory` of its deviation, both in observed intervals.

        After `accept` outlying samples in a row the level is where they were; scores begin after
        `warm_up` samples; sigma is not below `relative_floor` of the level.
        """
        self._memory = memory
        self._scale_memory = scale_memory
        self._warm_up = warm_up
        self._relative_floor = relative_floor
        self._tail = Tail()
        self._deviation = Deviation(accept=accept, warm_up=warm_up)
        super().__init__({**HEAD, **self._tail.facts})

    def _score(self, lines: Floats, samples: Part) -> Scores:
        last_s, interval_s, count, floor, level, scale, run, run_level = lines[: len(HEAD)]
        tail = lines[len(HEAD) :]
        steps, _ = steps_since(last_s, interval_s, samples.time_s)
        sigma = sigma_of(scale, level, floor, self._relative_floor)
        residual = samples.value - level
        z = standardised(residual, sigma)
        z[count < self._warm_up] = np.nan
        scores = Scores(self._tail.score(z, tail, count), level.copy(), 3.0 * sigma)
        self._tail.learn(z, tail, count)
        is_out = self._deviation.outlying(residual, sigma, count)
        weight = protected(weights(steps, count, self._scale_memory), is_out)
        self._deviation.learn_scale(scale, residual, sigma, count, weight)
        level += protected(weights(steps, count, self._memory), is_out) * residual
        done = self._deviation.accepted(run, run_level, is_out, residual, samples.value)
        level[done] = run_level[done]
        keep_time(last_s, interval_s, samples.time_s)
        count += 1.0
        return scores
