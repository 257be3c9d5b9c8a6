"""Strings that outlive their batch: a bounded table that owns them.

Batches bring strings as codes into their own `Dictionary`; whoever keeps a string gives it an id
here. Lookups go by 64-bit hash first and then compare the whole key, so equal hashes of different
strings stay apart. A full table refuses new strings and counts them; ids are reused only after
`expire` or `discard` freed them.
"""

from typing import Final

import numpy as np
import xxhash

from pipeline.model import Bools, Dictionary, Int32s, Int64s, UInt64s

MAX_KEY_BYTES: Final = 1024
"""Longer strings are refused: kept strings come from senders, who may choose them."""


def hash64(key: bytes) -> int:
    """XXH3 of `key` as a `Dictionary` carries it.

    >>> hex(hash64(b""))
    '0x2d06800538d394c2'
    """
    return int(xxhash.xxh3_64_intdigest(key))


class Symbols:
    """A bounded table of owned strings with ids 0..capacity-1."""

    def __init__(self, capacity: int, expire_after_ns: int | None = None) -> None:
        """Hold up to `capacity` strings; `expire` frees those unused for `expire_after_ns`."""
        self.capacity = capacity
        self.refused = 0
        """Strings not taken because the table was full or they were too long."""
        self._expire_after_ns = expire_after_ns
        self._ids: dict[bytes, int] = {}
        self._keys: list[bytes | None] = []
        self._hashes: list[int] = []
        self._used_ns: list[int] = []
        self._free: list[int] = []
        self._index: _Index | None = None

    def __len__(self) -> int:
        """How many strings are held."""
        return len(self._ids)

    def text(self, symbol: int) -> str:
        """The string behind an id; "" for -1 and for freed ids."""
        if symbol < 0:
            return ""
        return (self._keys[symbol] or b"").decode("utf-8", "replace")

    def add(self, key: bytes, now_ns: int = 0) -> int:
        """The id of `key`, newly given if need be; -1 when refused (counted)."""
        symbol = self._ids.get(key)
        if symbol is not None:
            self._used_ns[symbol] = now_ns
            return symbol
        if len(self._ids) >= self.capacity or len(key) > MAX_KEY_BYTES:
            self.refused += 1
            return -1
        return self._insert(key, now_ns)

    def _insert(self, key: bytes, now_ns: int) -> int:
        if self._free:
            symbol = self._free.pop()
            self._keys[symbol], self._hashes[symbol] = key, hash64(key)
            self._used_ns[symbol] = now_ns
        else:
            symbol = len(self._keys)
            self._keys.append(key)
            self._hashes.append(hash64(key))
            self._used_ns.append(now_ns)
        self._ids[key] = symbol
        self._index = None
        return symbol

    def get(self, key: bytes) -> int:
        """The id of `key`, or -1."""
        return self._ids.get(key, -1)

    def find(self, strings: Dictionary, codes: Int32s) -> Int32s:
        """int32[k] ids of the strings behind `codes` int32[k]; -1 where unknown or absent."""
        found = np.full(len(codes), -1, np.int32)
        if not len(codes) or not self._ids:
            return found
        if self._index is None:
            self._index = _Index.of(self._ids, self._hashes)
        present = np.flatnonzero(codes >= 0)
        if len(present):
            found[present] = self._index.find(strings, codes[present])
        return found

    def discard(self, symbol: int) -> None:
        """Free one id."""
        key = self._keys[symbol]
        if key is not None:
            del self._ids[key]
            self._keys[symbol] = None
            self._free.append(symbol)
            self._index = None

    def expire(self, now_ns: int) -> list[int]:
        """Free and return the ids not added again for the expiry time."""
        if self._expire_after_ns is None:
            return []
        horizon_ns = now_ns - self._expire_after_ns
        old = [s for s in self._ids.values() if self._used_ns[s] < horizon_ns]
        for symbol in old:
            self.discard(symbol)
        return old


class _Index:
    """The held strings by hash, as arrays, for lookups of whole columns."""

    def __init__(self, hashes: UInt64s, ids: Int32s, data: bytes, offsets: Int64s) -> None:
        self._hashes = hashes
        self._ids = ids
        self._data = np.frombuffer(data, np.uint8)
        self._offsets = offsets
        self._lengths = np.diff(offsets)
        same = hashes[1:] == hashes[:-1]
        self._longest_run = 1 + (int(same.sum()) if len(hashes) else 0)

    @classmethod
    def of(cls, ids: dict[bytes, int], hashes: list[int]) -> "_Index":
        ordered = sorted(ids.items(), key=lambda item: (hashes[item[1]], item[0]))
        keys = [key for key, _ in ordered]
        symbols = np.array([symbol for _, symbol in ordered], np.int32)
        lengths = np.array([len(key) for key in keys], np.int64)
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        sorted_hashes = np.array([hashes[symbol] for _, symbol in ordered], np.uint64)
        return cls(sorted_hashes, symbols, b"".join(keys), offsets)

    def find(self, strings: Dictionary, codes: Int32s) -> Int32s:
        wanted = strings.hashes[codes]
        at = np.searchsorted(self._hashes, wanted)
        found = np.full(len(codes), -1, np.int32)
        for step in range(self._longest_run):  # one step, unless hashes of held strings collide
            here = np.minimum(at + step, len(self._hashes) - 1)
            open_ = np.flatnonzero((self._hashes[here] == wanted) & (found < 0))
            if not len(open_):
                break
            equal = self._equal(strings, codes[open_], here[open_])
            found[open_[equal]] = self._ids[here[open_[equal]]]
        return found

    def _equal(self, strings: Dictionary, codes: Int32s, rows: Int64s) -> Bools:
        starts = strings.offsets[codes].astype(np.int64)
        lengths = strings.offsets[codes + 1].astype(np.int64) - starts
        equal: Bools = np.equal(lengths, self._lengths[rows])
        picked = np.flatnonzero(equal)
        width = int(lengths[picked].max()) if len(picked) else 0
        if width:
            column = np.arange(width)
            theirs = np.frombuffer(strings.data, np.uint8)
            inside = column < lengths[picked, None]
            left = np.minimum(starts[picked, None] + column, len(theirs) - 1)
            right = np.minimum(self._offsets[rows[picked], None] + column, len(self._data) - 1)
            same = (theirs[left] == self._data[right]) | ~inside
            equal[picked] = same.all(axis=1)
        return equal
