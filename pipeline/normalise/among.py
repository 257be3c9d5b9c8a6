"""Which ids of one column occur in another, without sorting either."""

from typing import Final

import numpy as np

from pipeline.model import Bools, UInt64s

_FACTORS: Final = tuple(
    np.uint64(factor) for factor in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
"""Odd; a table each, so that ids which share a place in one do not in the next."""
_SPARSE_BITS: Final = 3


def among(ids: UInt64s, some: UInt64s) -> Bools:
    """bool[len(ids)]: whether an id, none of them 0, is in `some`, of which none is 0 either.

    Each table holds one whole id a place, so a hit is exact; what lost its place to another id is
    looked for in the next table, and after the last (ids made to collide) by sorting.

    >>> among(np.array([1, 2, 3], np.uint64), np.array([3, 9, 3], np.uint64)).tolist()
    [False, False, True]
    """
    found = np.zeros(len(ids), np.bool_)
    for factor in _FACTORS:
        if not len(some):
            return found
        bits = len(some).bit_length() + _SPARSE_BITS
        shift = np.uint64(64 - bits)
        at = ((some * factor) >> shift).view(np.int64)
        table = np.zeros(1 << bits, np.uint64)
        table[at] = some
        found |= table.take(((ids * factor) >> shift).view(np.int64)) == ids
        some = some[table.take(at) != some]
    return found | np.isin(ids, some) if len(some) else found
