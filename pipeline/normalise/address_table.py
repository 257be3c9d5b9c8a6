"""From (host, port), as columns hold them, to endpoint slots: whole columns at once."""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from pipeline.address import MAX_PORT, Address
from pipeline.model import Dictionary, Int32s, Int64s
from pipeline.symbols import Symbols

ANY_PORT: Final = MAX_PORT + 1
"""Stands for every port of a host whose engine is scraped on another port than it serves on."""


def spellings(address: Address) -> Iterable[tuple[str, int]]:
    """The (text, port) pairs by which columns may name `address`."""
    yield address.host, address.port
    if address.port not in (0, ANY_PORT):
        yield str(address), 0
    if ":" in address.host:
        yield f"[{address.host}]", address.port


class AddressTable:
    """Known addresses -> slots, as arrays: whole columns are looked up without a Python loop.

    Built once per change of the directory's addresses; unknown hosts leave nothing behind.
    """

    def __init__(self, slots: Mapping[Address, int]) -> None:
        """`slots` may hold port 0 (the host alone names one endpoint) and ANY_PORT."""
        pairs = {pair: slot for address, slot in slots.items() for pair in spellings(address)}
        self._hosts = Symbols(len(pairs))
        keyed = sorted(
            ((self._hosts.add(text.encode()) << 17) | port, slot)
            for (text, port), slot in pairs.items()
        )
        self._keys = np.array([key for key, _ in keyed], np.int64)
        self._slots = np.array([slot for _, slot in keyed], np.int32)
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
        if not len(self._keys) or not len(host):
            return np.full(len(host), -1, np.int32)
        pairs = (host.astype(np.int64) << 17) | np.clip(port, 0, ANY_PORT)
        distinct, inverse = np.unique(pairs, return_inverse=True)
        codes = (distinct >> 17).astype(np.int32)
        symbols = self._hosts.find(strings, codes).astype(np.int64)
        found = self._lookup(symbols, distinct & 0x1FFFF)
        if self.has_any_port:
            missing = np.flatnonzero((found < 0) & (distinct & 0x1FFFF > 0))
            found[missing] = self._lookup(symbols[missing], np.full(len(missing), ANY_PORT))
        return found[inverse]

    def _lookup(self, symbols: Int64s, ports: Int64s) -> Int32s:
        keys = np.where(symbols < 0, -1, (symbols << 17) | ports)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[at] == keys, self._slots[at], np.int32(-1))
