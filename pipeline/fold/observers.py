"""Which observer a signal reads, per endpoint: the best there is, changed slowly.

A better observer must have been there for the switch time, or the present one silent as long, so
that one lost batch moves nothing.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.clock import Instant
from pipeline.model import Int32s, Int64s, Observer

Int8s = npt.NDArray[np.int8]

_NEVER: Final = np.iinfo(np.int64).min // 2


class Presence:
    """Since when and until when each observer was heard: int64 ns [slots, observers]."""

    def __init__(self, switch_ns: int) -> None:
        """An observer is present for `switch_ns` after it was heard."""
        self.switch_ns = switch_ns
        self.first_ns: Int64s = np.zeros((0, len(Observer)), np.int64)
        self.last_ns: Int64s = np.zeros((0, len(Observer)), np.int64)

    def resize(self, n_slots: int) -> None:
        """Make room for `n_slots`; it never shrinks."""
        blank = np.full((max(0, n_slots - len(self.last_ns)), len(Observer)), _NEVER, np.int64)
        self.first_ns = np.concatenate((self.first_ns, blank))
        self.last_ns = np.concatenate((self.last_ns, blank))

    def forget(self, slots: Int32s) -> None:
        """Empty the slots."""
        self.first_ns[slots] = self.last_ns[slots] = _NEVER

    def heard(self, cell: Int32s, now: Instant) -> None:
        """Data arrived in the cells (slot * observers + observer)."""
        first, last = self.first_ns.reshape(-1), self.last_ns.reshape(-1)
        returned = cell[now.mono_ns - last[cell] > self.switch_ns]
        first[returned] = now.mono_ns
        last[cell] = now.mono_ns


class ObserverChoice:
    """The choice for one signal; `order` has the best observer first."""

    def __init__(self, order: tuple[Observer, ...], presence: Presence) -> None:
        """Start with no slots; `presence` is resized beside it."""
        self._order = np.array(order, np.int8)
        self._presence = presence
        self._rank = np.zeros(0, np.int8)

    def resize(self, n_slots: int) -> None:
        """Make room for `n_slots`; it never shrinks."""
        missing = max(0, n_slots - len(self._rank))
        self._rank = np.concatenate((self._rank, np.full(missing, len(self._order), np.int8)))

    def forget(self, slots: Int32s) -> None:
        """Empty the slots."""
        self._rank[slots] = len(self._order)

    def choose(self, now: Instant) -> Int8s:
        """int8[n slots]: the observer to read, -1 = none has been heard."""
        none = len(self._order)
        if not len(self._rank):
            return np.zeros(0, np.int8)
        switch_ns = self._presence.switch_ns
        last = self._presence.last_ns[:, self._order]
        first = self._presence.first_ns[:, self._order]
        present = now.mono_ns - last <= switch_ns
        settled = present & (now.mono_ns - first >= switch_ns)
        best = np.where(present.any(axis=1), present.argmax(axis=1), self._rank)
        proven = np.where(settled.any(axis=1), settled.argmax(axis=1), none)
        held = np.minimum(self._rank, none - 1)
        holds = (self._rank < none) & present[np.arange(len(held)), held]
        self._rank = np.where(holds, np.minimum(self._rank, proven), best).astype(np.int8)
        observer = self._order[np.minimum(self._rank, none - 1)]
        return np.where(self._rank < none, observer, -1).astype(np.int8)
