"""Clock offsets of sources: event times -> ages that can be compared.

A source's offset is its rolling minimum, over half an hour to an hour, of wall time at arrival
minus event time. It corrects clocks that are ahead, or far behind; an ordinary delivery delay is no
offset. What an instant teaches counts from the next instant on, so that the cut of a stream into
batches changes nothing.
"""

from typing import Final, NamedTuple

import numpy as np

from pipeline.clock import NS_PER_S, Instant
from pipeline.model import Bools, Int64s, UInt64s

FUTURE_NS: Final = 10 * NS_PER_S
"""How far ahead of now an event may be, after its source's offset."""
DELAY_NS: Final = 10 * NS_PER_S
"""A source that is later than this at its best has a clock that is behind."""
HALF_NS: Final = 1800 * NS_PER_S
RELEARN_NS: Final = 30 * NS_PER_S
"""A source that only sends from the future for this long has had its clock set: learn anew."""
STEP_NS: Final = 2 * NS_PER_S
"""Our own wall clock moved by more than this against the monotonic one: it was set."""
UNKNOWN: Final = np.iinfo(np.int64).max
FAR_NS: Final = 1 << 60
"""Bound on differences of times: senders may write any time."""


class Ages(NamedTuple):
    """How old events are, int64 ns[n] (negative = ahead), and which are from the future."""

    age_ns: Int64s
    is_future: Bools
    overflow: int
    """Events whose source did not fit into the table; taken at their word."""


_OLD, _NEW, _HONEST, _FUTURE, _SINCE, _HEARD, _HALF = range(7)
"""Rows of the table: minima of the last and the running half hour, minima staged by this instant
(of events that are not, and that are from the future), since when only the latter came, when heard
last, and the number of the running half hour."""


class SourceOffsets:
    """Offsets of up to `max_sources` sources, by hash."""

    def __init__(self, max_sources: int) -> None:
        """Start with no source."""
        self._max_sources = max_sources
        self._index: dict[int, int] = {}
        self._table: Int64s = np.full((7, 0), UNKNOWN, np.int64)
        self._touched: list[Int64s] = []
        self._instant_ns = 0
        self._wall_minus_mono_ns: int | None = None

    def ages(self, source: UInt64s, event_ns: Int64s, now: Instant) -> Ages:
        """The ages of events (n of them), and learn from them."""
        self._watch_own_clock(now)
        if now.mono_ns != self._instant_ns:
            self._commit()
            self._instant_ns = now.mono_ns
        distinct, inverse = np.unique(source, return_inverse=True)
        index = self._find(distinct, now)
        offset = self._offsets(index, now)[inverse]
        lag = np.clip(now.wall_ns - np.clip(event_ns, -FAR_NS, 4 * FAR_NS), -FAR_NS, FAR_NS)
        known = offset != UNKNOWN
        is_skewed = known & ((offset < 0) | (offset > DELAY_NS))
        is_plausible = (np.abs(offset) > DELAY_NS) & (lag >= 0) & (lag <= DELAY_NS)
        age = lag - np.where(is_skewed & ~is_plausible, offset, 0)
        is_future = age < -FUTURE_NS
        self._stage(index[inverse], lag, is_future)
        return Ages(age, is_future, int(np.count_nonzero(index[inverse] < 0)))

    def _watch_own_clock(self, now: Instant) -> None:
        difference = now.wall_ns - now.mono_ns
        if self._wall_minus_mono_ns is None:
            self._wall_minus_mono_ns = difference
        if abs(difference - self._wall_minus_mono_ns) > STEP_NS:
            self._wall_minus_mono_ns = difference
            self._table[: _SINCE + 1] = UNKNOWN

    def _find(self, distinct: UInt64s, now: Instant) -> Int64s:
        """Columns of sources, given where new; -1 when the table is full."""
        keys = distinct.tolist()
        new = [key for key in keys if key not in self._index]
        if len(self._index) + len(new) > self._max_sources:
            self._expire(now)
            new = [key for key in keys if key not in self._index]
        for key in new[: self._max_sources - len(self._index)]:
            self._index[key] = len(self._index)
        missing = len(self._index) - self._table.shape[1]
        if missing > 0:
            self._table = np.concatenate((self._table, _blank(max(64, 2 * missing))), axis=1)
        found = np.fromiter((self._index.get(key, -1) for key in keys), np.int64, len(keys))
        self._table[_HEARD, found[found >= 0]] = now.mono_ns
        return found

    def _expire(self, now: Instant) -> None:
        """Drop the sources not heard for an hour, and close the gaps."""
        horizon_ns = now.mono_ns - 2 * HALF_NS
        kept = [key for key, at in self._index.items() if self._table[_HEARD, at] > horizon_ns]
        columns = np.array([self._index[key] for key in kept], np.int64)
        self._commit()
        self._table = self._table[:, columns]
        self._index = {key: i for i, key in enumerate(kept)}

    def _offsets(self, index: Int64s, now: Instant) -> Int64s:
        """The offset of each source as learned before this instant; UNKNOWN without."""
        table, known = self._table, index[index >= 0]
        half = now.mono_ns // HALF_NS
        passed = half - table[_HALF, known]
        turned = known[passed != 0]
        table[_OLD, turned] = np.where(passed[passed != 0] == 1, table[_NEW, turned], UNKNOWN)
        table[_NEW, turned] = UNKNOWN
        table[_HALF, known] = half
        anew = known[table[_SINCE, known] < now.mono_ns - RELEARN_NS]
        table[_OLD, anew] = table[_NEW, anew] = table[_SINCE, anew] = UNKNOWN
        offset = np.full(len(index), UNKNOWN, np.int64)
        offset[index >= 0] = np.minimum(table[_OLD, known], table[_NEW, known])
        return offset

    def _stage(self, index: Int64s, lag: Int64s, is_future: Bools) -> None:
        fits = index >= 0
        honest, ahead = fits & ~is_future, fits & is_future
        np.minimum.at(self._table[_HONEST], index[honest], lag[honest])
        np.minimum.at(self._table[_FUTURE], index[ahead], lag[ahead])
        self._touched.append(np.unique(index[fits]))

    def _commit(self) -> None:
        """Learn what the last instant staged: from the future only where nothing else is known."""
        if not self._touched:
            return
        table, at = self._table, np.unique(np.concatenate(self._touched))
        honest, ahead = table[_HONEST, at], table[_FUTURE, at]
        only_ahead = honest == UNKNOWN
        unknown = np.minimum(table[_OLD, at], table[_NEW, at]) == UNKNOWN
        lesson = np.where(only_ahead & unknown, ahead, honest)
        since = np.minimum(table[_SINCE, at], self._instant_ns)
        table[_NEW, at] = np.minimum(table[_NEW, at], lesson)
        table[_SINCE, at] = np.where(only_ahead & ~unknown, since, UNKNOWN)
        table[_HONEST, at] = table[_FUTURE, at] = UNKNOWN
        self._touched.clear()


def _blank(size: int) -> Int64s:
    table = np.full((7, size), UNKNOWN, np.int64)
    table[_HALF] = 0
    return table
