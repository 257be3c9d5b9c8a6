"""Counts in buckets of time: a ring of them, and running sums of the windows that are asked for.

Everything is an integer, so a sum is exact whatever the order of addition, and a window's running
sum equals the sum over its buckets at any time.
"""

from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from pipeline.model import Int32s, Int64s

MAX_WINDOWS: Final = 4
"""Window lengths with a running sum, if not told otherwise; others are summed anew each time."""

Some: TypeAlias = npt.NDArray[np.intp] | slice
"""Which rows: their indices, or all of them as a slice, which copies nothing."""
ALL: Final = slice(None)

_Count = TypeVar("_Count", np.int64, np.uint32, np.uint16)


class Spots(NamedTuple):
    """Where k rows count, in column 0."""

    bucket: Int64s
    cell: Int64s
    """In a sum over buckets, flattened."""
    at: Int64s
    """In the ring, flattened."""
    oldest: int
    """No bucket is smaller."""

    def pick(self, some: Some) -> "Spots":
        """Some of the rows."""
        if isinstance(some, slice):
            return self
        return Spots(self.bucket[some], self.cell[some], self.at[some], self.oldest)


class BucketRing(Generic[_Count]):
    """Counts [length, rows, width] with running sums [rows, width] per window length.

    Buckets are numbered (a bucket is a second, say); `head` is the open one, which the caller
    moves with `advance` before adding to it. A cell that would pass the dtype's maximum stays
    there, and `full` counts what it could not take.
    """

    def __init__(
        self, length: int, width: int, dtype: type[_Count], max_windows: int = MAX_WINDOWS
    ) -> None:
        """Keep `length` buckets, the open one included; start with no rows at bucket 0.

        At most `max_windows` window lengths have running sums: 0 where much is added, little read.
        """
        self.head = 0
        self.full = 0
        self._width = width
        self._length = length
        self._max_windows = max_windows
        self._dtype: type[Any] = dtype
        self._sum_dtype: type[Any] = np.int32 if dtype is np.uint16 else np.int64
        self._limit = int(np.iinfo(dtype).max)
        self._ring: npt.NDArray[_Count] = np.zeros((self._length, 0, width), dtype)
        self._sums: dict[int, npt.NDArray[np.signedinteger]] = {}
        self._starts = self._bucket_starts()

    @property
    def rows(self) -> int:
        """How many rows there is room for."""
        return int(self._ring.shape[1])

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        return self._ring.nbytes + sum(total.nbytes for total in self._sums.values())

    def grow(self, rows: int) -> None:
        """Make room for `rows` rows, keeping those there are."""
        grown = np.zeros((self._length, rows, self._width), self._dtype)
        for at in range(self._length):  # block by block: untouched pages stay unallocated
            grown[at, : self.rows] = self._ring[at]
        for window, total in self._sums.items():
            wider = np.zeros((rows, self._width), self._sum_dtype)
            wider[: self.rows] = total
            self._sums[window] = wider
        self._ring = grown
        self._starts = self._bucket_starts()

    def advance(self, bucket: int) -> None:
        """Open `bucket`; what is older than the ring is gone. Going back does nothing."""
        if bucket <= self.head:
            return
        if bucket - self.head >= self._length:
            self._ring[:] = 0
            for total in self._sums.values():
                total[:] = 0
            self.head = bucket
        for opened in range(self.head + 1, bucket + 1):
            for buckets, total in self._sums.items():
                expired = self._ring[(opened - buckets) % self._length]
                np.subtract(total, expired, out=total)
            self._ring[opened % self._length] = 0
        self.head = bucket
        self._starts = self._bucket_starts()

    def _bucket_starts(self) -> Int64s:
        """int64[length]: where each bucket begins in the flattened ring, the oldest first."""
        buckets = np.arange(self.head - self._length + 1, self.head + 1, dtype=np.int64)
        return buckets % self._length * (self.rows * self._width)

    def spots(self, bucket: Int64s, row: Int64s, oldest: int) -> Spots:
        """Where rows count in their buckets, all [k]; buckets lie inside the ring.

        No bucket is smaller than `oldest`; a bound that is near saves looking at each.
        """
        cell = row * self._width
        start = self._starts.take(bucket - (self.head - self._length + 1))
        return Spots(bucket, cell, start + cell, oldest)

    def add(self, spots: Spots, column: Int32s | int, amount: Int64s | int) -> None:
        """Add `amount` in a column at each spot (columns and amounts are [k] or one for all)."""
        if len(spots.at):
            np.add.at(self._ring.reshape(-1), spots.at + column, amount)
            self._add_to_sums(spots.bucket, spots.cell + column, amount, spots.oldest)

    def add_newest(self, amounts: npt.NDArray[_Count]) -> None:
        """Add `amounts` [k, m, width] to the first m rows of the newest k buckets, the open first.

        For counts that cannot pass the dtype's maximum.
        """
        rows = amounts.shape[1]
        for back, amount in enumerate(amounts):
            self._ring[(self.head - back) % self._length, :rows] += amount
            for window, total in self._sums.items():
                if back < window:
                    total[:rows] += amount

    def count(self, spots: Spots, column: Int32s, more: Int64s | int = 1) -> None:
        """Count `more` (one, or [k]) in a column [k] at each spot, up to the dtype's maximum."""
        if not len(spots.at):
            return
        flat = self._ring.reshape(-1)
        at, cell, bucket = spots.at + column, spots.cell + column, spots.bucket
        most = len(at) * more if isinstance(more, int) else int(more.sum())
        if int(np.maximum.reduce(flat.take(at))) + most > self._limit:
            at, first, inverse = np.unique(at, return_index=True, return_inverse=True)
            bucket, cell = bucket[first], cell[first]
            wanted = np.zeros(len(at), np.int64)
            np.add.at(wanted, inverse, more)
            more = np.minimum(wanted, self._limit - flat[at].astype(np.int64))
            self.full += int((wanted - more).sum())
        # What is added has the dtype of what it is added to, else `at` is 20 times slower.
        np.add.at(flat, at, self._dtype(more))
        self._add_to_sums(bucket, cell, self._sum_dtype(more), spots.oldest)

    def _add_to_sums(self, bucket: Int64s, cell: Int64s, amount: Any, oldest: int) -> None:
        for window, total in self._sums.items():
            flat = total.reshape(-1)
            if oldest > self.head - window:
                np.add.at(flat, cell, amount)
                continue
            inside = (bucket > self.head - window).nonzero()[0]
            part = amount[inside] if np.ndim(amount) else amount
            np.add.at(flat, cell[inside], part)

    def window(self, buckets: int) -> npt.NDArray[np.integer]:
        """[rows, width] sums over the newest `buckets`, the open one included; not to be kept."""
        if buckets == 1:
            newest: npt.NDArray[np.integer] = self._ring[self.head % self._length]
            return newest
        if buckets in self._sums:
            return self._sums[buckets]
        total = np.zeros((self.rows, self._width), self._sum_dtype)
        for back in range(buckets):
            total += self._ring[(self.head - back) % self._length]
        if len(self._sums) < self._max_windows:
            self._sums[buckets] = total
        return total

    def column(self, buckets: int, column: int) -> Int64s:
        """int64[rows]: one column over the newest `buckets`; for a few, no sum is kept running."""
        newest = [(self.head - back) % self._length for back in range(buckets)]
        total: Int64s = self._ring[newest, :, column].sum(axis=0, dtype=np.int64)
        return total

    def clear(self, rows: Int32s) -> None:
        """Empty some rows, for other owners."""
        self._ring[:, rows] = 0
        for total in self._sums.values():
            total[rows] = 0
