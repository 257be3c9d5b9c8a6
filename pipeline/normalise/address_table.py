"""From (host, port), as columns hold them, to endpoint slots: whole columns at once.

Known addresses lie in hash tables of arrays. A row's hash leads to one candidate a table; the
candidate is the answer only if port and whole text are equal, so no forged hash confuses hosts.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.address import MAX_PORT, Address
from pipeline.model import Bools, Dictionary, Int32s, Int64s, UInt64s
from pipeline.symbols import hash64

ANY_PORT: Final = MAX_PORT + 1
"""Stands for every port of a host whose engine is scraped on another port than it serves on."""

_SPARSE_BITS: Final = (4, 8)
"""The first table has 16 places an entry; the later ones, which hold few, have 256."""
MAX_LEFT: Final = 4096
"""Distinct pairs looked up one by one per batch, for addresses that no table had a place for."""
_PORT_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_FACTORS: Final = tuple(
    np.uint64(factor)
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F)
)
"""Odd; one a table, so that what shares a place in one does not in the next."""
_MASKS: Final = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
"""The first `size` bytes of a little-endian word."""


def spellings(address: Address) -> Iterable[tuple[str, int]]:
    """The (text, port) pairs by which columns may name `address`."""
    yield address.host, address.port
    if address.port not in (0, ANY_PORT):
        yield str(address), 0
    if ":" in address.host:
        yield f"[{address.host}]", address.port


class _Places(NamedTuple):
    """One hash table: entries by the upper bits of key * factor; -1 = nobody there."""

    factor: np.uint64
    shift: np.uint64
    entry: Int32s

    def of(self, keys: UInt64s) -> Int64s:
        return ((keys * self.factor) >> self.shift).view(np.int64)


class AddressTable:
    """Known addresses -> slots, as arrays: whole columns are looked up without a Python loop.

    Built once per change of the directory's addresses; unknown hosts leave nothing behind.
    """

    def __init__(self, slots: Mapping[Address, int]) -> None:
        """`slots` may hold port 0 (the host alone names one endpoint) and ANY_PORT."""
        pairs = {pair: slot for address, slot in slots.items() for pair in spellings(address)}
        texts = [text.encode() for text, _ in pairs]
        ports = np.array([port for _, port in pairs], np.int32)
        hashes = np.array([hash64(text) for text in texts], np.uint64)
        # The last entry, -1, is nobody: no string has its length.
        self._keys = np.append(_keys(hashes, ports), np.uint64(0))
        self._slots = np.array([*pairs.values(), -1], np.int32)
        self._lengths = np.array([*map(len, texts), -1], np.int32)
        self._words = _words([*texts, b""])
        self._tables, left = _tables(self._keys[:-1])
        names = list(pairs)
        self._left = {names[entry]: pairs[names[entry]] for entry in left.tolist()}
        self._by_address = dict(slots)
        self.has_any_port = any(address.port == ANY_PORT for address in slots)

    def get(self, address: Address) -> int:
        """The slot of one address, or -1."""
        slot = self._by_address.get(address, -1)
        if slot < 0 and address.port:
            slot = self._by_address.get(Address(address.host, ANY_PORT), -1)
        return slot

    def find(self, host: Int32s, port: Int32s, strings: Dictionary) -> Int32s:
        """int32[n] slots of (host code, port) rows; -1 where unknown."""
        if not self._tables or not len(host) or not len(strings):
            return np.full(len(host), -1, np.int32)
        found = self._find(host, port, strings)
        if self.has_any_port:
            missing = np.flatnonzero((found < 0) & (port > 0))
            any_port = np.full(len(missing), ANY_PORT, np.int32)
            if len(missing):
                found[missing] = self._find(host[missing], any_port, strings)
        return found

    def _find(self, host: Int32s, port: Int32s, strings: Dictionary) -> Int32s:
        codes = host.astype(np.intp)  # what indexes much is widened once
        keys = _keys(strings.hashes.take(codes), port)
        entry = self._candidates(keys)
        # Equal texts have equal hashes, so equal keys mean equal ports.
        is_it = (self._keys.take(entry) == keys) & self._same_text(codes, entry, strings)
        found = np.where(is_it, self._slots.take(entry), np.int32(-1))
        if self._left:
            self._find_left(found, host, port, strings)
        return found

    def _candidates(self, keys: UInt64s) -> npt.NDArray[np.intp]:
        """intp[n]: the entry of each key, or any other one."""
        first, *later = self._tables
        entry = first.entry.take(first.of(keys)).astype(np.intp)
        for places in later:
            other = (self._keys.take(entry) != keys).nonzero()[0]
            if not len(other):
                break
            entry[other] = places.entry.take(places.of(keys[other]))
        return entry

    def _same_text(
        self, codes: npt.NDArray[np.intp], entry: npt.NDArray[np.intp], strings: Dictionary
    ) -> Bools:
        """Whether strings are the texts of entries, a word of eight bytes at a time."""
        start = strings.offsets.take(codes)
        length = strings.offsets.take(codes + 1) - start
        lengths = self._lengths.take(entry)
        same: Bools = (length == lengths) & (codes >= 0)
        size = len(strings.data)
        words = np.ndarray(size + 1, "<u8", strings.data + bytes(8), 0, (1,))
        for i in range(-(-int(np.maximum.reduce(lengths)) // 8)):
            word = words[np.minimum(start + 8 * i, size)]
            inside = _MASKS.take(length - 8 * i, mode="clip")
            same &= (word & inside) == self._words[i].take(entry)
        return same

    def _find_left(self, found: Int32s, host: Int32s, port: Int32s, strings: Dictionary) -> None:
        """Look for what no table had a place for, in a map; addresses made to collide, that is."""
        open_ = np.flatnonzero((found < 0) & (host >= 0))
        pairs = np.stack((host[open_], port[open_]), axis=1)
        distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
        slots = np.full(len(distinct), -1, np.int32)
        for i, (code, number) in enumerate(distinct[:MAX_LEFT].tolist()):
            slots[i] = self._left.get((strings.text(code), number), -1)
        found[open_] = slots[inverse.reshape(-1)]


def _keys(hashes: UInt64s, ports: Int32s) -> UInt64s:
    return hashes + ports.astype(np.uint64) * _PORT_FACTOR


def _tables(keys: UInt64s) -> tuple[tuple[_Places, ...], Int32s]:
    """Hash tables of entries, no two of one key, and the entries left over.

    An entry that loses its place to another is in a later table.
    """
    tables: list[_Places] = []
    left = np.unique(keys, return_index=True)[1].astype(np.int32)
    same = np.setdiff1d(np.arange(len(keys), dtype=np.int32), left)
    for factor in _FACTORS:
        if not len(left):
            break
        bits = len(left).bit_length() + _SPARSE_BITS[min(len(tables), 1)]
        bits = min(bits, len(keys).bit_length() + _SPARSE_BITS[0])
        places = _Places(factor, np.uint64(64 - bits), np.full(1 << bits, -1, np.int32))
        at = places.of(keys[left])
        places.entry[at] = left
        tables.append(places)
        left = left[places.entry[at] != left]
    return tuple(tables), np.concatenate((same, left))


def _words(texts: list[bytes]) -> UInt64s:
    """uint64[words, texts]: texts as little-endian words, filled up with zeros."""
    width = -(-max((len(text) for text in texts), default=0) // 8) * 8
    padded = b"".join(text.ljust(width, b"\0") for text in texts)
    words = np.frombuffer(padded, "<u8").reshape(len(texts), width // 8)
    return np.ascontiguousarray(words.T)
