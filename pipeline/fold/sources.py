"""Clocks of senders: how far each is from ours, and whether it is replaying old data.

Enters: event times of a batch and its arrival. Leaves: rows that lie in the future, the lag of
each row, and which sources are catching up. A source's offset is the smallest (wall - event) of
the last hour, so a constant error of its clock and the usual delay cancel.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from pipeline.clock import NS_PER_S, Instant
from pipeline.fold.series import SeriesIndex
from pipeline.model import Bools, Floats, Int32s, Int64s, UInt64s

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
_NONE: Final = -1


class Seen(NamedTuple):
    """What a batch's event times mean; arrays have one entry per row."""

    future: Bools
    lag_s: Floats
    """How late each row arrived beyond its source's offset, >= 0."""
    first_ns: Int64s
    """Event time at which its source was first heard; the largest int64 = unknown."""
    catching_up: Bools


class Sources:
    """Bounded per-source state; a source beyond the bound is taken at its word."""

    def __init__(self, max_sources: int) -> None:
        """At most `max_sources` at a time."""
        self._index = SeriesIndex(max_sources)
        self._bucket = -1
        self._minimum: Int64s = np.zeros((0, BUCKETS), np.int64)
        self._first: Int64s = np.zeros(0, np.int64)
        self._since: Int64s = np.zeros(0, np.int64)
        self._newest: Int64s = np.zeros(0, np.int64)
        self._arrived: Int64s = np.zeros(0, np.int64)
        self._future_since: Int64s = np.zeros(0, np.int64)
        self._event_s: Floats = np.zeros(0)
        self._arrival_s: Floats = np.zeros(0)
        self._calm_s: Floats = np.zeros(0)
        self._catching: Bools = np.zeros(0, np.bool_)

    def observe(self, source: UInt64s, time_ns: Int64s, now: Instant) -> Seen:
        """Learn from a batch that arrived at `now`: `source` uint64[n], `time_ns` int64[n]."""
        self._roll(now.mono_ns)
        distinct, inverse = np.unique(source, return_inverse=True)
        ids = self._add(distinct, now.mono_ns)
        known = ids >= 0
        future = self._future(ids, inverse, time_ns, now)
        newest = np.full(len(distinct), np.iinfo(np.int64).min, np.int64)
        np.maximum.at(newest, inverse[~future], time_ns[~future])
        heard = known & (newest > 0)
        self._advance(ids[heard], newest[heard], now)
        offset = np.zeros(len(distinct), np.int64)
        offset[heard] = self._minimum[ids[heard]].min(axis=1)
        first = np.full(len(distinct), _FAR, np.int64)
        first[heard] = self._first[ids[heard]]
        catching = np.zeros(len(distinct), np.bool_)
        catching[known] = self._catching[ids[known]]
        late_ns = now.wall_ns - time_ns - offset[inverse]
        lag_s = np.where(heard[inverse], np.maximum(late_ns, 0) / NS_PER_S, 0.0)
        return Seen(future, lag_s, first[inverse], catching[inverse])

    def expire(self, now: Instant) -> None:
        """Forget sources unheard for as long as an offset lives."""
        ids = self._index.ids()
        idle = now.mono_ns - self._arrived[ids] > BUCKETS * BUCKET_NS
        self._index.remove(ids[idle])

    def export_state(self) -> dict[str, Any]:
        """The learned offsets: keys and nanoseconds as little-endian bytes."""
        ids = self._index.ids()
        offset = self._minimum[ids].min(axis=1) if len(ids) else np.zeros(0, np.int64)
        learned = offset != _FAR
        return {
            "source": self._index.keys(ids)[learned, 0].astype("<u8").tobytes(),
            "offset_ns": offset[learned].astype("<i8").tobytes(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up exported offsets; sources beyond the bound are left out."""
        source = np.frombuffer(state["source"], "<u8").astype(np.uint64)
        offset = np.frombuffer(state["offset_ns"], "<i8").astype(np.int64)
        ids = self._add(source, 0)
        self._minimum[ids[ids >= 0]] = offset[ids >= 0, None]  # rolls out within the hour

    def _add(self, distinct: UInt64s, mono_ns: int) -> Int32s:
        keys = np.stack([distinct, np.zeros_like(distinct)], axis=1)
        ids, new, _ = self._index.add(keys)
        if len(self._first) < self._index.capacity:
            self._grow(self._index.capacity)
        self._minimum[new] = _FAR
        for column, empty in ((self._first, 0), (self._newest, 0), (self._future_since, _NONE)):
            column[new] = empty
        for speed in (self._event_s, self._arrival_s, self._calm_s):
            speed[new] = 0.0
        self._arrived[new] = self._since[new] = mono_ns
        self._catching[new] = False
        return ids

    def _grow(self, capacity: int) -> None:
        more = capacity - len(self._catching)
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray):
                rest = np.zeros((more, *column.shape[1:]), column.dtype)
                setattr(self, name, np.concatenate([column, rest]))

    def _roll(self, mono_ns: int) -> None:
        bucket = mono_ns // BUCKET_NS
        if self._bucket < 0:  # what was restored counts as heard just now
            self._bucket = bucket
            self._arrived[:] = mono_ns
        for number in range(max(self._bucket + 1, bucket - BUCKETS + 1), bucket + 1):
            self._minimum[:, number % BUCKETS] = _FAR
        self._bucket = max(self._bucket, bucket)

    def _future(
        self,
        ids: Int32s,
        inverse: np.ndarray[tuple[int], np.dtype[np.intp]],
        time_ns: Int64s,
        now: Instant,
    ) -> Bools:
        """Rows more than ten seconds ahead of where their source's clock was so far."""
        known = ids >= 0
        offset = np.full(len(ids), _FAR, np.int64)
        offset[known] = self._minimum[ids[known]].min(axis=1)
        ahead_ns = time_ns - now.wall_ns + np.minimum(offset, 0)[inverse]
        future: Bools = (offset != _FAR)[inverse] & (ahead_ns > FUTURE_NS)
        if not future.any():
            self._future_since[ids[known]] = _NONE
            return future
        good = np.zeros(len(ids), np.bool_)
        good[inverse[~future]] = True
        wholly = known & ~good
        since = self._future_since[ids[wholly]]
        self._future_since[ids[wholly]] = np.where(since == _NONE, now.mono_ns, since)
        self._future_since[ids[known & good]] = _NONE
        stepped = np.zeros(len(ids), np.bool_)
        stepped[wholly] = (since != _NONE) & (now.mono_ns - since >= STEP_NS)
        future &= ~stepped[inverse]
        return future

    def _advance(self, ids: Int32s, newest: Int64s, now: Instant) -> None:
        column = self._bucket % BUCKETS
        self._minimum[ids, column] = np.minimum(self._minimum[ids, column], now.wall_ns - newest)
        # All that arrives at the first instant is one first look, in however many parts it comes.
        is_first = self._since[ids] == now.mono_ns
        first = np.maximum(self._first[ids[is_first]], newest[is_first])
        self._first[ids[is_first]] = self._newest[ids[is_first]] = first
        arrival_s = (now.mono_ns - self._arrived[ids]) / NS_PER_S
        event_s = np.maximum(newest - self._newest[ids], 0) / NS_PER_S
        fast = event_s > SPEED * arrival_s
        calm_s = np.where(fast, 0.0, self._calm_s[ids] + arrival_s)
        fade = np.where(calm_s < CALM_S, np.exp(-arrival_s / SPEED_WINDOW_S), 0.0)
        event_s += self._event_s[ids] * fade
        arrival_s += self._arrival_s[ids] * fade
        self._event_s[ids], self._arrival_s[ids], self._calm_s[ids] = event_s, arrival_s, calm_s
        self._newest[ids] = np.maximum(self._newest[ids], newest)
        self._arrived[ids] = now.mono_ns
        self._catching[ids] = (event_s > SPEED * arrival_s) & (event_s > arrival_s + GAIN_S)
