"""Second derivative: acceleration, from a quadratic through the last few irregular samples.

Weighted least squares in closed form: on times centred at their weighted mean the quadratic that is
orthogonal to constant and line is p = t^2 - (S3/S2) t - S2/S0 (Forsythe 1957, "Generation and use
of orthogonal polynomials"), and the curvature is sum(w p y) / sum(w p^2). Divided by the root of
sum(w p^2) instead, white noise gives it the variance of one sample, whatever the spacing.
"""

from typing import Final, NamedTuple

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
from pipeline.detect.ordered import total
from pipeline.detect.protocol import Scores
from pipeline.detect.rows import Part, RowDetector
from pipeline.model import Floats

HEAD: Final = {
    "last_s": np.nan,
    "interval_s": np.nan,
    "count": 0.0,
    "floor": TINY,
    "scale": 0.0,
    "filled": 0.0,
}
LEAST_SPREAD: Final = 1e-6
"""Smallest root of sum(w p^2), in intervals squared: below it, times lie too close to tell."""


class Curve(NamedTuple):
    """Quadratics through the points of k series."""

    curvature: Floats
    """float64[k], half the second derivative."""
    spread: Floats
    """float64[k]; curvature times spread has the variance of one point of white noise."""
    above_line: Floats
    """float64[k], how much of the last point's value the quadratic term makes."""


class SecondDerivative(RowDetector):
    """float64 state of 13 + 2 * (`points` - 1) facts a series."""

    name = "second_derivative"

    def __init__(
        self,
        *,
        points: int = 6,
        recency: float = 0.9,
        memory: float = 400.0,
        warm_up: float = 30.0,
        relative_floor: float = 1e-3,
    ) -> None:
        """Fit the last `points` (4 to 7) samples since a gap; each weighs `recency` of the next.

        `memory` of the scale and `warm_up` are in samples; sigma is not below `relative_floor` of
        the value.
        """
        if not 4 <= points <= 7:
            raise ValueError("points is 4 to 7")
        self._earlier = points - 1
        ages = np.arange(self._earlier, -1, -1.0)
        self._weight = np.exp(ages * np.log(recency))[:, None]
        self._memory = memory
        self._warm_up = warm_up
        self._relative_floor = relative_floor
        self._tail = Tail()
        self._deviation = Deviation(accept=np.inf, warm_up=warm_up)
        times = {f"time_{i}": 0.0 for i in range(self._earlier)}
        values = {f"value_{i}": 0.0 for i in range(self._earlier)}
        super().__init__({**HEAD, **times, **values, **self._tail.facts})

    def _score(self, lines: Floats, samples: Part) -> Scores:
        last_s, interval_s, count, floor, scale, filled = lines[: len(HEAD)]
        times, values, tail = self._history(lines)
        steps, is_gap = steps_since(last_s, interval_s, samples.time_s)
        filled[is_gap] = 0.0
        is_short = filled < self._earlier
        bend, line = self._fit(times, values, samples, interval_s)
        bend[is_short] = 0.0
        np.copyto(line, samples.value, where=is_short)
        sigma = sigma_of(scale, values[-1], floor, self._relative_floor)
        z = standardised(bend, sigma)
        z[is_short | (count < self._warm_up)] = np.nan
        scores = Scores(self._tail.score(z, tail, count), line, 3.0 * sigma)
        self._tail.learn(z, tail, count)
        age = np.maximum(count - self._earlier, 0.0)  # of fits
        weight = weights(steps, age, self._memory)
        weight = protected(weight, self._deviation.outlying(bend, sigma, count))
        weight[is_short] = 0.0
        self._deviation.learn_scale(scale, bend, sigma, count, weight)
        for history, newest in ((times, samples.time_s), (values, samples.value)):
            for i in range(self._earlier - 1):
                history[i] = history[i + 1]
            history[-1] = newest
        keep_time(last_s, interval_s, samples.time_s)
        filled += 1.0
        count += 1.0
        return scores

    def _history(self, lines: Floats) -> tuple[Floats, Floats, Floats]:
        first, second = len(HEAD), len(HEAD) + self._earlier
        third = second + self._earlier
        return lines[first:second], lines[second:third], lines[third:]

    def _fit(
        self, times: Floats, values: Floats, samples: Part, interval_s: Floats
    ) -> tuple[Floats, Floats]:
        """Curvature in units of one sample's deviation; what a straight line gives for now."""
        t = np.zeros((len(self._weight), len(interval_s)))
        np.subtract(times, samples.time_s, out=t[:-1])
        t /= interval_s
        y = np.zeros(t.shape)
        np.subtract(values, samples.value, out=y[:-1])
        curve = curvature(t, y, self._weight)
        line = samples.value - curve.above_line
        bend = curve.curvature * curve.spread
        is_unknown = ~(curve.spread > LEAST_SPREAD)
        bend[is_unknown] = 0.0
        np.copyto(line, samples.value, where=is_unknown)
        return bend, line


def curvature(t: Floats, y: Floats, weight: Floats) -> Curve:
    """Fit quadratics to m points of k series, by weighted least squares.

    `t` and `y` float64[m, k] are times and values, `weight` float64[m, 1]; `t` is used up.

    >>> t = np.array([[-3.0], [-2.0], [-0.5], [0.0]])
    >>> curve = curvature(t.copy(), 2.0 * t * t + t, np.ones((4, 1)))
    >>> curve.curvature.round(9).tolist()
    [2.0]
    """
    mass = weight.sum()
    t -= total(weight * t) / mass
    moment = weight * t
    moment *= t
    square = total(moment)
    moment *= t
    cube = total(moment)
    p = t * t
    t *= cube / square
    p -= t
    p -= square / mass
    weighted = weight * p
    spread = total(weighted * p)
    weighted *= y
    found = total(weighted) / spread
    return Curve(found, np.sqrt(spread), found * p[-1])
