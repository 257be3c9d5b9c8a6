"""128-bit series keys -> dense ids, vectorised: open addressing in numpy, no per-key Python.

Enters: `SampleRows.series` (uint64[n, 2]). Leaves: int32 ids below `max_series`, stable while the
series lives, reused after it was removed. A full index refuses new series and counts them; those
that it holds go on.
"""

from typing import Final

import numpy as np

from pipeline.model import Int32s, UInt64s

_EMPTY: Final = -1
_REMOVED: Final = -2
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio
_MIX_2: Final = np.uint64(0xBF58476D1CE4E5B9)  # splitmix64's multiplier
_MIN_TABLE: Final = 1024


class SeriesIndex:
    """Keys and their ids. Order: `add` what arrives, `remove` what is idle; both may repeat."""

    def __init__(self, max_series: int) -> None:
        """At most `max_series` keys at a time (>= 1)."""
        self.max_series = max_series
        self.capacity = 0
        """Length that arrays indexed by id need; grows by doubling up to `max_series`."""
        self._keys: UInt64s = np.zeros((0, 2), np.uint64)
        self._table: Int32s = np.full(_MIN_TABLE, _EMPTY, np.int32)
        self._next = 0
        self._free: list[int] = []
        self._removed = 0

    def __len__(self) -> int:
        """How many keys are held."""
        return self._next - len(self._free)

    def ids(self) -> Int32s:
        """int32[len(self)] ids in use, ascending."""
        held = np.ones(self._next, np.bool_)
        held[self._free] = False
        return np.flatnonzero(held).astype(np.int32)

    def keys(self, ids: Int32s) -> UInt64s:
        """uint64[k, 2] the keys of `ids`."""
        return self._keys[ids]

    def find(self, keys: UInt64s) -> Int32s:
        """int32[n] ids of `keys` uint64[n, 2]; -1 for keys that are not held."""
        ids = np.full(len(keys), -1, np.int32)
        mask = len(self._table) - 1
        pending = np.arange(len(keys))
        position = self._home(keys)
        while len(pending):
            held = self._table[position]
            there = held >= 0
            hit = np.zeros(len(pending), np.bool_)
            hit[there] = (self._keys[held[there]] == keys[pending[there]]).all(axis=1)
            ids[pending[hit]] = held[hit]
            onward = ~hit & (held != _EMPTY)
            pending = pending[onward]
            position = (position[onward] + 1) & mask
        return ids

    def add(self, keys: UInt64s) -> tuple[Int32s, Int32s, int]:
        """Ids of `keys` uint64[n, 2], new ones taken up in order of appearance while there is room.

        Returns int32[n] ids (-1 = refused), int32[k] the ids that are new, and how many of the n
        keys were refused.
        """
        ids = self.find(keys)
        missing = np.flatnonzero(ids < 0)
        if not len(missing):
            return ids, missing.astype(np.int32), 0
        order = np.lexsort((missing, keys[missing, 1], keys[missing, 0]))
        ordered = keys[missing[order]]
        is_first = np.ones(len(missing), np.bool_)
        is_first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
        firsts = np.sort(missing[order][is_first])
        new = self._insert(keys[firsts[: self.max_series - len(self)]])
        ids[missing] = self.find(keys[missing])
        return ids, new, int((ids[missing] < 0).sum())

    def remove(self, ids: Int32s) -> None:
        """Forget the keys of `ids` int32[k], distinct and held; their ids become free."""
        if not len(ids):
            return
        gone = np.zeros(self.capacity + 1, np.bool_)  # the extra entry takes the negative marks
        gone[ids] = True
        places = np.flatnonzero((self._table >= 0) & gone[np.maximum(self._table, 0)])
        self._table[places] = _REMOVED
        self._free += sorted((int(i) for i in ids), reverse=True)
        self._removed += len(ids)
        if self._removed > len(self._table) // 4:
            self._rebuild(len(self._table))

    def _home(self, keys: UInt64s) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        mixed = (keys[:, 0] ^ (keys[:, 1] * _MIX)) * _MIX_2  # keys need not be hashes
        mixed ^= mixed >> np.uint64(32)
        return (mixed & np.uint64(len(self._table) - 1)).astype(np.int64)

    def _insert(self, keys: UInt64s) -> Int32s:
        reused = [self._free.pop() for _ in range(min(len(keys), len(self._free)))]
        fresh = range(self._next, self._next + len(keys) - len(reused))
        self._next = fresh.stop
        ids = np.array([*reused, *fresh], np.int32)
        self._grow()
        self._keys[ids] = keys
        if 2 * (len(self) + self._removed) > len(self._table):
            size = len(self._table)
            while 2 * len(self) > size // 2:
                size *= 2
            self._rebuild(size)
        else:
            self._place(ids)
        return ids

    def _grow(self) -> None:
        if self._next <= self.capacity:
            return
        wanted = max(self._next, 2 * self.capacity, 256)
        self.capacity = min(wanted, self.max_series)
        grown = np.zeros((self.capacity, 2), np.uint64)
        grown[: len(self._keys)] = self._keys
        self._keys = grown

    def _rebuild(self, size: int) -> None:
        self._table = np.full(size, _EMPTY, np.int32)
        self._removed = 0
        self._place(self.ids())

    def _place(self, ids: Int32s) -> None:
        """Put distinct `ids` that are not in the table into it; many at a time, losers move on."""
        mask = len(self._table) - 1
        position = self._home(self._keys[ids])
        while len(ids):
            is_empty = self._table[position] == _EMPTY
            self._table[position[is_empty]] = ids[is_empty]
            lost = self._table[position] != ids
            ids = ids[lost]
            position = (position[lost] + 1) & mask
