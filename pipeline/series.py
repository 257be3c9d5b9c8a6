"""128-bit series keys -> dense ids, vectorised: open addressing in numpy, no per-key Python.

Enters: keys, uint64[n, 2]. Leaves: int64 ids below `max_series`, stable while the series lives,
reused after it was removed. A full index refuses new series and counts them; those that it holds
go on. The table is kept three quarters empty, so that nearly every key is found at its home; the
others a few places on, which are compared all at once.
"""

from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from pipeline.model import Bools, Int32s, Int64s, UInt64s

_EMPTY: Final = -1
_REMOVED: Final = -2
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio
_MIX_2: Final = np.uint64(0xBF58476D1CE4E5B9)  # splitmix64's multiplier
_MIN_BITS: Final = 10
_T = TypeVar("_T", bound=np.generic)
_STEPS: Final = np.arange(8)  # places compared at once beyond a key's home


class SeriesIndex:
    """Keys and their ids. Order: `add` what arrives, `remove` what is idle; both may repeat."""

    def __init__(self, max_series: int) -> None:
        """At most `max_series` keys at a time (>= 1)."""
        self.max_series = max_series
        self.capacity = 0
        """Length that arrays indexed by id need; grows by doubling up to `max_series`."""
        # One entry more than there are ids: the marks below 0 read it, and never match.
        self._first: UInt64s = np.zeros(1, np.uint64)
        self._second: UInt64s = np.zeros(1, np.uint64)
        self._held: Bools = np.zeros(1, np.bool_)
        self._next = 0
        self._free: list[int] = []
        self._removed = 0
        self._empty(_MIN_BITS)

    def __len__(self) -> int:
        """How many keys are held."""
        return self._next - len(self._free)

    def ids(self) -> Int64s:
        """int64[len(self)] ids in use, ascending."""
        return np.flatnonzero(self._held)

    def keys(self, ids: Int64s) -> UInt64s:
        """uint64[k, 2] the keys of `ids`."""
        return np.stack([self._first[ids], self._second[ids]], axis=1)

    def holds(self, ids: Int64s, keys: UInt64s) -> bool:
        """Whether all `keys` uint64[n, 2] have the `ids` int64[n], from 0 to `capacity`."""
        same = self._first.take(ids) == keys[:, 0]
        same &= self._second.take(ids) == keys[:, 1]
        same &= self._held.take(ids)
        return int(np.count_nonzero(same)) == len(same)

    def find(self, keys: UInt64s) -> Int64s:
        """int64[n] ids of `keys` uint64[n, 2]; -1 for keys that are not held."""
        first, second = keys[:, 0], keys[:, 1]
        home = self._home(first, second)
        ids = self._table.take(home).astype(np.int64)
        hit = self._first.take(ids, mode="wrap") == first
        hit &= self._second.take(ids, mode="wrap") == second
        hit &= ids >= 0
        if not hit.all():
            missed = np.flatnonzero(~hit)
            places = self._search(first[missed], second[missed], home[missed])
            ids[missed] = np.where(places >= 0, self._table[places], -1)
        return ids

    def add(self, keys: UInt64s) -> tuple[Int64s, Int64s, int]:
        """Ids of `keys` uint64[n, 2], new ones taken up in order of appearance while there is room.

        Returns int64[n] ids (-1 = refused), int64[k] the ids that are new, and how many of the n
        keys were refused.
        """
        ids = self.find(keys)
        if not len(ids) or ids.min() >= 0:
            return ids, ids[:0], 0
        missing = np.flatnonzero(ids < 0)
        order = np.lexsort((missing, keys[missing, 1], keys[missing, 0]))
        ordered = keys[missing[order]]
        is_first = np.ones(len(missing), np.bool_)
        is_first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
        firsts = np.sort(missing[order][is_first])
        new = self._insert(keys[firsts[: self.max_series - len(self)]])
        ids[missing] = self.find(keys[missing])
        return ids, new, int((ids[missing] < 0).sum())

    def remove(self, ids: Int64s) -> None:
        """Forget the keys of `ids` int64[k], distinct and held; their ids become free."""
        if not len(ids):
            return
        first, second = self._first[ids], self._second[ids]
        self._table[self._search(first, second, self._home(first, second))] = _REMOVED
        self._held[ids] = False
        self._free += np.sort(ids)[::-1].tolist()
        self._removed += len(ids)
        if self._removed > len(self._table) // 8:
            self._rebuild(self._bits)

    def _home(self, first: UInt64s, second: UInt64s) -> Int64s:
        """Where each key belongs: keys need not be hashes."""
        mixed = second * _MIX
        mixed ^= first
        mixed *= _MIX_2
        mixed >>= self._shift
        return mixed.view(np.int64)

    def _search(self, first: UInt64s, second: UInt64s, home: Int64s) -> Int64s:
        """int64[k] places in the table of keys that may lie beyond their homes; -1 = nowhere."""
        places = np.full(len(first), -1, np.int64)
        pending = np.arange(len(first))
        while len(pending):
            window = (home[:, None] + _STEPS) & (len(self._table) - 1)
            held = self._table[window]
            hit = (self._first[held] == first[:, None]) & (self._second[held] == second[:, None])
            hit &= held >= 0
            row, step = np.nonzero(hit)
            places[pending[row]] = window[row, step]
            on = np.flatnonzero(~(hit | (held == _EMPTY)).any(axis=1))
            pending, first, second = pending[on], first[on], second[on]
            home = home[on] + len(_STEPS)
        return places

    def _insert(self, keys: UInt64s) -> Int64s:
        reused = [self._free.pop() for _ in range(min(len(keys), len(self._free)))]
        fresh = range(self._next, self._next + len(keys) - len(reused))
        self._next = fresh.stop
        ids = np.array([*reused, *fresh], np.int64)
        self._grow()
        self._first[ids], self._second[ids] = keys[:, 0], keys[:, 1]
        self._held[ids] = True
        bits = self._bits
        while 4 * len(self) > 1 << bits:
            bits += 1
        if bits > self._bits:
            self._rebuild(bits)
        else:
            self._place(ids)
        return ids

    def _grow(self) -> None:
        if self._next <= self.capacity:
            return
        self.capacity = min(max(self._next, 2 * self.capacity, 256), self.max_series)
        more = self.capacity + 1 - len(self._held)
        self._held = _longer(self._held, more)
        self._first, self._second = _longer(self._first, more), _longer(self._second, more)

    def _rebuild(self, bits: int) -> None:
        self._empty(bits)
        self._place(self.ids())

    def _empty(self, bits: int) -> None:
        self._bits, self._shift = bits, np.uint64(64 - bits)
        self._table: Int32s = np.full(1 << bits, _EMPTY, np.int32)
        self._removed = 0

    def _place(self, ids: Int64s) -> None:
        """Put distinct `ids` that are not in the table into it; many at a time, losers move on."""
        mask = len(self._table) - 1
        position = self._home(self._first[ids], self._second[ids])
        while len(ids):
            is_empty = self._table[position] == _EMPTY
            self._table[position[is_empty]] = ids[is_empty]
            lost = self._table[position] != ids
            ids = ids[lost]
            position = (position[lost] + 1) & mask


def _longer(column: npt.NDArray[_T], more: int) -> npt.NDArray[_T]:
    grown = np.zeros(len(column) + more, column.dtype)
    grown[: len(column)] = column
    return grown
