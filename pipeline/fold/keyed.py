"""Windows by key: counts, sums and latency sketches of a bounded number of keys.

Enters: batches of requests, with a key, its group and the use of each. Leaves: the keys that did
anything in a window. Everything kept is a whole number, so neither order nor batches matter; what
has no row of its own counts in an overflow row, so sums over rows are sums over requests.
"""

from typing import Final, NamedTuple

import numpy as np

from pipeline.fold.amounts import ONE, picked_weight, sums
from pipeline.fold.buckets import ALL, BucketRing, Some
from pipeline.fold.key_rows import KeyRows
from pipeline.fold.sketch import Counts, ExponentialHistograms, LogBuckets
from pipeline.fold.waiting import BLOCK_S, MICROS_PER_S, Batch
from pipeline.model import Bytes, Floats, Int64s, Outcome, UInt64s

BLOCKS: Final = 14
"""Buckets kept: two minutes of them begin and end inside a bucket, and what has waited while the
process stood still is up to ten seconds older."""

MAX_WINDOW_S: Final = 120

USE_CALLS, USE_FAILURES, USE_TOKENS, USE_TTFT = 1, 2, 4, 8
"""What a request counts for, as bits: whatever is read from its observer."""
USE_ALL: Final = 15
_USE_OF_TIMED: Final = np.array([USE_CALLS, USE_TTFT, USE_TOKENS], np.uint8)
"""The mean time between tokens is known to whoever knows the tokens."""

CALLS, FAILURES, OVERLOADS, FAILURE_CALLS, PROMPT, OUTPUT = range(6)
COUNTS: Final = 6


class Sketches(NamedTuple):
    """Latency sketches of k rows, `timed` of them each."""

    buckets: LogBuckets
    counts: Counts
    """[k, timed, buckets.n]"""
    sum_s: Floats
    """float64[k, timed]: of all that was counted, to the microsecond."""

    def exponential(self, timed: int) -> ExponentialHistograms:
        """Those of one kind as OTLP's exponential histograms; nothing is lost."""
        return self.buckets.exponential(self.counts[:, timed], self.sum_s[:, timed])

    def quantiles(self, q: tuple[float, ...]) -> tuple[Int64s, Floats]:
        """How many were timed, int64[k, timed], and quantiles, float64[len(q), k, timed]."""
        shape = self.sum_s.shape
        flat = self.counts.reshape(-1, self.buckets.n)
        totals, values = self.buckets.totals_and_quantiles(flat, q)
        return totals.reshape(shape), values.reshape(len(q), *shape)


class KeyedWindow(NamedTuple):
    """The k rows that anything counted in, in the order of group and key."""

    row: Int64s
    group: Int64s
    key: UInt64s
    counts: Floats
    """float64[k, COUNTS], in requests and tokens."""
    sketches: Sketches


class Counted(NamedTuple):
    """Where the requests of a batch were counted."""

    row: Int64s
    """int64[n]; meaningless without any use."""
    refused: int
    """How many of them count in an overflow row, their keys having found no room."""
    full: int
    """How many were not timed, the sketch being full."""


class KeyedFold:
    """Windows of up to `max_keys` keys. Order: `advance`, then `add` what lies inside the ring."""

    def __init__(self, max_keys: int, expire_after_s: int, buckets: LogBuckets, timed: int) -> None:
        """Keep the first `timed` of what is timed; keys go when unheard of for long enough."""
        self._keys = KeyRows(max_keys, expire_after_s)
        self._buckets = buckets
        self._timed = timed
        self._counts = BucketRing(BLOCKS, COUNTS + timed, np.int64)
        self._sketch = BucketRing(BLOCKS, buckets.n, np.uint32, max_windows=0)
        self._fit()

    @property
    def nbytes(self) -> int:
        """Memory of the rings, in bytes."""
        return self._counts.nbytes + self._sketch.nbytes

    @property
    def rows(self) -> int:
        """How many rows there is room for."""
        return self._counts.rows

    def __len__(self) -> int:
        """How many keys have a row of their own."""
        return len(self._keys)

    def advance(self, second: int) -> None:
        """Open the bucket of `second`; keys that are idle for too long go as it turns."""
        if second // BLOCK_S > self._counts.head:
            self._counts.advance(second // BLOCK_S)
            self._sketch.advance(second // BLOCK_S)
            self._keys.expire(second)

    def add(self, batch: Batch, group: Int64s, key: UInt64s, use: Bytes, second: int) -> Counted:
        """Count requests that are heard of in `second`; `use` uint8[n] says what for."""
        row, refused = self._rows(group, key, use, second)
        back = self._counts.head - batch.block
        deepest = int(np.maximum.reduce(back))
        place = row if not deepest else back * self.rows + row
        amounts = np.empty(((deepest + 1) * self.rows, COUNTS + self._timed), np.int64)
        self._count(batch, place, use, amounts)
        full = self._sketch.full
        self._time(batch, row, place, use, amounts)
        self._counts.add_newest(amounts.reshape(deepest + 1, self.rows, -1))
        return Counted(row, refused, self._sketch.full - full)

    def _rows(self, group: Int64s, key: UInt64s, use: Bytes, second: int) -> tuple[Int64s, int]:
        used = using(use, USE_ALL)
        row, refused = self._keys.rows(group[used], key[used], second)
        self._fit()
        if isinstance(used, slice):
            return row, refused
        every = np.zeros(len(use), np.int64)
        every[used] = row
        return every, refused

    def _fit(self) -> None:
        if self._keys.size > self.rows:
            rows = max(8, self._keys.size, self.rows + self.rows // 4)
            self._counts.grow(rows)
            self._sketch.grow(rows * self._timed)

    def _count(self, batch: Batch, place: Int64s, use: Bytes, amounts: Int64s) -> None:
        size = len(amounts)
        for column, bit in ((CALLS, USE_CALLS), (FAILURE_CALLS, USE_FAILURES)):
            some = using(use, bit)
            amounts[:, column] = sums(place[some], picked_weight(batch.weight, some), size)
        for column, outcome in ((FAILURES, Outcome.FAILURE), (OVERLOADS, Outcome.OVERLOAD)):
            ended = ((batch.outcome == outcome) & (use & USE_FAILURES > 0)).nonzero()[0]
            amounts[:, column] = sums(place[ended], picked_weight(batch.weight, ended), size)
        some = using(use, USE_TOKENS)
        for column, tokens in ((PROMPT, batch.prompt), (OUTPUT, batch.output)):
            amounts[:, column] = sums(place[some], tokens[some], size)

    def _time(self, batch: Batch, row: Int64s, place: Int64s, use: Bytes, amounts: Int64s) -> None:
        timed = batch.timed.of_first(self._timed)
        some = using(use.take(timed.row) & _USE_OF_TIMED.take(timed.what), USE_ALL)
        of, what = timed.row[some], timed.what[some]
        cell = place.take(of) * self._timed + what
        micros = sums(cell, timed.micros[some], len(amounts) * self._timed)
        amounts[:, COUNTS:] = micros.reshape(len(amounts), self._timed)
        spots = self._sketch.spots(
            batch.block.take(of), row.take(of) * self._timed + what, self._sketch.head
        )
        requests = picked_weight(timed.requests, some)
        self._sketch.count(spots, timed.bucket[some], requests)

    def window(self, seconds: int) -> KeyedWindow:
        """What counts in the newest `seconds` (1..120), in whole buckets, the open one included."""
        buckets = -(-seconds // BLOCK_S)
        row = self._keys.held()
        counts = self._counts.window(buckets)[row]
        sketches = self._sketch.window(buckets).reshape(-1, self._timed, self._buckets.n)[row]
        is_active = counts.any(axis=1) | sketches.any(axis=(1, 2))  # a timing may be 0 s
        row, counts, sketches = row[is_active], counts[is_active], sketches[is_active]
        group, key = self._keys.keys(row)
        return KeyedWindow(
            row,
            group,
            key,
            counts[:, :COUNTS] / ONE,
            Sketches(self._buckets, sketches, counts[:, COUNTS:] / MICROS_PER_S),
        )


def using(use: Bytes, bits: int) -> Some:
    """The rows that are used for any of the `bits`."""
    has = use & np.uint8(bits)
    return ALL if np.count_nonzero(has) == len(has) else has.nonzero()[0]
