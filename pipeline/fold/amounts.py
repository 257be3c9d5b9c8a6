"""What rows add to counts, as whole numbers: sums then depend neither on order nor on batches.

Counts are in fixed point, since a sampled request stands for a fraction more than a whole number of
requests (OpenTelemetry, "Probability Sampling": adjusted counts).
"""

from typing import Final

import numpy as np

from pipeline.fold.buckets import ALL, Some
from pipeline.model import Floats, Int64s

ONE: Final = 1024
"""Fixed point of counts."""

MAX_WEIGHT: Final = 1e4
MAX_TOKENS: Final = 1e7
"""Bounds on what one row may add, far above any real one: senders may write any number."""

EXACT: Final = 1 << 53
"""Below this, sums of whole numbers are exact in float64."""


def known(values: Floats) -> Some:
    """The rows that are not NaN."""
    missing = np.isnan(values)
    return (~missing).nonzero()[0] if np.count_nonzero(missing) else ALL


def picked_weight(weight: Int64s | int, some: Some) -> Int64s | int:
    """The weights of some rows."""
    return weight if isinstance(weight, int) else weight[some]


def fixed_point(weight: Floats) -> Int64s | int:
    """Weights in units of 1 / ONE: one number where all requests stand for themselves.

    >>> fixed_point(np.array([1.0, 1.0])), fixed_point(np.array([1.0, 2.5]))
    (1024, array([1024, 2560]))
    """
    if not np.count_nonzero(weight != 1.0):
        return ONE
    fixed: Int64s = np.rint(np.clip(weight, 0.0, MAX_WEIGHT) * ONE).astype(np.int64)
    return fixed


def whole_requests(weight: Int64s | int) -> Int64s | int:
    """How many requests each row is in a sketch: the nearest whole number, at least one.

    >>> whole_requests(fixed_point(np.array([1.0, 0.2, 3.4])))
    array([1, 1, 3])
    """
    if isinstance(weight, int):
        return 1
    return np.maximum((weight + ONE // 2) // ONE, 1)


def bounded_tokens(tokens: Floats) -> Floats:
    """Token counts within 0 and MAX_TOKENS; there are no NaN."""
    bounded = np.maximum(tokens, 0.0)
    return np.minimum(bounded, MAX_TOKENS, out=bounded)


def weighted_tokens(tokens: Floats, weight: Int64s | int) -> Floats:
    """Token counts times fixed-point weights [k] or one for all: whole numbers, no NaN goes in."""
    amount = bounded_tokens(tokens)
    amount *= weight
    return np.rint(amount, out=amount)


def sums(cell: Int64s, amount: Floats | Int64s | int, size: int) -> Int64s:
    """int64[size]: exact sums of whole `amount` >= 0, [k] or one for all, by `cell` [k] < size.

    >>> sums(np.array([2, 0, 2]), np.array([5, 6, 7]), 3).tolist()
    [6, 0, 12]
    """
    if isinstance(amount, int):
        return np.bincount(cell, minlength=size) * amount
    if len(amount) * float(np.maximum.reduce(amount, initial=0)) < EXACT:
        return np.bincount(cell, weights=amount, minlength=size).astype(np.int64)
    total = np.zeros(size, np.int64)
    np.add.at(total, cell, amount.astype(np.int64))
    return total
