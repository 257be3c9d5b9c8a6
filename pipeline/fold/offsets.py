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
    is_future: Bools | None
    """None = none of them."""
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
        """The ages of events (n of them, n > 0), and learn from them."""
        self._watch_own_clock(now)
        if now.mono_ns != self._instant_ns:
            self._commit()
            self._instant_ns = now.mono_ns
        starts, lengths = _runs(source)
        index = self._find(source[starts].tolist(), now)
        lag = _lag(event_ns, now)
        age = _corrected(lag, self._offsets(index, now), lengths)
        ahead = age < -FUTURE_NS
        is_future = ahead if np.count_nonzero(ahead) else None
        self._stage(index, starts, lag, is_future)
        return Ages(age, is_future, int(lengths[index < 0].sum()))

    def _watch_own_clock(self, now: Instant) -> None:
        difference = now.wall_ns - now.mono_ns
        if self._wall_minus_mono_ns is None:
            self._wall_minus_mono_ns = difference
        if abs(difference - self._wall_minus_mono_ns) > STEP_NS:
            self._wall_minus_mono_ns = difference
            self._table[: _SINCE + 1] = UNKNOWN

    def _find(self, keys: list[int], now: Instant) -> Int64s:
        """Columns of sources, given where new; -1 when the table is full."""
        known = self._index
        new = [key for key in dict.fromkeys(keys) if key not in known]
        if len(known) + len(new) > self._max_sources:
            self._expire(now)
            known = self._index
            new = [key for key in dict.fromkeys(keys) if key not in known]
        for key in new[: self._max_sources - len(known)]:
            known[key] = len(known)
        missing = len(known) - self._table.shape[1]
        if missing > 0:
            self._table = np.concatenate((self._table, _blank(max(64, 2 * missing))), axis=1)
        found = np.array([known.get(key, -1) for key in keys], np.int64)
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
        passed = now.mono_ns // HALF_NS - table[_HALF, known]
        if np.count_nonzero(passed):
            turned = known[passed != 0]
            table[_OLD, turned] = np.where(passed[passed != 0] == 1, table[_NEW, turned], UNKNOWN)
            table[_NEW, turned] = UNKNOWN
            table[_HALF, turned] = now.mono_ns // HALF_NS
        anew = table[_SINCE, known] < now.mono_ns - RELEARN_NS
        if np.count_nonzero(anew):
            at = known[anew]
            table[_OLD, at] = table[_NEW, at] = table[_SINCE, at] = UNKNOWN
        offset = np.full(len(index), UNKNOWN, np.int64)
        offset[index >= 0] = np.minimum(table[_OLD, known], table[_NEW, known])
        return offset

    def _stage(self, index: Int64s, starts: Int64s, lag: Int64s, is_future: Bools | None) -> None:
        """Stage the smallest lag of each source, from runs of events of one source each."""
        fits = index >= 0
        at = index[fits]
        honest = lag
        if is_future is not None:
            honest = np.where(is_future, UNKNOWN, lag)
            ahead = np.minimum.reduceat(np.where(is_future, lag, UNKNOWN), starts)
            np.minimum.at(self._table[_FUTURE], at, ahead[fits])
        np.minimum.at(self._table[_HONEST], at, np.minimum.reduceat(honest, starts)[fits])
        self._touched.append(at)

    def _commit(self) -> None:
        """Learn what the last instant staged: from the future only where nothing else is known."""
        if not self._touched:
            return
        at = self._touched[0] if len(self._touched) == 1 else np.unique(np.hstack(self._touched))
        self._touched.clear()
        _, new, honest, ahead, since, *_ = self._table
        lesson = honest.take(at)
        honest[at] = UNKNOWN
        only_ahead = lesson == UNKNOWN
        if not np.count_nonzero(only_ahead):
            since[at] = ahead[at] = UNKNOWN
            new[at] = np.minimum(new.take(at), lesson)
            return
        unknown = np.minimum(self._table[_OLD, at], new[at]) == UNKNOWN
        lesson = np.where(only_ahead & unknown, ahead[at], lesson)
        only_since = np.minimum(since[at], self._instant_ns)
        new[at] = np.minimum(new[at], lesson)
        since[at] = np.where(only_ahead & ~unknown, only_since, UNKNOWN)
        ahead[at] = UNKNOWN


def _runs(source: UInt64s) -> tuple[Int64s, Int64s]:
    """Where runs of equal sources start, and how long they are: batches are ordered by sender."""
    ends = np.append((source[1:] != source[:-1]).nonzero()[0], len(source) - 1) + 1
    lengths = ends.copy()
    lengths[1:] -= ends[:-1]
    return ends - lengths, lengths


def _lag(event_ns: Int64s, now: Instant) -> Int64s:
    """Wall time minus event time, within FAR_NS."""
    first, last = int(np.minimum.reduce(event_ns)), int(np.maximum.reduce(event_ns))
    if first >= now.wall_ns - FAR_NS and last <= now.wall_ns + FAR_NS:
        return now.wall_ns - event_ns
    lag: Int64s = np.clip(now.wall_ns - np.clip(event_ns, -FAR_NS, 4 * FAR_NS), -FAR_NS, FAR_NS)
    return lag


def _corrected(lag: Int64s, offset: Int64s, lengths: Int64s) -> Int64s:
    """Lags without their sources' clock errors; `offset` is per run, `lengths` of the runs.

    An event that is plausible as it is stays so, whatever its source's offset.
    """
    is_skewed = (offset != UNKNOWN) & ((offset < 0) | (offset > DELAY_NS))
    if not np.count_nonzero(is_skewed):
        return lag
    shift = np.where(is_skewed, offset, 0)
    is_far = np.abs(shift) > DELAY_NS
    age: Int64s = lag - np.repeat(shift, lengths)
    if np.count_nonzero(is_far):
        is_plausible = np.repeat(is_far, lengths) & (lag >= 0) & (lag <= DELAY_NS)
        age = np.where(is_plausible, lag, age)
    return age


def _blank(size: int) -> Int64s:
    table = np.full((7, size), UNKNOWN, np.int64)
    table[_HALF] = 0
    return table
