"""State per series as columns, and where series belong: series -> cell -> unit -> endpoint.

Series of one cell add up (or give their maximum); cells of one unit are parallel ranks that report
the same, so the largest counts; units of one endpoint (data-parallel ranks, GPUs) add up.
"""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Final, NamedTuple

import numpy as np

from pipeline.model import Floats, Int32s, Int64s, SampleRows, UInt64s
from pipeline.series import SeriesIndex
from pipeline.signals import COMPONENTS, Combine

Rows = np.ndarray[tuple[int], np.dtype[np.intp]]

IS_MAX: Final = np.array([c.combine is Combine.MAX for c in COMPONENTS])
_MAX_CELLS: Final = 2**31 - 1  # bounded by the series, of which each cell has at least one
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio

_COLUMNS: Final = {
    "slot": (np.int32, -1),
    "component": (np.int32, 0),
    "group": (np.uint64, 0),
    "shard": (np.uint64, 0),
    "cell": (np.int32, 0),
    "alive": (np.bool_, False),  # its last point was a value
    "fresh": (np.bool_, True),  # there is nothing to subtract from
    "known": (np.bool_, False),  # it had a point before
    "start_ns": (np.int64, 0),
    "time_ns": (np.int64, 0),
    "seen_ns": (np.int64, 0),  # arrival, monotonic
    "value": (np.float64, 0.0),  # gauge, counter, or sum of a histogram
    "count": (np.float64, 0.0),
    "increase": (np.float64, 0.0),  # these three fade
    "samples": (np.float64, 0.0),
    "elapsed_s": (np.float64, 0.0),
    "interval_s": (np.float64, np.nan),
    "family": (np.int32, -1),
    "row": (np.int32, 0),
    "scratch": (np.int32, 0),
}


class SeriesTable:
    """One array per fact, indexed by series id."""

    slot: Int32s
    component: Int32s
    group: UInt64s
    shard: UInt64s
    cell: Int32s
    alive: np.ndarray[tuple[int], np.dtype[np.bool_]]
    fresh: np.ndarray[tuple[int], np.dtype[np.bool_]]
    known: np.ndarray[tuple[int], np.dtype[np.bool_]]
    start_ns: Int64s
    time_ns: Int64s
    seen_ns: Int64s
    value: Floats
    count: Floats
    increase: Floats
    samples: Floats
    elapsed_s: Floats
    interval_s: Floats
    family: Int32s
    row: Int32s
    scratch: Int32s

    def __init__(self) -> None:
        """Empty; see `grow`."""
        self._capacity = 0
        for name, (dtype, _) in _COLUMNS.items():
            setattr(self, name, np.zeros(0, dtype))

    def grow(self, capacity: int) -> None:
        """Have room for ids below `capacity`."""
        more = capacity - self._capacity
        if more <= 0:
            return
        self._capacity = capacity
        for name, (dtype, empty) in _COLUMNS.items():
            column: np.ndarray[Any, Any] = np.zeros(capacity, dtype)
            column[:-more] = getattr(self, name)
            column[-more:] = empty
            setattr(self, name, column)

    def start(self, ids: Int64s, mono_ns: int) -> None:
        """Make `ids` blank."""
        if len(ids):
            for name, (_, empty) in _COLUMNS.items():
                getattr(self, name)[ids] = empty
            self.seen_ns[ids] = mono_ns

    def end(self, ids: Int64s) -> None:
        """The series of `ids` are gone."""
        self.alive[ids] = False
        self.slot[ids] = -1


class Units:
    """Which cells and units there are; ids are dense and given in order of appearance."""

    def __init__(self) -> None:
        """None yet."""
        self._cells = SeriesIndex(_MAX_CELLS)
        self._units = SeriesIndex(_MAX_CELLS)
        self.unit_of_cell: Int32s = np.zeros(0, np.int32)
        self.component: Int32s = np.zeros(0, np.int32)
        self.slot: Int32s = np.zeros(0, np.int32)
        self.group: UInt64s = np.zeros(0, np.uint64)

    def __len__(self) -> int:
        """The number of cells."""
        return len(self._cells)

    @property
    def is_flat(self) -> bool:
        """Every unit has one cell, of the same id: there are no parallel ranks."""
        return len(self._cells) == len(self._units)

    def cells(self, component: Int32s, slot: Int32s, group: UInt64s, shard: UInt64s) -> Int64s:
        """int64[k] cells of series, new ones made as needed."""
        place = _places(component, slot)
        units, new, _ = self._units.add(np.stack([place, group], axis=1))
        if len(new):
            at = _firsts(units, new)
            self.component = np.concatenate([self.component, component[at]])
            self.slot = np.concatenate([self.slot, slot[at]])
            self.group = np.concatenate([self.group, group[at]])
        keys = np.stack([place, group ^ (shard * _MIX)], axis=1)
        cells, new, _ = self._cells.add(keys)
        if len(new):
            more = units[_firsts(cells, new)].astype(np.int32)
            self.unit_of_cell = np.concatenate([self.unit_of_cell, more])
        return cells

    def find(self, component: int, slot: Int32s, group: UInt64s) -> Int64s:
        """int64[k] units of `component` for endpoints and groups, -1 = none."""
        place = _places(np.full(len(slot), component, np.int32), slot)
        return self._units.find(np.stack([place, group], axis=1))


def _firsts(ids: Int64s, new: Int64s) -> Rows:
    """Where in `ids` each of the dense ids `new` (rising, the highest there are) comes first."""
    at = np.zeros(len(new), np.intp)
    rows = np.flatnonzero(ids >= new[0])[::-1]
    at[ids[rows] - new[0]] = rows  # the last write, the first row, wins
    return at


def _places(component: Int32s, slot: Int32s) -> UInt64s:
    return (component.astype(np.uint64) << np.uint64(32)) | slot.astype(np.uint64)


class Round(NamedTuple):
    """Rows of a batch, at most one point a series; every column has one entry a row."""

    samples: SampleRows
    ids: Int64s
    lag_s: Floats
    source: Rows
    """Index of `first_ns`."""
    first_ns: Int64s
    """Event time at which each source was first heard."""

    def only(self, at: Rows) -> "Round":
        """The rows at positions `at`."""
        columns = (self.ids[at], self.lag_s[at], self.source[at])
        return Round(picked(self.samples, at), *columns, self.first_ns)


def picked(samples: SampleRows, at: Rows) -> SampleRows:
    """The rows at positions `at`; `histograms` stays whole."""
    columns = {
        f.name: getattr(samples, f.name)[at]
        for f in fields(samples)
        if f.name not in ("n", "histograms")
    }
    return SampleRows(n=len(at), histograms=samples.histograms, **columns)


def rounds(batch: Round, scratch: Int32s) -> Iterator[Round]:
    """Cut `batch` so that no part has two rows of one series; parts and rows keep their order.

    Almost always that is one part: a scrape has one point a series.
    """
    ids = batch.ids
    if not has_twins(ids, scratch):
        yield batch
        return
    order = np.argsort(ids, kind="stable")
    begins = np.ones(len(ids), np.bool_)
    begins[1:] = ids[order][1:] != ids[order][:-1]
    run = np.flatnonzero(begins)
    nth = np.empty(len(ids), np.intp)
    nth[order] = np.arange(len(ids)) - np.repeat(run, np.diff(np.append(run, len(ids))))
    for k in range(int(nth.max()) + 1):
        yield batch.only(np.flatnonzero(nth == k))


def has_twins(ids: Int64s, scratch: Int32s) -> bool:
    """Whether a series has two rows; `scratch` is for any use."""
    place = np.arange(len(ids), dtype=np.int32)
    scratch[ids] = place
    return int(np.count_nonzero(scratch.take(ids) != place)) > 0
