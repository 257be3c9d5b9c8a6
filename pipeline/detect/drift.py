"""Drift: a fast against a slow level of block means, over the usual size of their difference.

Block means take the correlation of neighbours out (whitening) and cost a sample little. Source:
moving-average charts (Montgomery, "Introduction to Statistical Quality Control", ch. 9), the
scale learned instead of derived. A drift that stays is accepted: the slow level moves there.
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
    weights,
)
from pipeline.detect.calibrate import Tail
from pipeline.detect.protocol import Scores
from pipeline.detect.rows import Part, RowDetector
from pipeline.model import Floats

HEAD: Final = {
    "last_s": np.nan,
    "interval_s": np.nan,
    "floor": TINY,
    "sum": 0.0,
    "samples": 0.0,
    "held": np.nan,
    "blocks": 0.0,
    "fast": 0.0,
    "slow": 0.0,
    "scale": 0.0,
    "run": 0.0,
    "run_level": 0.0,
}


class Drift(RowDetector):
    """float64 state of 19 facts a series. Between two blocks the last score holds."""

    name = "drift"

    def __init__(
        self,
        *,
        block: float = 16.0,
        fast: float = 4.0,
        slow: float = 64.0,
        scale_memory: float = 256.0,
        accept: float = 24.0,
        warm_up: float = 16.0,
        relative_floor: float = 1e-3,
    ) -> None:
        """A `block` is that many samples; all other memories and counts are in blocks."""
        self._size = block
        self._fast = fast
        self._slow = slow
        self._scale_memory = scale_memory
        self._warm_up = warm_up
        self._relative_floor = relative_floor
        self._tail = Tail(memory=1000.0)
        self._deviation = Deviation(accept=accept, warm_up=warm_up)
        super().__init__({**HEAD, **self._tail.facts})

    def _score(self, lines: Floats, samples: Part) -> Scores:
        total, count, held = lines[3], lines[4], lines[5]
        total += samples.value
        count += 1.0
        done = np.flatnonzero(count >= self._size)
        if len(done):
            of_done = lines.take(done, axis=1)
            self._end_block(of_done)
            lines[:, done] = of_done
        keep_time(lines[0], lines[1], samples.time_s)
        slow, sigma = lines[8], self._sigma(lines)
        return Scores(held.copy(), slow.copy(), 3.0 * sigma)

    def _sigma(self, lines: Floats) -> Floats:
        return sigma_of(lines[9], lines[8], lines[2], self._relative_floor)

    def _end_block(self, lines: Floats) -> None:
        total, count, held, blocks, fast, slow, scale, run, run_level = lines[3 : len(HEAD)]
        tail = lines[len(HEAD) :]
        mean = total / count
        once = np.ones(len(mean))
        fast += weights(once, blocks, self._fast) * (mean - fast)
        sigma = self._sigma(lines)
        apart = np.where(blocks > 0.0, fast - slow, 0.0)
        z = standardised(apart, sigma)
        z[blocks < self._warm_up] = np.nan
        np.copyto(held, self._tail.score(z, tail, blocks))
        self._tail.learn(z, tail, blocks)
        is_out = self._deviation.outlying(apart, sigma, blocks)
        weight = protected(weights(once, blocks, self._scale_memory), is_out)
        self._deviation.learn_scale(scale, apart, sigma, blocks, weight)
        slow += protected(weights(once, blocks, self._slow), is_out) * (mean - slow)
        accepted = self._deviation.accepted(run, run_level, is_out, apart, mean)
        slow[accepted] = fast[accepted]
        total[:] = 0.0
        count[:] = 0.0
        blocks += 1.0
