"""Whole columns of 64-bit keys -> small ids, from fixed memory: a cache before slower tables.

Every key has one place; a newer key may take it, so a known key may be forgotten, but never taken
for another.
"""

from typing import Final

import numpy as np

from pipeline.model import Bools, Int32s, Int64s, UInt64s

FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
"""Odd, near 2^64 over the golden ratio: the high bits of a product depend on all bits of a key."""


class Places:
    """uint64 keys -> int32 ids >= 0; key 0 always has id 0.

    >>> places = Places(4)
    >>> places.put(np.array([7], np.uint64), np.array([3], np.int32))
    >>> ids, is_known = places.find(np.array([7, 8], np.uint64))
    >>> ids[is_known].tolist(), is_known.tolist()
    ([3], [True, False])
    """

    def __init__(self, bits: int) -> None:
        """Room for 2^bits keys, 12 bytes each."""
        self._shift = np.uint64(64 - bits)
        self._keys = np.zeros(1 << bits, np.uint64)
        self._ids = np.zeros(1 << bits, np.int32)

    @property
    def nbytes(self) -> int:
        """Memory, in bytes; it never changes."""
        return self._keys.nbytes + self._ids.nbytes

    def find(self, keys: UInt64s) -> tuple[Int32s, Bools]:
        """int32[n] ids and bool[n] whether each is known; an unknown key's id means nothing."""
        at = self._at(keys)
        return self._ids.take(at), self._keys.take(at) == keys

    def put(self, keys: UInt64s, ids: Int32s) -> None:
        """Remember ids; of keys that share a place the last is kept, none in the place of 0."""
        at = self._at(keys)
        kept = at > 0
        at = at[kept]
        self._keys[at] = keys[kept]
        self._ids[at] = ids[kept]

    def clear(self) -> None:
        """Forget all keys."""
        self._keys.fill(0)
        self._ids.fill(0)

    def _at(self, keys: UInt64s) -> Int64s:
        return ((keys * FACTOR) >> self._shift).view(np.int64)
