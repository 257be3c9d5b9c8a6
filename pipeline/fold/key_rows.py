"""Keys that senders choose -> rows of a bounded table.

A key belongs to a group (a kind to its pool). Keys come, are kept while they are heard of, and go;
a full table refuses new keys and keeps the old ones, since evicting would leave none of them whole.
What is refused counts in its group's overflow row, so nothing is lost from the sum.
"""

from typing import Final

import numpy as np

from pipeline.model import Bools, Int64s, UInt64s
from pipeline.series import SeriesIndex

OVERFLOW: Final = 0
"""The key of what has none, and of what is not kept apart."""

NO_GROUP: Final = -1

MAX_OVERFLOWS: Final = 256
"""Overflow rows beside the keys: one for each pool that there may be, as long as they last."""

LAST_ROW: Final = 0
"""Takes what not even an overflow row is left for; it is that of NO_GROUP."""


class KeyRows:
    """Rows of up to `max_keys` keys, uint64, and of their groups' overflow, int64."""

    def __init__(self, max_keys: int, expire_after_s: int) -> None:
        """`expire` frees keys that were not heard of for `expire_after_s`."""
        self._max_keys = max_keys
        self._expire_after_s = expire_after_s
        self._index = SeriesIndex(max_keys + MAX_OVERFLOWS + 1)
        self._is_key: Bools = np.zeros(0, np.bool_)
        self._heard_s: Int64s = np.zeros(0, np.int64)
        self.size = 0
        """No row is as large as this; it never falls."""
        self._add(_keys(np.full(1, NO_GROUP), OVERFLOW), is_key=False)

    def __len__(self) -> int:
        """How many keys have a row of their own."""
        return int(np.count_nonzero(self._is_key))

    def held(self) -> Int64s:
        """int64[k] the rows in use, in the order of group and key."""
        rows = self._index.ids()
        groups, keys = self.keys(rows)
        return rows[np.lexsort((keys, groups))]

    def keys(self, rows: Int64s) -> tuple[Int64s, UInt64s]:
        """Groups int64[k] and keys uint64[k] of rows in use."""
        both = self._index.keys(rows)
        return np.ascontiguousarray(both[:, 0]).view(np.int64), both[:, 1]

    def rows(self, group: Int64s, key: UInt64s, second: int) -> tuple[Int64s, int]:
        """int64[k] rows of keys heard of in `second`, and how many found no place of their own.

        Which new keys are taken when there is no room for all does not depend on their order.
        """
        both = _keys(group, key)
        row = self._index.find(both)
        refused = 0
        if np.minimum.reduce(row, initial=0) < 0:
            refused = self._admit(both, row)
        self._heard_s[row] = second
        return row, refused

    def expire(self, second: int) -> None:
        """Free the rows that were not heard of for the expiry time."""
        rows = self._index.ids()
        idle = rows[self._heard_s[rows] < second - self._expire_after_s]
        idle = idle[idle != LAST_ROW]
        self._index.remove(idle)
        self._is_key[idle] = False

    def _admit(self, both: UInt64s, row: Int64s) -> int:
        """Fill in the missing rows; returns how many of them went to an overflow row."""
        missing = (row < 0).nonzero()[0]
        room = self._max_keys - len(self)
        if room > 0:
            new = _distinct(both[missing])
            self._add(new[new[:, 1] != OVERFLOW][:room], is_key=True)
            row[missing] = self._index.find(both[missing])
            missing = missing[row[missing] < 0]
        refused = int(np.count_nonzero(both[missing, 1] != OVERFLOW))
        both[missing, 1] = OVERFLOW
        room = MAX_OVERFLOWS + 1 - (len(self._index) - len(self))
        groups = np.unique(both[missing, 0])
        is_new = self._index.find(_keys(groups, OVERFLOW)) < 0
        self._add(_keys(groups[is_new][:room], OVERFLOW), is_key=False)
        found = self._index.find(both[missing])
        row[missing] = np.where(found < 0, LAST_ROW, found)
        return refused

    def _add(self, both: UInt64s, *, is_key: bool) -> None:
        rows, *_ = self._index.add(both)
        more = self._index.capacity - len(self._is_key)
        if more > 0:
            self._is_key = np.concatenate((self._is_key, np.zeros(more, np.bool_)))
            self._heard_s = np.concatenate((self._heard_s, np.zeros(more, np.int64)))
        self._is_key[rows] = is_key
        self.size = max(self.size, int(np.maximum.reduce(rows, initial=-1)) + 1)


def _keys(group: Int64s | UInt64s, key: UInt64s | int) -> UInt64s:
    both = np.empty((len(group), 2), np.uint64)
    both[:, 0] = group.view(np.uint64)
    both[:, 1] = key
    return both


def _distinct(both: UInt64s) -> UInt64s:
    """Each pair once, in order."""
    both = both[np.lexsort((both[:, 1], both[:, 0]))]
    is_first = np.ones(len(both), np.bool_)
    is_first[1:] = (both[1:] != both[:-1]).any(axis=1)
    return both[is_first]
