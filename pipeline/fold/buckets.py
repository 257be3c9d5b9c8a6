"""Counts in buckets of time: a ring of them, and running sums of the windows that are asked for.

Everything is an integer, so a sum is exact whatever the order of addition, and a window's running
sum equals the sum over its buckets at any time.
"""

from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from pipeline.model import Int32s, Int64s

MAX_WINDOWS: Final = 4
"""Window lengths with a running sum; others are summed anew each time."""

_Count = TypeVar("_Count", np.int64, np.uint16)


class BucketRing(Generic[_Count]):
    """Counts [length, rows, width] with running sums [rows, width] per window length.

    Buckets are numbered (a bucket is a second, say); `head` is the open one, which the caller
    moves with `advance` before adding to it. A cell that would pass the dtype's maximum stays
    there, and `full` counts what it could not take.
    """

    def __init__(self, length: int, width: int, dtype: type[_Count]) -> None:
        """Keep `length` buckets, the open one included; start with no rows at bucket 0."""
        self.head = 0
        self.full = 0
        self._width = width
        self._length = length
        self._dtype: type[Any] = dtype
        self._sum_dtype: type[Any] = np.int64 if dtype is np.int64 else np.int32
        self._limit = int(np.iinfo(dtype).max)
        self._ring: npt.NDArray[_Count] = np.zeros((self._length, 0, width), dtype)
        self._sums: dict[int, npt.NDArray[np.signedinteger]] = {}

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

    def advance(self, bucket: int) -> None:
        """Open `bucket`; what is older than the ring is gone. Going back does nothing."""
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
        self.head = max(self.head, bucket)

    def add(self, bucket: Int64s, row: Int32s, column: Int32s | int, amount: Int64s | int) -> None:
        """Add `amount` at (bucket, row, column), all [k]; buckets lie inside the ring."""
        if not len(bucket):
            return
        cell = row.astype(np.int64) * self._width + column
        size = self.rows * self._width
        if self._dtype is np.int64:
            np.add.at(self._ring.reshape(-1), (bucket % self._length) * size + cell, amount)
            for window, total in self._sums.items():
                inside = bucket > self.head - window
                part = amount if isinstance(amount, int) else amount[inside]
                np.add.at(total.reshape(-1), cell[inside], part)
            return
        self._add_bounded(bucket, cell, size)

    def _add_bounded(self, bucket: Int64s, cell: Int64s, size: int) -> None:
        """Count one each, stopping at the dtype's maximum.

        What is added has the dtype of what it is added to: anything else slows `at` down 20 times.
        """
        flat = self._ring.reshape(-1)
        at = (bucket % self._length) * size + cell
        taken: Int64s | int = 1
        if int(flat[at].max()) + len(at) > self._limit:
            at, first, counts = np.unique(at, return_index=True, return_counts=True)
            bucket, cell = bucket[first], cell[first]
            taken = np.minimum(counts, self._limit - flat[at].astype(np.int64))
            self.full += int((counts - taken).sum())
        np.add.at(flat, at, self._dtype(taken))
        for window, total in self._sums.items():
            inside = bucket > self.head - window
            part = taken if isinstance(taken, int) else taken[inside]
            np.add.at(total.reshape(-1), cell[inside], self._sum_dtype(part))

    def window(self, buckets: int) -> npt.NDArray[np.signedinteger]:
        """[rows, width] sums over the newest `buckets`, the open one included; not to be kept."""
        if buckets in self._sums:
            return self._sums[buckets]
        total = np.zeros((self.rows, self._width), self._sum_dtype)
        for back in range(buckets):
            total += self._ring[(self.head - back) % self._length]
        if len(self._sums) < MAX_WINDOWS:
            self._sums[buckets] = total
        return total

    def clear(self, rows: Int32s) -> None:
        """Empty some rows, for other owners."""
        self._ring[:, rows] = 0
        for total in self._sums.values():
            total[rows] = 0
