"""Records: beyond everything seen so far, in value, in difference and in short mean.

How far a value lies beyond the range so far, over that range; the three add up. Extremes leak
towards the mean, so that old ones do not hide new ones for ever, and one value widens a range
by its own width at most, or half of what it exceeds. Source: record statistics (Arnold et al. 1998,
"Records"); how often and how far records fall here gives the score its scale.
"""

from typing import Final

import numpy as np

from pipeline.detect.baseline import TINY, keep_time, standardised, steps_since, weights
from pipeline.detect.calibrate import Tail
from pipeline.detect.protocol import Scores
from pipeline.detect.rows import Part, RowDetector
from pipeline.model import Bools, Floats

HEAD: Final = {
    "last_s": np.nan,
    "interval_s": np.nan,
    "count": 0.0,
    "floor": TINY,
    "value": 0.0,
    "mean": 0.0,
    "high": -np.inf,
    "low": np.inf,
    "jump_high": 0.0,
    "jump_low": 0.0,
    "mean_high": -np.inf,
    "mean_low": np.inf,
}


class Records(RowDetector):
    """float64 state of 19 facts a series."""

    name = "records"

    def __init__(
        self,
        *,
        memory: float = 10_000.0,
        mean_memory: float = 24.0,
        warm_up: float = 100.0,
        relative_floor: float = 1e-3,
    ) -> None:
        """Ranges leak over `memory`, the short mean is over `mean_memory`, both in samples.

        No range is taken to be narrower than the floor or `relative_floor` of the mean.
        """
        self._memory = memory
        self._mean_memory = mean_memory
        self._warm_up = warm_up
        self._relative_floor = relative_floor
        self._tail = Tail(threshold=0.0, share=0.05, excess=0.1)
        super().__init__({**HEAD, **self._tail.facts})

    def _score(self, lines: Floats, samples: Part) -> Scores:
        last_s, interval_s, count, floor, value, mean = lines[:6]
        tail, now = lines[len(HEAD) :], samples.value
        steps, is_gap = steps_since(last_s, interval_s, samples.time_s)
        least = np.maximum(np.abs(mean) * self._relative_floor, floor)
        jump = self._jump(now, value, mean, is_gap | (count == 0.0))
        new_mean = mean + weights(steps, count, self._mean_memory) * (now - mean)
        expected, band = np.clip(now, lines[7], lines[6]), 0.5 * (lines[6] - lines[7])
        is_first = count == 0.0
        expected[is_first], band[is_first] = now[is_first], 0.0
        leak = np.exp(steps * (-1.0 / self._memory))
        leak[np.isnan(steps)] = 1.0
        z = np.zeros(len(now))
        for at, each, centre in ((6, now, mean), (8, jump, 0.0 * jump), (10, new_mean, mean)):
            z += _beyond(lines[at], lines[at + 1], each, centre, leak, least)
        z[count < self._warm_up] = np.nan
        scores = Scores(self._tail.score(z, tail, count), expected, band)
        self._tail.learn(z, tail, count)
        value[:], mean[:] = now, new_mean
        keep_time(last_s, interval_s, samples.time_s)
        count += 1.0
        return scores

    @staticmethod
    def _jump(now: Floats, value: Floats, mean: Floats, is_gap: Bools) -> Floats:
        """The difference; 0 across a gap, and where it leads back to the mean."""
        jump = now - value
        away = (now - mean) * np.sign(jump)
        jump[is_gap | (away < 0.5 * np.abs(jump))] = 0.0
        return jump


def _beyond(
    high: Floats, low: Floats, value: Floats, centre: Floats, leak: Floats, least: Floats
) -> Floats:
    """How far `value` lies beyond [low, high] over its width, signed; then the range takes it up.

    What is beyond by less than `least` is no record. An empty range (low > high) becomes the value.
    """
    is_empty = low > high
    high[is_empty] = low[is_empty] = value[is_empty]
    width = np.maximum(high - low, least)
    beyond = value - np.clip(value, low, high)
    size = np.abs(beyond)
    widened = np.maximum(np.minimum(size, width), 0.5 * size)
    for end, is_there in ((high, beyond > 0.0), (low, beyond < 0.0)):
        moved = (end - centre) * leak
        moved += centre
        moved += np.copysign(widened, beyond) * is_there
        np.copyto(end, moved)
    size -= least
    np.maximum(size, 0.0, out=size)
    return standardised(np.copysign(size, beyond), width)
