"""One trace a row and bucket of time: of the requests offered, the one that ranks highest.

Enters: rows, ranks and trace ids of requests. Leaves: the best of a window. Ties go to the later
request, then the longer one, then the larger trace id, so that order leaves no trace. A bucket's
exemplars go with it (OpenTelemetry metrics data model, "Exemplars").
"""

from typing import Final, NamedTuple

import numpy as np

from pipeline.clock import NS_PER_S
from pipeline.model import Bools, Bytes, Floats, Int64s, UInt64s

UNRANKED: Final = -2
"""The rank of a request that can be nobody's exemplar, having no trace id, say."""
_NOBODY: Final = -1
_RANK, _AT, _DURATION, _TRACE = range(4)
_WIDTH: Final = 5
"""Rank, event time, duration (-1 = unknown) and the trace id in two halves."""


class Exemplars(NamedTuple):
    """One trace a row, k of them; a trace id of zeros = there is none."""

    trace_id: Bytes
    """uint8[k, 16]"""
    duration_s: Floats
    """NaN where unknown."""
    at_ns: Int64s
    """Event time, corrected by the clock offset of its source; 0 = none."""


class BestTraces:
    """A ring of `length` buckets of time with at most one trace a row each."""

    def __init__(self, length: int) -> None:
        """Start without rows at bucket 0; `advance` and `grow` come first."""
        self._length = length
        self._head = 0
        self._best: Int64s = _blank(length, 0)

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        return self._best.nbytes

    def grow(self, rows: int) -> None:
        """Make room for `rows` rows, keeping those there are."""
        missing = rows - self._best.shape[1]
        if missing > 0:
            self._best = np.concatenate((self._best, _blank(self._length, missing)), axis=1)

    def advance(self, bucket: int) -> None:
        """Open `bucket`; what is older than the ring is gone. Going back does nothing."""
        for opened in range(max(self._head + 1, bucket - self._length + 1), bucket + 1):
            self._best[opened % self._length, :, _RANK] = _NOBODY
        self._head = max(self._head, bucket)

    def offer(
        self,
        bucket: Int64s,
        row: Int64s,
        rank: Int64s,
        at_ns: Int64s,
        duration_s: Floats,
        trace: UInt64s,
    ) -> None:
        """Offer requests [k], trace ids as uint64[k, 2], for their buckets, which are kept ones."""
        rows = self._best.shape[1]
        place = bucket % self._length * rows + row
        some = (rank >= self._best.reshape(-1).take(place * _WIDTH + _RANK)).nonzero()[0]
        if not len(some):
            return
        some = some[_is_highest(place[some], rank[some])]
        entries = np.empty((len(some), _WIDTH), np.int64)
        entries[:, _RANK], entries[:, _AT] = rank[some], at_ns[some]
        entries[:, _DURATION] = np.rint(np.nan_to_num(duration_s[some], nan=-1e-9) * NS_PER_S)
        entries[:, _TRACE:] = np.ascontiguousarray(trace[some]).view(np.int64)
        place, entries = _best_each(place[some], entries)
        held = self._best.reshape(-1, _WIDTH)
        better = _beats(entries, held[place])
        held[place[better]] = entries[better]

    def window(self, buckets: int, rows: Int64s) -> Exemplars:
        """The best of `rows` [k] over the newest `buckets`, the open one included."""
        best = self._best[self._head % self._length, rows]
        for back in range(1, buckets):
            other = self._best[(self._head - back) % self._length, rows]
            better = _beats(other, best)
            best[better] = other[better]
        is_none = best[:, _RANK] < 0
        best[is_none] = 0
        duration_ns = best[:, _DURATION]
        is_unknown = is_none | (duration_ns < 0)
        trace = np.ascontiguousarray(best[:, _TRACE:])
        return Exemplars(
            trace_id=trace.view(np.uint8).reshape(len(rows), 16),
            duration_s=np.where(is_unknown, np.nan, duration_ns / NS_PER_S),
            at_ns=best[:, _AT].copy(),
        )


def _blank(length: int, rows: int) -> Int64s:
    blank = np.zeros((length, rows, _WIDTH), np.int64)
    blank[:, :, _RANK] = _NOBODY
    return blank


def _is_highest(place: Int64s, rank: Int64s) -> Bools:
    """bool[k]: no other of the same place ranks higher."""
    most = np.full(int(place.max()) + 1, _NOBODY, np.int64)
    np.maximum.at(most, place, rank)
    is_highest: Bools = rank == most.take(place)
    return is_highest


def _best_each(place: Int64s, entries: Int64s) -> tuple[Int64s, Int64s]:
    """The places, distinct, and the best entry of each."""
    if len(place) == 1:
        return place, entries
    order = np.lexsort((*entries.T[::-1], place))
    place = place[order]
    is_last = np.append(place[1:] != place[:-1], True)
    return place[is_last], entries[order[is_last]]


def _beats(entries: Int64s, held: Int64s) -> Bools:
    """bool[k]: the entry is the greater one, column by column."""
    beats, tied = np.zeros(len(entries), np.bool_), np.ones(len(entries), np.bool_)
    for entry, other in zip(entries.T, held.T, strict=True):
        beats |= tied & (entry > other)
        tied &= entry == other
    return beats
