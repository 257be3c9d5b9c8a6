"""Which observer a signal reads, per endpoint: the best there is, changed slowly.

A better observer must have been there for the switch time, or the present one silent as long, so
that one lost batch moves nothing.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.clock import Instant
from pipeline.model import Bools, Int32s, Int64s, Observer

Int8s = npt.NDArray[np.int8]

_NEVER: Final = np.iinfo(np.int64).min // 2
_NO_TIME: Final = (-1, -1)
_FOR_EVER: Final = np.iinfo(np.int64).max


class Presence:
    """Since when and until when each observer was heard: int64 ns [slots, observers]."""

    def __init__(self, switch_ns: int) -> None:
        """An observer is present for `switch_ns` after it was heard."""
        self.switch_ns = switch_ns
        self.first_ns: Int64s = np.zeros((0, len(Observer)), np.int64)
        self.last_ns: Int64s = np.zeros((0, len(Observer)), np.int64)
        self.is_any = False
        """Somebody was heard, ever."""
        self.changes = 0
        """Moves with everything that may change a choice."""
        self._asked = _NO_TIME
        self._status: tuple[Bools, Bools] = (np.zeros((0, 0), np.bool_),) * 2

    def resize(self, n_slots: int) -> None:
        """Make room for `n_slots`; it never shrinks."""
        blank = np.full((max(0, n_slots - len(self.last_ns)), len(Observer)), _NEVER, np.int64)
        self.first_ns = np.concatenate((self.first_ns, blank))
        self.last_ns = np.concatenate((self.last_ns, blank))
        self.changes += 1

    def forget(self, slots: Int32s) -> None:
        """Empty the slots."""
        self.first_ns[slots] = self.last_ns[slots] = _NEVER
        self.changes += 1

    def heard(self, cell: Int64s, now: Instant) -> None:
        """Data arrived in the cells (slot * observers + observer)."""
        last = self.last_ns.reshape(-1)
        was_gone = last.take(cell) < now.mono_ns - self.switch_ns
        if np.count_nonzero(was_gone):
            self.first_ns.reshape(-1)[cell[was_gone]] = now.mono_ns
        last[cell] = now.mono_ns
        self.is_any = True
        self.changes += 1

    def status(self, now: Instant) -> tuple[Bools, Bools]:
        """bool[observers, n slots]: who is present, and who has been for the switch time."""
        asked = now.mono_ns, self.changes
        if asked != self._asked:
            present = now.mono_ns - self.last_ns <= self.switch_ns
            settled = present & (now.mono_ns - self.first_ns >= self.switch_ns)
            self._status = np.ascontiguousarray(present.T), np.ascontiguousarray(settled.T)
            self._asked = asked
        return self._status

    def same_until_ns(self, now: Instant) -> int:
        """When the status will be another one, if nothing is heard until then."""
        present, settled = self.status(now)
        until_ns = _FOR_EVER
        if present.any():
            until_ns = int(self.last_ns.T[present].min()) + self.switch_ns + 1
        waiting = present & ~settled
        if waiting.any():
            until_ns = min(until_ns, int(self.first_ns.T[waiting].min()) + self.switch_ns)
        return until_ns


class Chosen(NamedTuple):
    """Whom a signal is read from, per endpoint, and who else could be asked."""

    observer: Int8s
    """int8[n slots]: -1 = none."""
    present: Bools
    """bool[observers, n slots]: who has reported the signal of late."""
    order: tuple[Observer, ...]
    """The best first."""


class ObserverChoice:
    """The choice for one signal; `order` has the best observer first."""

    def __init__(self, order: tuple[Observer, ...], presence: Presence) -> None:
        """Start with no slots; `presence` is resized beside it."""
        self._order = order
        self._by_rank = np.array([*order, -1], np.int8)
        self._presence = presence
        self._rank = np.zeros(0, np.int8)
        self._chosen: Int8s = np.zeros(0, np.int8)
        self._chosen_at = _NO_TIME
        self._until_ns = 0
        """With nothing heard, the choice stays as it is until then."""

    def resize(self, n_slots: int) -> None:
        """Make room for `n_slots`; it never shrinks."""
        missing = max(0, n_slots - len(self._rank))
        self._rank = np.concatenate((self._rank, np.full(missing, len(self._order), np.int8)))
        self._chosen_at = _NO_TIME

    def forget(self, slots: Int32s) -> None:
        """Empty the slots."""
        self._rank[slots] = len(self._order)
        self._chosen_at = _NO_TIME

    def chosen(self, now: Instant) -> Chosen:
        """The choice, and what it was made from; not to be changed."""
        return Chosen(self.choose(now), self._presence.status(now)[0], self._order)

    def choose(self, now: Instant) -> Int8s:
        """int8[n slots]: the observer to read, -1 = none has been heard; not to be changed.

        While nothing is heard and nobody falls silent it gives the same array.
        """
        at_ns, changes = self._chosen_at
        if changes == self._presence.changes:
            if now.mono_ns == at_ns or at_ns < now.mono_ns < self._until_ns:
                return self._chosen
            self._until_ns = self._presence.same_until_ns(now)
        else:
            self._until_ns = 0
        self._chosen = self._choose(now)
        self._chosen_at = now.mono_ns, self._presence.changes
        return self._chosen

    def _choose(self, now: Instant) -> Int8s:
        if not self._presence.is_any:
            return np.full(len(self._rank), -1, np.int8)
        present, settled = self._presence.status(now)
        best, proven = self._first(present), self._first(settled)
        holds = np.zeros(len(self._rank), np.bool_)
        for rank, observer in enumerate(self._order):
            holds |= (self._rank == rank) & present[observer]
        found = np.where(best < len(self._order), best, self._rank)
        self._rank = np.where(holds, np.minimum(self._rank, proven), found)
        return self._by_rank.take(self._rank)

    def _first(self, mask: Bools) -> Int8s:
        """int8[n]: the best rank where `mask` [observers, n] holds; one past the last without."""
        first = np.full(mask.shape[1], len(self._order), np.int8)
        for rank in reversed(range(len(self._order))):
            np.copyto(first, np.int8(rank), where=mask[self._order[rank]])
        return first


def among_telling(chosen: Chosen, tells: Bools) -> Int8s:
    """int8[n slots]: the chosen observers, or where one does not tell, the best one that does.

    `tells` bool[observers, n slots] says who tells something that not everyone knows: an engine's
    spans carry no tenant, say. Where nobody present tells it, the choice stands.
    """
    observer = chosen.observer
    silent = ~tells.reshape(-1).take(observer * np.int64(len(observer)) + np.arange(len(observer)))
    silent &= observer >= 0
    if not np.count_nonzero(silent):
        return observer
    observer, telling = observer.copy(), chosen.present & tells
    for candidate in reversed(chosen.order):
        observer[silent & telling[candidate]] = candidate
    return observer
