"""What was counted a moment ago, so that one request counts once an observer across batches too.

Two things are the same request in different batches: a span and the span right inside it, of one
observer and endpoint (an SDK's call and its HTTP call, a sidecar's), and a proxy's span and its
access-log record, told by request id or trace. Memory is fixed: ids are random, so a place holds
two of them until others take it, half a minute at thousands of requests a second.
"""

from typing import Final

import numpy as np

from pipeline.fingerprint.combinations import hashes_of
from pipeline.fingerprint.places import FACTOR
from pipeline.model import Bools, Int64s, Observer, RequestRows, RequestTraits, UInt64s

BITS: Final = 17
"""Places of each table for two keys: 2 MB, of a tally 4 MB, not touched before they are needed."""
_MIX: Final = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT: Final = np.uint64(31)
_OBSERVERS: Final = np.uint64(len(Observer))
_ONE, _SPAN, _LOG = np.uint64(1), np.uint64(2), np.uint64(3)
_HALF, _QUARTER = np.uint64(32), np.uint64(16)
_LOW, _COUNT = np.uint64(0xFFFFFFFF), np.uint64(0xFFFF)
"""A number is two reporters, 16 bits each, with a count of 16 bits each."""
MAX_REPORTERS: Final = 32
"""Reporters of one batch that are told apart where some tell of one request."""


class RecentCalls:
    """Tells which rows are requests that the same observer has already counted."""

    def __init__(self) -> None:
        """Nothing counted yet."""
        self._spans: _Keys | None = None
        self._parents: _Keys | None = None
        self._by_trace: _Tally | None = None
        self._by_request: _Tally | None = None

    def duplicates(self, rows: RequestRows, traits: RequestTraits) -> Bools | None:
        """bool[n]; None = none of them. The rows that are no duplicates are counted from now on."""
        nested = self._nested(rows, traits)
        again = self._told(rows, traits, nested)
        if nested is None or again is None:
            return again if nested is None else nested
        return nested | again

    # spans inside each other

    def _nested(self, rows: RequestRows, traits: RequestTraits) -> Bools | None:
        span, parent = traits.span_id, traits.parent_span_id
        if span is None:
            return None
        if self._spans is None or self._parents is None:
            self._spans, self._parents = _Keys(), _Keys()
        whose = rows.slot.astype(np.uint64) * _OBSERVERS + rows.observer + _ONE
        own = _keyed(span, whose)
        above = None if parent is None else _keyed(parent, whose)
        is_duplicate = None if self._parents.is_empty else self._parents.has(own)
        if above is not None:
            is_inner = self._spans.has(above)
            is_duplicate = is_inner if is_duplicate is None else is_duplicate | is_inner
        if is_duplicate is None or not np.count_nonzero(is_duplicate):
            is_duplicate = None
        else:
            own, above = own[~is_duplicate], None if above is None else above[~is_duplicate]
        self._spans.add(own)
        if above is not None:
            self._parents.add(above)
        return is_duplicate

    # proxies: spans and access logs

    def _told(
        self, rows: RequestRows, traits: RequestTraits, left_out: Bools | None
    ) -> Bools | None:
        """Rows that another reporter has told of.

        By trace only spans and records stand for each other, since a trace may hold many requests;
        by request id every reporter tells of the same ones.
        """
        is_proxy = rows.observer == Observer.PROXY
        if left_out is not None:
            is_proxy &= ~left_out
        of = is_proxy.nonzero()[0]
        if not len(of):
            return None
        if self._by_trace is None or self._by_request is None:
            self._by_trace, self._by_request = _Tally(), _Tally()
        slot, side = rows.slot[of].astype(np.uint64) + _ONE, _LOG if traits.is_log else _SPAN
        words = np.ascontiguousarray(rows.trace_id[of]).view(np.uint64)
        trace = _keyed(words[:, 0] * FACTOR ^ words[:, 1], slot)
        is_duplicate = self._by_trace.take(trace, np.full(len(of), side))
        if traits.request_id is not None:
            request = hashes_of(traits).take(traits.request_id[of], mode="wrap")
            reporters = ((rows.source[of] ^ side) * FACTOR) >> np.uint64(48) | _ONE
            is_duplicate |= self._by_request.take(_keyed(request, slot), reporters)
        if not np.count_nonzero(is_duplicate):
            return None
        found = np.zeros(rows.n, np.bool_)
        found[of[is_duplicate]] = True
        return found


def _keyed(ids: UInt64s, whose: UInt64s) -> UInt64s:
    """Ids of one endpoint and observer; 0 stays 0."""
    key = (ids ^ (whose * FACTOR)) * _MIX
    key ^= key >> _SHIFT
    key[ids == 0] = 0
    return key


class _Keys:
    """A set of keys; of three that share a place the oldest is forgotten."""

    def __init__(self) -> None:
        self._newer, self._older = np.zeros((2, 1 << BITS), np.uint64)
        self.is_empty = True

    def has(self, keys: UInt64s) -> Bools:
        """bool[n]: whether each is there; 0 never is."""
        at = _places(keys)
        found: Bools = self._newer.take(at) == keys
        found |= self._older.take(at) == keys
        found &= keys != 0
        return found

    def add(self, keys: UInt64s) -> None:
        """Remember keys; 0 means nothing."""
        self.is_empty = False
        at = _places(keys)
        self._older[at] = self._newer.take(at)
        self._newer[at] = keys
        displaced = self._newer.take(at) != keys
        if np.count_nonzero(displaced):
            self._older[at[displaced]] = keys[displaced]


class _Tally:
    """How often each of two reporters told of a key.

    A row is new if its reporter has now told more often than the other: of n rows of one reporter
    and m of the other max(n, m) count, in whatever order they come. A third reporter takes the
    place of the second. A place of the table holds two keys, each with one packed number.
    """

    def __init__(self) -> None:
        self._rows = np.zeros((1 << BITS, 4), np.uint64)
        """[place, (newer key, its number, older key, its number)]: one cache line a look-up."""
        self._flat = self._rows.reshape(-1)
        self._whole = self._rows.view("V32")[:, 0]

    def take(self, keys: UInt64s, reporters: UInt64s) -> Bools:
        """bool[n]: whether the other reporter has told of each row already; never of key 0.

        `reporters` are 1..65535.
        """
        result = np.zeros(len(keys), np.bool_)
        of = keys.nonzero()[0]
        if len(of) < len(keys):
            keys, reporters = keys[of], reporters[of]
        ordered = np.sort(keys)
        if not np.count_nonzero(ordered[1:] == ordered[:-1]):
            result[of] = self._take(keys, reporters, None)
            return result
        for reporter in np.unique(reporters)[:MAX_REPORTERS].tolist():
            some = (reporters == reporter).nonzero()[0]
            result[of[some]] = self._take(keys[some], reporters[some], _ranks(keys[some]))
        return result

    def _take(self, keys: UInt64s, reporters: UInt64s, ranks: UInt64s | None) -> Bools:
        """Of keys that are all different, or of one reporter with equal ones ranked."""
        at = _places(keys)
        rows = self._rows.take(at, axis=0)
        is_newer = rows[:, 0] == keys
        number = np.where(is_newer, rows[:, 1], 0)
        is_older = rows[:, 2] == keys
        if np.count_nonzero(is_older):
            number = np.where(is_older & ~is_newer, rows[:, 3], number)
        first, second = number & _LOW, number >> _HALF
        is_first = (first >> _QUARTER) == reporters
        is_first |= first == 0
        own, other = np.where(is_first, first, second), np.where(is_first, second, first)
        own_n = np.where((own >> _QUARTER) == reporters, own & _COUNT, 0) + _ONE
        if ranks is not None:
            own_n += ranks
        found: Bools = own_n <= (other & _COUNT)
        own = np.minimum(own_n, _COUNT) | (reporters << _QUARTER)
        number = np.where(is_first, own | (other << _HALF), other | (own << _HALF))
        np.copyto(rows[:, 2:], rows[:, :2], where=~is_newer[:, None])
        rows[:, 0], rows[:, 1] = keys, number
        self._whole[at] = rows.view("V32")[:, 0]
        displaced = (self._flat.take(at * 4) != keys).nonzero()[0]
        if len(displaced):
            older = at[displaced] * 4 + 2
            self._flat[older], self._flat[older + 1] = keys[displaced], number[displaced]
        return found


def _ranks(keys: UInt64s) -> UInt64s:
    """uint64[n]: how many equal ones come before each.

    >>> _ranks(np.array([7, 4, 7], np.uint64)).tolist()
    [0, 0, 1]
    """
    order = np.argsort(keys, kind="stable")
    is_first = np.append(True, np.diff(keys[order]) != 0)
    place = np.arange(len(keys), dtype=np.uint64)
    ranks = np.empty(len(keys), np.uint64)
    ranks[order] = place - np.maximum.accumulate(np.where(is_first, place, 0))
    return ranks


def _places(keys: UInt64s) -> Int64s:
    return ((keys * FACTOR) >> np.uint64(64 - BITS)).view(np.int64)
