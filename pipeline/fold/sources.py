"""Clocks of senders: how far each is from ours, and whether it is replaying old data.

Enters: event times of a batch and its arrival. Leaves: rows that lie in the future, the lag of
each row, and which sources are catching up. A source's offset is the smallest (wall - event) of
the last hour, so a constant error of its clock and the usual delay cancel.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from pipeline.clock import NS_PER_S, Instant
from pipeline.model import Bools, Floats, Int64s, UInt64s

BUCKET_NS: Final = 300 * NS_PER_S
BUCKETS: Final = 12  # of five minutes: the hour over which the minimum rolls
FUTURE_NS: Final = 10 * NS_PER_S
STEP_NS: Final = 10 * NS_PER_S
"""A clock that stays ahead for so long has been set; it is believed from then on."""
SPEED: Final = 1.5
SPEED_WINDOW_S: Final = 10.0  # the longest flush of a Collector's batch
GAIN_S: Final = 5.0
"""Event time must have gained so much on arrival time too: batching alone makes it jump."""
CALM_S: Final = 3.0
"""After so long at the usual pace a source has caught up."""
_FAR: Final = np.iinfo(np.int64).max
_LONG_AGO: Final = np.iinfo(np.int64).min
_NONE: Final = -1

Rows = np.ndarray[tuple[int], np.dtype[np.intp]]

# Columns of whole numbers, in nanoseconds:
OFFSET: Final = 0  # the smallest of all buckets
FIRST: Final = 1  # event time when it was first heard
NEWEST: Final = 2  # event time
SINCE: Final = 3  # arrival of its first data, monotonic
ARRIVED: Final = 4  # arrival of its last data, monotonic
FUTURE_SINCE: Final = 5
_BLANK: Final = (_FAR, 0, 0, 0, 0, _NONE)
# Columns of seconds, over the speed window:
EVENT: Final = 0
ARRIVAL: Final = 1
CALM: Final = 2


class Seen(NamedTuple):
    """What a batch's event times mean."""

    future: Bools | None
    """bool[n] by row; None = none of them."""
    lag_s: Floats
    """float64[n]: how late each row arrived beyond its source's offset, >= 0."""
    of_row: Rows
    """int[n] the source of each row, an index of what follows."""
    first_ns: Int64s
    """Event time at which a source was first heard; the largest int64 = unknown."""
    catching_up: Bools


class Sources:
    """Bounded per-source state; a source beyond the bound is taken at its word."""

    def __init__(self, max_sources: int) -> None:
        """At most `max_sources` at a time."""
        self._max = max_sources
        self._ids: dict[int, int] = {}
        self._free: list[int] = []
        self._bucket = -1
        self._has_future = False
        self._minimum: Int64s = np.zeros((BUCKETS, 1), np.int64)
        self._state: Int64s = np.zeros((1, len(_BLANK)), np.int64)
        self._speed_s: Floats = np.zeros((1, 3))
        self._catching: Bools = np.zeros(1, np.bool_)

    def observe(self, source: UInt64s, time_ns: Int64s, now: Instant) -> Seen:
        """Learn from a batch that arrived at `now`: `source` uint64[n], `time_ns` int64[n].

        Costs little for rows that come in runs of one source, as batches do.
        """
        self._roll(now.mono_ns)
        begins, lengths = _runs(source)
        sources = source.take(begins).tolist()
        newest = np.maximum.reduceat(time_ns, begins)
        of_row = np.arange(len(begins)).repeat(lengths)
        if len(set(sources)) < len(sources):
            number = {key: i for i, key in enumerate(dict.fromkeys(sources))}
            of_run = np.array([number[key] for key in sources])
            sources = list(number)
            newest, of_row = _largest(newest, of_run, len(sources)), of_run[of_row]
        ids = self._add(sources, now.mono_ns)
        state = self._state.take(ids, axis=0)
        future = self._future(ids, state, of_row, newest, time_ns, now)
        if future is not None:
            newest = _largest(time_ns[~future], of_row[~future], len(ids))
        return self._seen(ids, state, of_row, newest, future, time_ns, now)

    def expire(self, now: Instant) -> None:
        """Forget sources unheard for as long as an offset lives."""
        gone = [
            (source, i)
            for source, i in self._ids.items()
            if now.mono_ns - int(self._state[i, ARRIVED]) > BUCKETS * BUCKET_NS
        ]
        for source, i in gone:
            del self._ids[source]
            self._free.append(i)

    def export_state(self) -> dict[str, Any]:
        """The learned offsets: keys and nanoseconds as little-endian bytes."""
        learned = [(s, i) for s, i in self._ids.items() if self._state[i, OFFSET] != _FAR]
        offset = self._state[[i for _, i in learned], OFFSET]
        return {
            "source": np.array([source for source, _ in learned], "<u8").tobytes(),
            "offset_ns": offset.astype("<i8").tobytes(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up exported offsets; sources beyond the bound are left out."""
        source = np.frombuffer(state["source"], "<u8")
        offset = np.frombuffer(state["offset_ns"], "<i8").astype(np.int64)
        ids = self._add(source.tolist(), 0)
        known = ids >= 0
        self._minimum[:, ids[known]] = offset[known]  # rolls out within the hour
        self._state[ids[known], OFFSET] = offset[known]

    def _add(self, sources: list[int], mono_ns: int) -> Int64s:
        """The ids of distinct `sources`, -1 beyond the bound."""
        get = self._ids.get
        found = [get(source, -1) for source in sources]
        if -1 in found:
            for i, source in enumerate(sources):
                if found[i] < 0 and len(self._ids) < self._max:
                    found[i] = self._take(source, mono_ns)
        return np.array(found, np.int64)

    def _take(self, source: int, mono_ns: int) -> int:
        i = self._free.pop() if self._free else len(self._ids)
        if i >= len(self._catching):
            for name in ("_state", "_speed_s", "_catching"):
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
            more = np.zeros_like(self._minimum)
            self._minimum = np.concatenate([self._minimum, more], axis=1)
        self._ids[source] = i
        self._minimum[:, i] = _FAR
        self._state[i] = _BLANK
        self._state[i, [SINCE, ARRIVED]] = mono_ns
        self._speed_s[i] = 0.0
        self._catching[i] = False
        return i

    def _roll(self, mono_ns: int) -> None:
        bucket = mono_ns // BUCKET_NS
        if bucket <= self._bucket:
            return
        if self._bucket < 0:  # what was restored counts as heard just now
            self._bucket = bucket
            self._state[:, ARRIVED] = mono_ns
        for number in range(max(self._bucket + 1, bucket - BUCKETS + 1), bucket + 1):
            self._minimum[number % BUCKETS] = _FAR
        self._state[:, OFFSET] = self._minimum.min(axis=0)
        self._bucket = bucket

    def _future(
        self,
        ids: Int64s,
        state: Int64s,
        of_row: Rows,
        newest: Int64s,
        time_ns: Int64s,
        now: Instant,
    ) -> Bools | None:
        """Rows more than ten seconds ahead of where their source's clock was so far."""
        since_ns = np.minimum(state[:, OFFSET], 0)
        since_ns -= now.wall_ns
        ahead_ns = newest + since_ns
        if not self._has_future and np.maximum.reduce(ahead_ns) <= FUTURE_NS:
            return None
        known = ids >= 0
        has_offset = known & (state[:, OFFSET] != _FAR)
        if not self._has_future and not ((ahead_ns > FUTURE_NS) & has_offset).any():
            return None
        future: Bools = has_offset[of_row] & (time_ns + since_ns[of_row] > FUTURE_NS)
        good = np.zeros(len(ids), np.bool_)
        good[of_row[~future]] = True
        wholly = known & ~good
        since = self._state[ids[wholly], FUTURE_SINCE]
        self._state[ids[wholly], FUTURE_SINCE] = np.where(since == _NONE, now.mono_ns, since)
        self._state[ids[known & good], FUTURE_SINCE] = _NONE
        state[:, FUTURE_SINCE] = self._state[ids, FUTURE_SINCE]
        self._has_future = bool((self._state[:, FUTURE_SINCE] != _NONE).any())
        stepped = np.zeros(len(ids), np.bool_)
        stepped[wholly] = (since != _NONE) & (now.mono_ns - since >= STEP_NS)
        future &= ~stepped[of_row]
        return future

    def _seen(
        self,
        ids: Int64s,
        state: Int64s,
        of_row: Rows,
        newest: Int64s,
        future: Bools | None,
        time_ns: Int64s,
        now: Instant,
    ) -> Seen:
        """Take up the newest time of each source; what that makes of each row."""
        if np.minimum.reduce(ids) >= 0 and np.minimum.reduce(newest) > 0:
            self._advance(ids, state, newest, now)
            first, due_ns = state[:, FIRST], now.wall_ns - state[:, OFFSET]
            catching = self._catching.take(ids)
        else:
            heard = (ids >= 0) & (newest > 0)
            some = state[heard]
            self._advance(ids[heard], some, newest[heard], now)
            first = np.full(len(ids), _FAR, np.int64)
            first[heard] = some[:, FIRST]
            due_ns = np.zeros(len(ids), np.int64)  # never heard: whatever comes is not late
            due_ns[heard] = now.wall_ns - some[:, OFFSET]
            catching = (ids >= 0) & self._catching[ids]
        late_ns = due_ns.take(of_row)
        late_ns -= time_ns
        lag_s = np.maximum(late_ns, 0) / NS_PER_S
        return Seen(future, lag_s, of_row, first, catching)

    def _advance(self, ids: Int64s, state: Int64s, newest: Int64s, now: Instant) -> None:
        """Take up the newest event times of `ids`, and change `state`, theirs, likewise."""
        offset = now.wall_ns - newest
        smallest = self._minimum[self._bucket % BUCKETS]
        smallest[ids] = np.minimum(smallest.take(ids), offset)
        np.minimum(state[:, OFFSET], offset, out=state[:, OFFSET])
        # All that arrives at the first instant is one first look, in however many parts it comes.
        is_first = state[:, SINCE] == now.mono_ns
        if np.count_nonzero(is_first):
            first = np.maximum(state[is_first, FIRST], newest[is_first])
            state[is_first, FIRST] = state[is_first, NEWEST] = first
        self._pace(ids, state, newest, now)
        np.maximum(state[:, NEWEST], newest, out=state[:, NEWEST])
        state[:, ARRIVED] = now.mono_ns
        self._state[ids] = state

    def _pace(self, ids: Int64s, state: Int64s, newest: Int64s, now: Instant) -> None:
        """Which of `ids` gain on the clock."""
        speed_s = self._speed_s.take(ids, axis=0)
        arrival_s = (now.mono_ns - state[:, ARRIVED]) / NS_PER_S
        event_s = np.maximum(newest - state[:, NEWEST], 0) / NS_PER_S
        fast = event_s > SPEED * arrival_s
        calm_s = speed_s[:, CALM] + arrival_s
        calm_s[fast] = 0.0
        fade = np.exp(arrival_s / -SPEED_WINDOW_S)
        fade[calm_s >= CALM_S] = 0.0
        event_s += speed_s[:, EVENT] * fade
        arrival_s += speed_s[:, ARRIVAL] * fade
        speed_s[:, EVENT], speed_s[:, ARRIVAL], speed_s[:, CALM] = event_s, arrival_s, calm_s
        self._speed_s[ids] = speed_s
        gains = event_s > SPEED * arrival_s
        gains &= event_s > arrival_s + GAIN_S
        self._catching[ids] = gains


def _runs(source: UInt64s) -> tuple[Rows, Int64s]:
    """Where each run of equal values begins and how long it is; there is at least one value."""
    inner = (source[1:] != source[:-1]).nonzero()[0]
    borders = np.empty(len(inner) + 2, np.intp)
    borders[0], borders[-1] = 0, len(source)
    np.add(inner, 1, out=borders[1:-1])
    return borders[:-1], borders[1:] - borders[:-1]


def _largest(values: Int64s, of: Rows, n: int) -> Int64s:
    """int64[n]: the largest of the values of each group; a time long ago where there is none."""
    found = np.full(n, _LONG_AGO, np.int64)
    np.maximum.at(found, of, values)
    return found
