"""One endpoint by all its signals: many that are a little unusual, or two that drifted far.

Enters: what `PeaksOverThreshold.measure` says of each signal. Leaves: one number an endpoint, more
= less usual, with no scale of its own: a budget of alarms on past scores gives the threshold. The
sum over signals is Fisher's way of combining tests; the largest few tell of faults in few signals.
Source: R. A. Fisher 1932, "Statistical Methods for Research Workers", section 21.1.
"""

from typing import Final

import numpy as np

from pipeline.model import Floats

LARGEST: Final = 2
"""Signals whose drift counts by itself: one alone may be a counter that broke."""
DRIFT_WEIGHT: Final = 0.1
MOST_DRIFT: Final = 15.0
"""Orders of magnitude that a drift counts for at most: exponential tails have no end."""


def unusualness(unusual: Floats, drifted: Floats) -> Floats:
    """float64[e] of `unusual` and `drifted` float64[e, m], both >= 0; NaN where nothing is known.

    Signals that are not known (NaN in `unusual`) are left out.

    >>> unusualness(np.array([[4.0, 0.0, np.nan]]), np.array([[0.0, 20.0, 40.0]])).tolist()
    [3.0]
    """
    known = ~np.isnan(unusual)
    count = known.sum(axis=1)
    total = np.where(known, unusual, 0.0).sum(axis=1)
    drift = np.where(known, drifted, 0.0)
    first = min(LARGEST, drift.shape[1])
    largest = np.partition(drift, drift.shape[1] - first, axis=1)[:, drift.shape[1] - first :]
    far = np.minimum(largest.sum(axis=1) / LARGEST, MOST_DRIFT)
    mean = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
    joint: Floats = mean + DRIFT_WEIGHT * far
    return joint
