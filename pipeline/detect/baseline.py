"""Exponentially weighted level and scale over irregular time, which anomalies hardly teach.

Enters: lines of state (float64[k] each, changed in place) and values. Invariants: score first, then
learn; a weight is 1 - exp(-steps / memory) with time in observed intervals, never less than
1 / (samples + 1), so that a young level is a plain mean; beyond 4 sigma a value weighs a tenth
(Huber's idea: 0 never adapts, 1 hides the next incident), and a shift that lasts is accepted.
"""

from typing import Final

import numpy as np

from pipeline.model import Bools, Floats, Int64s

GAP_STEPS: Final = 3.0
"""After more observed intervals than this the last sample is no neighbour any more."""
INTERVAL_WEIGHT: Final = 0.2
"""Of a new interval in the observed one: about the last ten."""
INTERVAL_LIMIT: Final = 4.0
"""One outage does not make a fast series a slow one."""
SIGMA_PER_MEAN_DEVIATION: Final = 1.2533141373155001
"""sqrt(pi / 2): of a normal distribution."""
OUTLYING: Final = 4.0
"""Sigmas from which on a value is not trusted to teach."""
OUTLIER_WEIGHT: Final = 0.1
TINY: Final = 1e-300
"""A floor where the unit has none: nothing is divided by zero."""
MOST_Z: Final = 1e9
"""Keeps squares finite; far beyond any threshold."""
RUN_MEMORY: Final = 20.0
"""Samples of a lasting shift that tell its level."""


def steps_since(last_s: Floats, interval_s: Floats, time_s: Floats) -> tuple[Floats, Bools]:
    """Time since the last sample in observed intervals, at most `GAP_STEPS`; where it was a gap.

    NaN for the first two samples of a series. A gap weighs as much as the longest neighbourhood:
    it changes no more than that.

    >>> steps, is_gap = steps_since(np.array([0.0, 0.0]), np.array([10.0, 10.0]),
    ...                             np.array([10.0, 99.0]))
    >>> steps.tolist(), is_gap.tolist()
    ([1.0, 3.0], [False, True])
    """
    steps = time_s - last_s
    steps /= interval_s
    is_gap = steps > GAP_STEPS
    return np.minimum(steps, GAP_STEPS, out=steps), is_gap


def keep_time(last_s: Floats, interval_s: Floats, time_s: Floats) -> None:
    """Learn the observed interval and remember when the last sample was."""
    elapsed_s = time_s - last_s
    more_s = np.fmin(elapsed_s, INTERVAL_LIMIT * interval_s)
    more_s -= interval_s
    more_s *= INTERVAL_WEIGHT
    more_s += interval_s
    np.copyto(interval_s, np.where(np.isnan(interval_s), elapsed_s, more_s))
    np.copyto(last_s, time_s)


def weights(steps: Floats, count: Floats, memory: float) -> Floats:
    """float64[k] weight of a new sample after `steps` for a `memory` in observed intervals.

    >>> weights(np.array([np.nan, 1.0]), np.array([0.0, 1e6]), 10.0).round(3).tolist()
    [1.0, 0.095]
    """
    weight = np.exp(steps * (-1.0 / memory))
    np.subtract(1.0, weight, out=weight)
    young = 1.0 / (count + 1.0)
    kept: Floats = np.fmax(weight, young)
    return kept


def sigma_of(scale: Floats, level: Floats, floor: Floats, relative_floor: float) -> Floats:
    """Sigma from a mean absolute deviation: not below the unit's floor nor a share of the level."""
    sigma = scale * SIGMA_PER_MEAN_DEVIATION
    np.maximum(sigma, floor, out=sigma)
    least = np.abs(level)
    least *= relative_floor
    return np.maximum(sigma, least, out=sigma)


def standardised(residual: Floats, sigma: Floats) -> Floats:
    """Residual over sigma, bounded to `MOST_Z`."""
    z = residual / sigma
    return np.clip(z, -MOST_Z, MOST_Z, out=z)


class Deviation:
    """What is usual around a level: the lines scale, run and run_level of a detector.

    A run counts outlying samples on one side, signed; after `accept` of them in a row the level is
    where they were, and the run is over.
    """

    def __init__(self, *, accept: float, warm_up: float) -> None:
        """`accept` samples make a shift the new level; before `warm_up` nothing is outlying."""
        self._accept = accept
        self._warm_up = warm_up

    def outlying(self, residual: Floats, sigma: Floats, count: Floats) -> Bools:
        """Where a residual is beyond `OUTLYING` sigma of a series that is known well enough."""
        is_out = np.abs(residual) > OUTLYING * sigma
        is_out &= count >= self._warm_up
        return is_out

    def learn_scale(
        self, scale: Floats, residual: Floats, sigma: Floats, count: Floats, weight: Floats
    ) -> None:
        """Move the mean absolute deviation; an outlier counts as one of `OUTLYING` sigma."""
        size = np.abs(residual)
        limit = sigma * OUTLYING
        limit[count < self._warm_up] = np.inf
        np.minimum(size, limit, out=size)
        size -= scale
        size *= weight
        size[count == 0.0] = 0.0  # there was no level yet
        scale += size

    def accepted(
        self, run: Floats, run_level: Floats, is_out: Bools, residual: Floats, value: Floats
    ) -> Int64s:
        """Count runs; int64[j] places where one has lasted long enough, its run begins anew."""
        run *= is_out
        out = np.flatnonzero(is_out)
        if not len(out):
            return out
        side = np.sign(residual.take(out))
        length = run.take(out)
        length = np.where(length * side > 0.0, length + side, side)
        size = np.abs(length)
        level = run_level.take(out)
        level += (value.take(out) - level) / np.minimum(size, RUN_MEMORY)
        run[out], run_level[out] = length, level
        done = out[size >= self._accept]
        run[done] = 0.0
        return done


def protected(weight: Floats, is_out: Bools) -> Floats:
    """`weight`, a tenth of it where a value is outlying; a copy."""
    kept = weight * OUTLIER_WEIGHT
    return np.where(is_out, kept, weight)
