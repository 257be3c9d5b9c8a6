"""Tenants: names by hash, in a bounded table that forgets those without requests.

What is handed on is the hash of a name; the name is kept for a person with the right to see it.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np

from pipeline.fingerprint.places import Places
from pipeline.fingerprint.request import printable
from pipeline.model import Dictionary, Int32s, Int64s, UInt64s

PLACE_BITS: Final = 14
"""Four places for each of the most tenants there may be by default: few share one."""
_RESTORED: Final = -1


class TenantTable:
    """Up to `capacity` tenants; id 0 is "none", hash 0."""

    def __init__(self, capacity: int, forget_after_s: float) -> None:
        """Only id 0."""
        self._capacity = capacity
        self._forget_after_ns = round(forget_after_s * 1e9)
        self._places = Places(PLACE_BITS)
        self._ids: dict[int, int] = {}
        self._names: list[str] = [""]
        self._free: list[int] = []
        self._hashes = np.zeros(capacity + 1, np.uint64)
        self._used_ns = np.zeros(capacity + 1, np.int64)

    def __len__(self) -> int:
        """How many tenants there are."""
        return len(self._ids)

    def name(self, tenant: int) -> str:
        """The name behind a hash; "" for 0 and what was forgotten."""
        return self._names[self._ids.get(tenant, 0)]

    def take(
        self, codes: Int32s, hashes: UInt64s, strings: Dictionary, now_ns: int
    ) -> tuple[UInt64s, int]:
        """uint64[n], the tenant of each row, and how many found no room; 0 for those and none.

        `hashes` are those of `strings` and, last, 0 for code -1.
        """
        wanted = hashes.take(codes, mode="wrap")
        ids, is_known = self._places.find(wanted)
        if np.count_nonzero(is_known) < len(wanted):
            missing = (~is_known).nonzero()[0]
            distinct, first, inverse = np.unique(
                wanted[missing], return_index=True, return_inverse=True
            )
            found = np.zeros(len(distinct), np.int32)
            for i in np.argsort(first).tolist():
                code = int(codes[missing[first[i]]])
                found[i] = self._id_of(int(distinct[i]), strings.text(code), now_ns)
            ids[missing] = found[inverse]
            self._places.put(distinct, found)
        self._used_ns[ids] = now_ns
        tenants = self._hashes.take(ids)
        return tenants, int(np.count_nonzero(wanted) - np.count_nonzero(tenants))

    def _id_of(self, tenant: int, name: str, now_ns: int) -> int:
        found = self._ids.get(tenant)
        if found is not None or tenant == 0:
            return found or 0
        if len(self._ids) >= self._capacity:
            return 0
        place = self._free.pop() if self._free else len(self._names)
        if place == len(self._names):
            self._names.append("")
        self._names[place] = printable(name)
        self._ids[tenant], self._hashes[place], self._used_ns[place] = place, tenant, now_ns
        return place

    def expire(self, now_ns: int) -> list[int]:
        """Forget and return the tenants without a request for `forget_after_s`."""
        used = self._used_ns
        used[used == _RESTORED] = now_ns
        old: Int64s = np.flatnonzero(used < now_ns - self._forget_after_ns)
        gone = [int(self._hashes[place]) for place in old.tolist() if self._hashes[place]]
        for tenant in gone:
            place = self._ids.pop(tenant)
            self._names[place], self._hashes[place] = "", 0
            self._free.append(place)
        if gone:
            self._places.clear()
        return gone

    def export_state(self) -> list[list[str | int]]:
        """Hash and name of every tenant; see `restore`."""
        return [[tenant, self._names[place]] for tenant, place in self._ids.items()]

    def restore(self, state: Iterable[Iterable[str | int]]) -> None:
        """Take up exported tenants, as if used when time is told first; for an empty table."""
        for tenant, name in state:
            if not isinstance(tenant, int) or not isinstance(name, str):
                raise ValueError("a tenant is a hash and a name")
            place = self._id_of(tenant, name, _RESTORED)
            if place:
                self._used_ns[place] = _RESTORED
