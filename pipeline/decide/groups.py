"""Segments of endpoints that are compared with each other, and order statistics within them.

A group is one (pool, role) with members and mere observations apart. Every reduction takes arrays
over all slots, [n] or [k, n], ignores NaN, and returns values per slot or per group; slots outside
any group get NaN or 0. The arithmetic has a fixed order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.model import Bools, Directory, Floats, Int32s, Int64s


class Ranked(NamedTuple):
    """Values sorted within groups: what medians are read from. All are [k, ...]."""

    values: Floats
    """[k, m + 1] in group order, NaN last in each group; the last column is padding"""
    valid: Int64s
    """[k, groups] of values that are not NaN"""
    grouped: Floats
    """[k, m] as they were, in `Groups.slots` order"""


class Block(NamedTuple):
    """Groups of about one size, as a table that sorts row by row; short rows end in NaN."""

    slots: Int64s
    """[groups, width], n where a row has ended"""
    filled: Int64s
    """Cells that hold a slot, of the table read row by row"""
    places: Int64s
    """Where the filled cells belong among the grouped slots"""


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Which slots belong together; built once per directory version.

    `slots` int64[m] are the slots in use that have a pool, `of` int32[n] a slot's group or -1,
    `starts` int64[g] where each group begins when slots are sorted by group, `sizes` int64[g].
    """

    n: int
    slots: Int64s
    of: Int32s
    starts: Int64s
    sizes: Int64s
    pool: Int32s
    """int32[g]: the pool that a group is part of"""
    role: Int32s
    member: Bools
    blocks: tuple[Block, ...]

    @classmethod
    def of_directory(cls, directory: Directory) -> "Groups":
        """Group the slots in use that have a pool."""
        used = np.flatnonzero(directory.known & (directory.pool >= 0))
        key = (
            directory.pool[used].astype(np.int64) * 8
            + directory.role[used].astype(np.int64) * 2
            + directory.member[used]
        )
        names, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
        slots = used[np.argsort(inverse, kind="stable")].astype(np.int64)
        of = np.full(directory.n, -1, np.int32)
        of[used] = inverse
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])[: len(names)]
        return cls(
            n=directory.n,
            slots=slots,
            of=of,
            starts=starts.astype(np.int64),
            sizes=counts.astype(np.int64),
            blocks=blocks(slots, starts, counts, directory.n),
            pool=(names // 8).astype(np.int32),
            role=(names // 2 % 4).astype(np.int32),
            member=(names % 2).astype(np.bool_),
        )

    def __len__(self) -> int:
        """How many groups there are."""
        return len(self.starts)

    def spread(self, per_group: Floats, outside: float = np.nan) -> Floats:
        """Values per group -> per slot: [..., g] -> [..., n]; `outside` where there is no group."""
        padded = np.concatenate([per_group, np.full((*per_group.shape[:-1], 1), outside)], axis=-1)
        spread: Floats = np.take(padded, self.of, axis=-1)
        return spread

    def median_rows(self, values: Floats) -> Floats:
        """The median of each group of float64[k, n]: float64[k, g]."""
        return self.medians(self.rank(values))

    def total(self, values: Floats | Bools) -> Floats:
        """Sum per group, float64[g]; NaN counts as 0."""
        grouped = known_or(np.asarray(values, np.float64)[self.slots], 0.0)
        return np.bincount(self.of[self.slots], weights=grouped, minlength=len(self)).astype(
            np.float64
        )

    def count(self, mask: Bools) -> Int64s:
        """Slots per group where `mask` holds, int64[g]."""
        grouped = self.of[self.slots[mask[self.slots]]]
        return np.bincount(grouped, minlength=len(self)).astype(np.int64)

    def least(self, values: Floats) -> Floats:
        """Smallest value per group, float64[g]; NaN where there is none."""
        if not len(self):
            return np.zeros(0)
        lowest: Floats = np.fmin.reduceat(values[self.slots], self.starts)
        return lowest

    def greatest(self, values: Floats) -> Floats:
        """Largest value per group, float64[g]; NaN where there is none."""
        if not len(self):
            return np.zeros(0)
        highest: Floats = np.fmax.reduceat(values[self.slots], self.starts)
        return highest

    def rank(self, values: Floats) -> Ranked:
        """Sort the rows of float64[k, n] within groups."""
        k, m = len(values), len(self.slots)
        open_ended = np.concatenate([values, np.full((k, 1), np.nan)], axis=1)
        ranked = np.full((k, m + 1), np.nan)
        for block in self.blocks:
            rows = np.take(open_ended, block.slots, axis=1)
            rows.sort(axis=2)
            ranked[:, block.places] = rows.reshape(k, -1).take(block.filled, axis=1)
        grouped = np.take(values, self.slots, axis=1)
        valid = np.zeros((k, len(self)), np.int64)
        if len(self):
            valid = np.add.reduceat(~np.isnan(grouped), self.starts, axis=1, dtype=np.int64)
        return Ranked(ranked, valid, grouped)

    def medians(self, ranked: Ranked) -> Floats:
        """The median of each group, float64[k, g]; NaN where nothing is known."""
        low, high = (ranked.valid - 1) // 2, ranked.valid // 2
        middle = (
            _at(ranked.values, self.starts + low) + _at(ranked.values, self.starts + high)
        ) / 2
        return np.where(ranked.valid > 0, middle, np.nan)

    def median(self, values: Floats) -> Floats:
        """The median of each group of float64[n]: float64[g]."""
        medians: Floats = self.medians(self.rank(values[None, :]))[0]
        return medians

    def low_median(self, values: Floats) -> Floats:
        """As `median`, but the lower of the two middle values: no mixture of a good and a bad."""
        ranked = self.rank(values[None, :])
        lower: Floats = _at(ranked.values, self.starts + (ranked.valid - 1) // 2)[0]
        return np.where(ranked.valid[0] > 0, lower, np.nan)

    def peers(self, ranked: Ranked, small: int) -> Floats:
        """The median of everyone else in the group, float64[k, n]; NaN without others.

        In groups of at most `small` values it is the best (smallest) other instead: half of a pair
        cannot tell which of the two is wrong, but it can tell what is possible.
        """
        group = self.of[self.slots]
        start = self.starts[group]
        valid = ranked.valid[:, group]
        others = valid - ~np.isnan(ranked.grouped)
        few = valid <= small
        low = start + np.where(few, 0, (others - 1) // 2)
        high = start + np.where(few, 0, others // 2)
        # Without one's own value everything from its place on moves down by one.
        middle = (
            _at(ranked.values, low + (_at(ranked.values, low) >= ranked.grouped))
            + _at(ranked.values, high + (_at(ranked.values, high) >= ranked.grouped))
        ) / 2
        peers = np.full((len(ranked.values), self.n), np.nan)
        peers[:, self.slots] = np.where(others > 0, middle, np.nan)
        return peers


class ByRow:
    """A reduction of the rows of float64[k, n], each by itself.

    Rows that are as they were in the last call are not reduced again. Neither what goes in nor what
    comes out is to be changed.
    """

    def __init__(self, reduce: Callable[[Groups, Floats], Floats]) -> None:
        """`reduce` takes [k, n] to [k, ...]."""
        self._reduce = reduce
        self._groups: Groups | None = None
        self._values: Floats = np.zeros((0, 0))
        self._result: Floats = np.zeros((0, 0))

    def __call__(self, groups: Groups, values: Floats) -> Floats:
        """As `reduce`."""
        if groups is not self._groups or values.shape != self._values.shape:
            self._result = self._reduce(groups, values)
        else:
            moved = np.flatnonzero((_bits(values) != _bits(self._values)).any(axis=1))
            if len(moved):
                self._result = self._result.copy()
                self._result[moved] = self._reduce(groups, values[moved])
        self._groups, self._values = groups, values
        return self._result


def differing(last: Floats, now: Floats) -> Bools:
    """Where [k, n] differ bit by bit in any row, bool[n]."""
    differs: Bools = (_bits(last) != _bits(now)).any(axis=0)
    return differs


def _bits(values: Floats) -> Int64s:
    return values.view(np.int64)


def blocks(slots: Int64s, starts: Int64s, sizes: Int64s, n: int) -> tuple[Block, ...]:
    """Tables over groups whose sizes need equally many bits, so that at most half is padding."""
    tables = []
    bits = np.frexp(sizes.astype(np.float64))[1]
    for width in np.unique(bits).tolist():
        chosen = np.flatnonzero(bits == width)
        column = np.arange(sizes[chosen].max())
        filled = column < sizes[chosen, None]
        places = (starts[chosen, None] + column)[filled]
        table = np.full(filled.shape, n, np.int64)
        table[filled] = slots[places]
        tables.append(Block(table, np.flatnonzero(filled), places))
    return tuple(tables)


def known_or(values: Floats, other: float) -> Floats:
    """`values` with `other` in the place of NaN."""
    filled: Floats = np.where(np.isnan(values), other, values)
    return filled


def _at(rows: Floats, index: Int64s) -> Floats:
    """`rows[k, index]` for every row k; out of range is any number, for groups without values."""
    starts = rows.shape[1] * np.arange(len(rows))[:, None]
    taken: Floats = rows.reshape(-1).take(starts + index, mode="clip")
    return taken
