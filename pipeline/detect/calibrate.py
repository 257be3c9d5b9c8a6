"""One scale for every detector: signed -log10 of the tail probability, from standardised residuals.

Enters: z float64[k], robustly standardised. Leaves: scores, uncapped. Peaks over a threshold: how
often z lies beyond it and how far, per side, give a generalised Pareto tail whose shape is bounded
(Siffer et al., "Anomaly Detection in Streams with Extreme Value Theory", KDD 2017; moments instead
of likelihood, which diverges on ties). A budget of false alarms gives the threshold.
"""

import math
from typing import Final

import numpy as np

from pipeline.model import Bools, Floats, Int64s

LN_10: Final = math.log(10.0)
BODY_SCORE: Final = 0.3
"""Score at the threshold of a side on which a quarter of all values lies beyond: the most that the
body of the distribution gets, where the score is a rank and no probability."""
MOST_SHAPE: Final = 0.3
"""Of the Pareto tail; 0 is exponential. Moments tell nothing above a half."""
LEAST_SHAPE: Final = 1e-3
"""Below it the tail is exponential to the digits that count."""
LEAST_VARIANCE: Final = 1e-3
"""Of excesses, over their squared mean; below 1 the shape is 0 anyway."""
EXCESS_LIMIT: Final = 5.0
"""Mean excesses that one excess counts for at most: with more, an incident becomes the tail and
hides the next one; with less, a fat tail (Student, 4 degrees) exceeds a score of 3 too often."""
LONG_RUN: Final = 5.0
"""After so many samples beyond in a row, the next ones are one incident and weigh a twentieth."""
LONG_RUN_WEIGHT: Final = 0.05
EXTREME_EXCESS: Final = 8.0
EXTREME_WEIGHT: Final = 0.4
"""What lies so many mean excesses out, once in 100,000 samples, teaches less: what recurs is
learned within some tens of times, but no incident within its own first samples."""
PRIOR_SAMPLES: Final = 100.0
PRIOR_EXCESSES: Final = 4.0
PRIOR_SHAPE: Final = 20.0
"""Excesses that an exponential tail is taken to have shown: a fat one costs power, and few tell."""
ROUNDS: Final = 4
"""Of the inversion: two digits from a score of 1 on."""
DAY_S: Final = 86_400.0
MOST_RATE: Final = 0.1
"""Alarms a sample; above it a score is no probability (see `BODY_SCORE`)."""


def threshold(budget_per_day: float, interval_s: float) -> float:
    """The score that a series exceeds `budget_per_day` times a day when nothing is wrong.

    One alarm in a thousand samples, and the default of a fleet (1e-4 a day at 15 s):

    >>> threshold(86.4, 1.0), round(threshold(1e-4, 15.0), 2)
    (3.0, 7.76)
    """
    if not budget_per_day > 0.0 or not interval_s > 0.0:
        raise ValueError("a budget and an interval are above 0")
    return -math.log10(min(MOST_RATE, budget_per_day * interval_s / DAY_S))


class Tail:
    """The tails of many series; its facts are the last `len(facts)` lines of a detector's state."""

    def __init__(
        self,
        *,
        threshold: float = 2.0,
        share: float = 0.0228,
        excess: float = 0.5,
        memory: float = 4000.0,
    ) -> None:
        """Beyond `threshold` is the tail; a young series has `share` of its values there, a side.

        `excess` is the mean of what lies beyond, in z, before it is learned (a normal tail has
        0.37); `memory` the samples that shares and excesses are learned over.
        """
        self._threshold = threshold
        self._slope = BODY_SCORE / threshold if threshold > 0.0 else 0.0
        self._memory = memory
        self._least_share = 0.5 / memory
        square = 2.0 * excess * excess
        self.facts: dict[str, float] = {
            "share_up": share,
            "share_down": share,
            "excess_up": excess,
            "excess_down": excess,
            "square_up": square,
            "square_down": square,
            "beyond": 0.0,
        }
        """Shares, mean excesses, mean squared excesses, samples beyond in a row."""

    def score(self, z: Floats, lines: Floats, count: Floats) -> Floats:
        """float64[k] scores of `z`, of series with `count` samples before; NaN stays NaN."""
        size = np.abs(z)
        score = size * self._slope
        beyond = np.flatnonzero(size > self._threshold)
        if len(beyond):
            excess = size.take(beyond)
            excess -= self._threshold
            share, mean, square = _side_facts(lines, z, beyond)
            seen = self._seen(share, count, beyond)
            score[beyond] = _tail_score(excess, share, mean, square, seen)
        return np.copysign(score, z, out=score)

    def learn(self, z: Floats, lines: Floats, count: Floats) -> None:
        """Take up `z`, of series with `count` samples before; NaN teaches nothing."""
        share_up, share_down, beyond = lines[0], lines[1], lines[6]
        is_up, is_down = z > self._threshold, z < -self._threshold
        is_beyond = is_up | is_down
        np.multiply(beyond + 1.0, is_beyond, out=beyond)
        weight = self._weights(z, beyond, count)
        for share, is_there in ((share_up, is_up), (share_down, is_down)):
            change = is_there - share
            change *= weight
            np.add(share, change, out=share)
            np.maximum(share, self._least_share, out=share)
        places = np.flatnonzero(is_beyond)
        if len(places):
            self._learn_excess(z, lines, count, places)

    def _weights(self, z: Floats, beyond: Floats, count: Floats) -> Floats:
        weight = count + PRIOR_SAMPLES
        np.minimum(weight, self._memory, out=weight)
        np.divide(1.0, weight, out=weight)
        weight[beyond > LONG_RUN] *= LONG_RUN_WEIGHT
        weight[np.isnan(z)] = 0.0
        return weight

    def _learn_excess(self, z: Floats, lines: Floats, count: Floats, places: Int64s) -> None:
        side = _side(z, places)
        share, mean, square = _side_facts(lines, z, places)
        excess = np.abs(z.take(places))
        excess -= self._threshold
        weight = np.where(excess > EXTREME_EXCESS * mean, EXTREME_WEIGHT, 1.0)
        weight[lines[6].take(places) > LONG_RUN] *= LONG_RUN_WEIGHT
        weight /= self._seen(share, count, places) + PRIOR_EXCESSES
        np.minimum(excess, EXCESS_LIMIT * mean, out=excess)
        lines[2 + side, places] = mean + weight * (excess - mean)
        lines[4 + side, places] = square + weight * (excess * excess - square)

    def _seen(self, share: Floats, count: Floats, places: Int64s) -> Floats:
        """How many excesses the tails of `places` are known by."""
        seen = np.minimum(count.take(places), self._memory)
        seen *= share
        return seen


def _side(z: Floats, places: Int64s) -> Int64s:
    is_down: Bools = z.take(places) < 0.0
    return is_down.astype(np.int64)


def _side_facts(lines: Floats, z: Floats, places: Int64s) -> tuple[Floats, Floats, Floats]:
    """Share, mean excess and mean squared excess on the sides on which `z` lies."""
    side = _side(z, places)
    return lines[side, places], lines[2 + side, places], lines[4 + side, places]


def _tail_score(
    excess: Floats, share: Floats, mean: Floats, square: Floats, seen: Floats
) -> Floats:
    """-log10 of the two-sided probability of an excess at least as large."""
    mean_square = mean * mean
    variance = np.maximum(square - mean_square, LEAST_VARIANCE * mean_square)
    shape = np.clip(0.5 * (1.0 - mean_square / variance), 0.0, MOST_SHAPE)
    shape *= seen / (seen + PRIOR_SHAPE)
    y = excess / (mean * (1.0 - shape))
    fat = np.flatnonzero(shape > LEAST_SHAPE)
    if len(fat):
        of_fat = shape.take(fat)
        y[fat] = np.log1p(y.take(fat) * of_fat) / of_fat
    y /= LN_10
    y += np.maximum(-np.log10(2.0 * share), BODY_SCORE)
    return y


def normal_deviate(score: Floats) -> Floats:
    """The normal deviates that are as unlikely as signed, two-sided scores; NaN stays NaN.

    By Birnbaum's bound of Mills' ratio, turned round; below `BODY_SCORE`, where a score is a rank,
    the deviate grows with it in a straight line.

    >>> normal_deviate(np.array([0.15, 1.301, -3.0, 100.0])).round(2).tolist()
    [0.41, 1.98, -3.3, 21.31]
    """
    size = np.abs(score)
    deviate = size * (_far_deviate(np.array([BODY_SCORE])) / BODY_SCORE)
    far = np.flatnonzero(size > BODY_SCORE)
    deviate[far] = _far_deviate(size[far])
    return np.copysign(deviate, score, out=deviate)


def _far_deviate(size: Floats) -> Floats:
    exponent = 2.0 * LN_10 * size + 2.0 * math.log(2.0) - math.log(2.0 * math.pi)
    square = exponent
    for _ in range(ROUNDS):
        mills = 0.5 * (np.sqrt(square) + np.sqrt(square + 8.0 / math.pi))
        square = np.maximum(exponent - 2.0 * np.log(mills), 0.0)
    return np.sqrt(square)


def chi_squared_deviate(statistic: Floats, freedom: Floats) -> Floats:
    """Normal deviates of chi-squared values (Wilson and Hilferty 1931); NaN without freedom.

    >>> chi_squared_deviate(np.array([10.0, 31.41]), np.array([20.0, 20.0])).round(2).tolist()
    [-1.85, 1.65]
    """
    spread = 2.0 / (9.0 * freedom)
    root = np.cbrt(np.maximum(statistic, 0.0) / freedom)
    deviate: Floats = (root - (1.0 - spread)) / np.sqrt(spread)
    return deviate
