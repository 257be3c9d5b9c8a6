"""Median and MAD of the other members of a group, for all groups at once.

Enters: values of members, some of them unknown. Leaves: per row the median of the others, their
median absolute deviation from it and how many they are. Groups of about one size are the rows of a
matrix, sorted once; leaving one member out gives only three medians a group (it lay below, at or
above the middle), so distances are sorted three times, whatever the number of members.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.model import Bools, Floats, Int32s, Int64s


class Others(NamedTuple):
    """What the other members are like, per row; nothing where the row itself is not known."""

    median: Floats
    """NaN without any."""
    mad: Floats
    """The upper median of their distances from the median."""
    size: Int64s
    """How many they are."""
    own: Floats
    """The row's own value, NaN = unknown."""


class _Sizes(NamedTuple):
    """Groups that fill a matrix of one width to three quarters or more."""

    members: Int64s
    """int64[groups, width] rows; what is no member is row 0."""
    is_member: Bools


class Groups:
    """Rows by group; 12 bytes a row for where it stands in the matrices, and those themselves."""

    def __init__(self, of: Int32s) -> None:
        """`of` int32[n] is the group of each row, -1 = none."""
        self.of = of
        rows = np.flatnonzero(of >= 0)
        rows = rows[np.argsort(of[rows], kind="stable")]
        begins = np.flatnonzero(np.diff(of[rows], prepend=-1))
        sizes = np.diff(begins, append=len(rows))
        self._matrix: npt.NDArray[np.int8] = np.full(len(of), -1, np.int8)
        self._line: Int32s = np.zeros(len(of), np.int32)
        self._column: Int32s = np.zeros(len(of), np.int32)
        widths = _widths(sizes)
        self._sizes = [
            self._enter(number, int(width), rows, begins[widths == width], sizes[widths == width])
            for number, width in enumerate(np.unique(widths))
        ]

    def _enter(
        self, number: int, width: int, rows: Int64s, begins: Int64s, sizes: Int64s
    ) -> _Sizes:
        column = np.arange(width)
        is_member = column < sizes[:, None]
        place = begins[:, None] + column
        members = np.where(is_member, rows.take(place, mode="clip"), 0)
        line, at = np.nonzero(is_member)
        of = members[line, at]
        self._matrix[of], self._line[of], self._column[of] = number, line, at
        return _Sizes(members, is_member)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        held = self.of.nbytes + self._matrix.nbytes + self._line.nbytes + self._column.nbytes
        return held + sum(each.nbytes for sizes in self._sizes for each in sizes)

    def others(self, row: Int64s, known: Callable[[Int64s], Floats]) -> Others:
        """The others of each of `row` int64[k]; `known` gives the values of rows, NaN = unknown."""
        k = len(row)
        found = Others(np.full(k, np.nan), np.full(k, np.nan), np.zeros(k, np.int64), known(row))
        matrix = self._matrix.take(row)
        for number, sizes in enumerate(self._sizes):
            at = np.flatnonzero(matrix == number)
            if len(at):
                self._others(row[at], at, sizes, known, found)
        return found

    def _others(
        self,
        row: Int64s,
        at: Int64s,
        sizes: _Sizes,
        known: Callable[[Int64s], Floats],
        found: Others,
    ) -> None:
        line, column = self._line.take(row), self._column.take(row)
        touched = np.zeros(len(sizes.members), np.bool_)
        touched[line] = True
        members, is_member = sizes.members[touched], sizes.is_member[touched]
        places: Int64s = (np.cumsum(touched) - 1)[line]
        value = known(members.reshape(-1)).reshape(members.shape)
        value[~is_member | np.isnan(value)] = np.inf
        median, mad, size = _leave_one_out(value, places, column)
        found.median[at], found.mad[at], found.size[at] = median, mad, size


def _widths(sizes: Int64s) -> Int64s:
    """Sizes rounded up to three binary digits: few widths, and little room for nobody.

    >>> _widths(np.array([1, 7, 9, 40, 1000])).tolist()
    [1, 7, 10, 40, 1024]
    """
    digits = np.frexp(sizes.astype(np.float64))[1]
    step = 1 << np.maximum(digits - 3, 0).astype(np.int64)
    widths: Int64s = -(-sizes // step) * step
    return widths


def _leave_one_out(value: Floats, line: Int64s, column: Int32s) -> tuple[Floats, Floats, Int64s]:
    """Median, MAD and number of the others of entries (line, column) of `value` [groups, width].

    An infinite value is none.
    """
    order = np.argsort(value, axis=1)
    ordered = np.take_along_axis(value, order, axis=1)
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(value.shape[1])[None], axis=1)
    size = np.count_nonzero(np.isfinite(value), axis=1) - 1
    middle = np.maximum(size, 0) // 2
    medians = _medians(ordered, middle, size % 2 == 0)
    medians[~np.isfinite(medians)] = 0.0  # nobody there
    distance = np.sort(np.abs(value - medians[:, :, None]), axis=2)
    entry = line * value.shape[1] + column
    middle_of_row, own = middle.take(line), value.reshape(-1).take(entry)
    side = np.sign(rank.reshape(-1).take(entry) - middle_of_row).astype(np.int64) + 1
    of_side = side * len(value) + line
    median = medians.reshape(-1).take(of_side)
    # Among all distances the row's own is one of the nearest, or it does not matter.
    place = of_side * value.shape[1] + middle_of_row
    distances = distance.reshape(-1)
    mad = distances.take(place)
    farther = distances.take(place + 1, mode="clip")
    mad = np.where(np.abs(own - median) > mad, mad, farther)
    size = np.where(np.isfinite(own), size.take(line), 0)
    is_alone = size <= 0
    median[is_alone], mad[is_alone] = np.nan, np.nan
    return median, mad, size


def _medians(ordered: Floats, middle: Int64s, is_even: Bools) -> Floats:
    """float64[3, groups] without an entry below, at, above the middle of the rest.

    Leaving one out moves what lies above it down by one place.
    """
    last = ordered.shape[1] - 1
    groups = np.arange(len(ordered))

    def at(place: Int64s) -> Floats:
        taken: Floats = ordered[groups, np.clip(place, 0, last)]
        return taken

    below, here, above = at(middle - 1), at(middle), at(middle + 1)
    upper = np.stack((above, above, here))
    lower = np.stack(
        (
            np.where(is_even, here, above),
            np.where(is_even, below, above),
            np.where(is_even, below, here),
        )
    )
    return np.where(lower == upper, upper, 0.5 * (lower + upper))
