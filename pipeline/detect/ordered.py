"""Sums in one order, whatever the shape of the arrays: numpy's own may take another one."""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

_T = TypeVar("_T", bound=np.floating)


def total(rows: npt.NDArray[_T]) -> npt.NDArray[_T]:
    """Sums [k] over the first axis of [m, k], m >= 1, from the first row to the last.

    >>> total(np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [4.0, 6.0]
    """
    summed: npt.NDArray[_T] = rows[0].copy()
    for row in rows[1:]:
        summed += row
    return summed
