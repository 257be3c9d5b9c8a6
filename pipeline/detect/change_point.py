"""Change point: a two-sided CUSUM of the whitened, standardised residual.

Each residual above `slack` adds to a sum that never falls below 0 (Page 1954). For a normal
residual the sum exceeds h with a probability that falls as exp(-2 slack h), so h follows from a
tail probability and not from a textbook (h = 5 alarms on nine of ten streams within 1,000 points);
the learned tail does the rest where the residual is not normal. Residuals are clipped: one outlier
is no change. A sum that stays beyond h is a shift: it becomes the level and both sums start anew.
"""

import math
from typing import Final

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
from pipeline.detect.calibrate import Tail
from pipeline.detect.protocol import Scores
from pipeline.detect.rows import Part, RowDetector
from pipeline.model import Bools, Floats

HEAD: Final = {
    "last_s": np.nan,
    "interval_s": np.nan,
    "count": 0.0,
    "floor": TINY,
    "level": 0.0,
    "scale": 0.0,
    "run": 0.0,
    "run_level": 0.0,
    "last_z": 0.0,
    "product": 0.0,
    "square": 1.0,
    "above": 0.0,
    "below": 0.0,
}
MOST_CORRELATION: Final = 0.95
"""Of neighbours; whitening by more would leave nothing of a shift."""


class ChangePoint(RowDetector):
    """float64 state of 20 facts a series."""

    name = "change_point"

    def __init__(
        self,
        *,
        slack: float = 0.5,
        tail_probability: float = 1e-6,
        memory: float = 200.0,
        scale_memory: float = 400.0,
        accept: float = 30.0,
        warm_up: float = 50.0,
        relative_floor: float = 1e-3,
    ) -> None:
        """Half of `slack` sigmas is the smallest shift that adds up.

        `tail_probability` of a normal residual gives h; after `accept` samples beyond it the shift
        is the level. Memories and `warm_up` are in samples.
        """
        self._slack = slack
        self.h = -math.log(tail_probability) / (2.0 * slack)
        self._memory = memory
        self._scale_memory = scale_memory
        self._warm_up = warm_up
        self._relative_floor = relative_floor
        self._tail = Tail()
        self._deviation = Deviation(accept=accept, warm_up=warm_up)
        super().__init__({**HEAD, **self._tail.facts})

    def _score(self, lines: Floats, samples: Part) -> Scores:
        last_s, interval_s, count, floor, level, scale = lines[:6]
        above, below, tail = lines[11], lines[12], lines[len(HEAD) :]
        steps, is_gap = steps_since(last_s, interval_s, samples.time_s)
        sigma = sigma_of(scale, level, floor, self._relative_floor)
        residual = samples.value - level
        z = standardised(residual, sigma)
        np.clip(z, -OUTLYING, OUTLYING, out=z)
        is_young = count < self._warm_up
        z[is_young] = 0.0
        self._add(lines, z, is_gap)
        total = np.where(above >= below, above, -below)
        known = np.where(is_young, np.nan, total)
        scores = Scores(self._tail.score(known, tail, count), level.copy(), 3.0 * sigma)
        self._tail.learn(known, tail, count)
        self._learn(lines, residual, sigma, total, steps, samples.value)
        keep_time(last_s, interval_s, samples.time_s)
        count += 1.0
        return scores

    def _add(self, lines: Floats, z: Floats, is_gap: Bools) -> None:
        """Whiten `z` and take it up in both sums."""
        last_z, product, square, above, below = lines[8:13]
        correlation = np.clip(product / square, 0.0, MOST_CORRELATION)
        correlation[is_gap] = 0.0
        white = z - correlation * last_z
        correlation *= correlation
        white /= np.sqrt(1.0 - correlation)
        above += white
        above -= self._slack
        np.maximum(above, 0.0, out=above)
        below -= white
        below -= self._slack
        np.maximum(below, 0.0, out=below)

    def _learn(
        self,
        lines: Floats,
        residual: Floats,
        sigma: Floats,
        total: Floats,
        steps: Floats,
        value: Floats,
    ) -> None:
        count, level, scale, run, run_level = lines[2], lines[4], lines[5], lines[6], lines[7]
        is_out = self._deviation.outlying(residual, sigma, count)
        weight = protected(weights(steps, count, self._scale_memory), is_out)
        self._deviation.learn_scale(scale, residual, sigma, count, weight)
        self._learn_correlation(lines, standardised(residual, sigma), weight)
        level += protected(weights(steps, count, self._memory), is_out) * residual
        done = self._deviation.accepted(run, run_level, np.abs(total) > self.h, total, value)
        level[done] = run_level[done]
        for line in (8, 11, 12):
            lines[line, done] = 0.0

    def _learn_correlation(self, lines: Floats, z: Floats, weight: Floats) -> None:
        last_z, product, square = lines[8], lines[9], lines[10]
        np.clip(z, -OUTLYING, OUTLYING, out=z)
        z[lines[2] < self._warm_up] = 0.0
        np.minimum(weight, 1.0 / self._warm_up, out=weight)
        product += weight * (z * last_z - product)
        square += weight * (z * z - square)
        np.maximum(square, 0.01, out=square)  # constants
        np.copyto(last_z, z)
