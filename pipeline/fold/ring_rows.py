"""Rows of rings, given to the cells of endpoint slots as they are first needed.

A cell is a slot and whatever tells the slot's rows apart (observer, kind); most cells of most slots
never hold anything, so that rows, not cells, cost memory.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pipeline.fold.buckets import BucketRing
from pipeline.model import Int32s, Int64s, Observer

CHOICES_KEPT: Final = 8
"""A tick asks for fewer different ones of each table."""


class RingRows:
    """The rows of several rings that hold the same cells, each slot having `per_slot` of them."""

    def __init__(self, rings: tuple[BucketRing[Any], ...], per_slot: int) -> None:
        """Start with no slots; `per_slot` is a multiple of the number of observers."""
        self._rings = rings
        self._per_slot = per_slot
        self._row: Int64s = np.zeros(0, np.int64)
        self._used = 0
        self._free: list[int] = []
        self._chosen: list[tuple[npt.NDArray[np.int8], int, Int64s]] = []
        """The last choices and their rows: a tick asks for the same few several times."""

    @property
    def nbytes(self) -> int:
        """Memory of the rings, in bytes."""
        return sum(ring.nbytes for ring in self._rings)

    def resize(self, n_slots: int) -> None:
        """Make room for `n_slots`; it never shrinks."""
        missing = max(0, n_slots * self._per_slot - len(self._row))
        self._row = np.concatenate((self._row, np.full(missing, -1, np.int64)))
        self._chosen = []

    def rows(self, cell: Int64s) -> Int64s:
        """int64[k] rows of cells, k > 0, given where new."""
        row: Int64s = self._row.take(cell)
        is_new = row < 0
        if np.count_nonzero(is_new):
            self._give(np.unique(cell[is_new]))
            row = self._row.take(cell)
        return row

    def _give(self, new: Int64s) -> None:
        spare = [self._free.pop() for _ in range(min(len(new), len(self._free)))]
        used = self._used + len(new) - len(spare)
        for ring in self._rings:
            if used > ring.rows:
                ring.grow(max(8, used, ring.rows + ring.rows // 4))
        self._row[new] = [*spare, *range(self._used, used)]
        self._used = used
        self._chosen = []

    def forget(self, slots: Int32s) -> None:
        """Empty the rows of slots, for other cells."""
        first = slots[:, None].astype(np.int64) * self._per_slot
        cells = (first + np.arange(self._per_slot)).reshape(-1)
        rows = self._row[cells]
        rows = rows[rows >= 0]
        for ring in self._rings:
            ring.clear(rows)
        self._free.extend(rows.tolist())
        self._row[cells] = -1
        self._chosen = []

    def of(
        self, sums: npt.NDArray[np.integer], observer: npt.NDArray[np.int8], kind: int = 0
    ) -> npt.NDArray[np.integer]:
        """[n slots, width] of sums [rows, width]: the chosen observer's, zeros where none is."""
        return picked(sums, self.chosen(observer, kind))

    def chosen(self, observer: npt.NDArray[np.int8], kind: int = 0) -> Int64s:
        """int64[n slots]: the row of the chosen observer; -1 where there is none.

        Neither what goes in nor what comes out is to be changed.
        """
        for asked, of_kind, row in self._chosen:
            if asked is observer and of_kind == kind:
                return row
        row = self._choose(observer, kind)
        self._chosen = [(observer, kind, row), *self._chosen[: CHOICES_KEPT - 1]]
        return row

    def _choose(self, observer: npt.NDArray[np.int8], kind: int) -> Int64s:
        if not self._used:
            return np.full(len(observer), -1, np.int64)
        kinds = self._per_slot // len(Observer)
        cells = np.arange(len(observer)) * self._per_slot + np.maximum(observer, 0) * kinds + kind
        row: Int64s = self._row.take(cells)
        row[observer < 0] = -1
        return row

    def by_cell(self, sums: Int64s) -> npt.NDArray[np.integer]:
        """int64[n slots * per_slot] of sums [rows]; zeros for cells without a row."""
        return picked(sums, self._row)


def picked(sums: npt.NDArray[np.integer], row: Int64s) -> npt.NDArray[np.integer]:
    """The rows of `sums` [rows, ...] at `row` [k]; zeros where that is -1."""
    if not len(sums):
        return np.zeros((len(row), *sums.shape[1:]), sums.dtype)
    picked = sums.take(np.maximum(row, 0), axis=0)
    picked[row < 0] = 0
    return picked
