"""From series to components to signals, at a tick: the reading side of the endpoint fold.

Enters: the series table. Leaves: `Folded`, then one column a signal with its freshness and the way
it was derived. Everything is a handful of passes over all series at once, in a fixed order.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.clock import NS_PER_S, Instant
from pipeline.fold.derivations import DERIVATIONS, Folded, Way, quantile_of
from pipeline.fold.histograms import Families, quantile
from pipeline.fold.table import IS_MAX, Rows, SeriesTable, Units
from pipeline.model import Bools, Floats, Int32s, Int64s
from pipeline.signals import COMPONENT_INDEX, COMPONENTS, SIGNAL_INDEX, SIGNAL_SPECS, ComponentKind

C: Final = len(COMPONENTS)
S: Final = len(SIGNAL_SPECS)
NEVER_NS: Final = -1
IS_RATIO: Final = np.array([spec.unit == "ratio" for spec in SIGNAL_SPECS])
KIND: Final = np.array([c.kind for c in COMPONENTS], np.int8)
MEMORY: Final = (
    ("fb_used", ("fb_used", "fb_free"), "fb_reserved"),
    ("nv_mem_used", ("nv_mem_total",), ""),
)
"""(used, what adds up to all of it, what is added where it is reported)."""


@dataclass(slots=True, eq=False)
class Freshness:
    """When and how late the newest sample behind each of r rows came, per slot: [r, n] each."""

    arrived_ns: Int64s
    lag_s: Floats
    interval_s: Floats

    @staticmethod
    def never(rows: int, n: int) -> "Freshness":
        """Nothing arrived yet."""
        return Freshness(
            np.full((rows, n), NEVER_NS, np.int64), np.zeros((rows, n)), np.full((rows, n), np.nan)
        )

    def wider(self, more: int) -> "Freshness":
        """With `more` slots that know nothing."""
        new = Freshness.never(len(self.arrived_ns), more)
        return Freshness(
            *(
                np.concatenate([getattr(self, name), getattr(new, name)], axis=1)
                for name in self.__slots__
            )
        )

    def clear(self, slots: Int32s) -> None:
        """Forget all about `slots`."""
        new = Freshness.never(len(self.arrived_ns), len(slots))
        for name in self.__slots__:
            getattr(self, name)[:, slots] = getattr(new, name)

    def age_s(self, now: Instant) -> Floats:
        """float64[r, n]; inf = never."""
        age_s = np.maximum((now.mono_ns - self.arrived_ns) / NS_PER_S, self.lag_s)
        return np.where(self.arrived_ns == NEVER_NS, np.inf, age_s)

    def newest(self, rows: tuple[int, ...]) -> tuple[Int64s, Floats, Floats]:
        """Of several rows: the newest arrival, its lag, and the shortest interval; each [n]."""
        if len(rows) == 1:
            return self.arrived_ns[rows[0]], self.lag_s[rows[0]], self.interval_s[rows[0]]
        arrived_ns = self.arrived_ns[list(rows)]
        newest_ns = arrived_ns.max(axis=0)
        lag_s = np.where(arrived_ns == newest_ns, self.lag_s[list(rows)], np.inf).min(axis=0)
        return newest_ns, lag_s, np.fmin.reduce(self.interval_s[list(rows)], axis=0)


@dataclass(slots=True, eq=False)
class Derived:
    """Signals at one tick, [len(SIGNALS), n] each."""

    value: Floats
    freshness: Freshness
    censored: Bools
    chosen: np.ndarray[tuple[int, int], np.dtype[np.int8]]

    @staticmethod
    def nothing(n: int) -> "Derived":
        """No signal is known."""
        return Derived(
            np.full((S, n), np.nan),
            Freshness.never(S, n),
            np.zeros((S, n), np.bool_),
            np.full((S, n), -1, np.int8),
        )


def gather(table: SeriesTable, ids: Int32s, units: Units, families: Families, n: int) -> Folded:
    """Components of n endpoints from the living series `ids`."""
    kind = KIND[table.component[ids]]
    elapsed_s = table.elapsed_s[ids]
    is_gauge = kind == ComponentKind.GAUGE
    used = is_gauge | (elapsed_s > 0.0)
    spread = _Spread(table, units, n)
    # A component is of one kind, so levels and increases share one matrix, as do rates and samples.
    x = np.where(is_gauge, table.value[ids], table.increase[ids])[used]
    level, total, per_unit = spread(ids[used], x)
    moving = used & ~is_gauge
    ids, kind, elapsed_s = ids[moving], kind[moving], elapsed_s[moving]
    is_counter = kind == ComponentKind.COUNTER
    rate = np.where(is_counter, table.increase[ids] / elapsed_s, table.samples[ids])
    rates, _, _ = spread(ids, rate)
    fullest = np.full((C, n), np.nan)
    for part, whole, extra in MEMORY:
        row = COMPONENT_INDEX[part]
        fullest[row] = _fullest(per_unit, units, part, whole, extra, n)
    quantiles = _quantiles(table, ids[~is_counter], families, n)
    return Folded(level, total, rates, *quantiles, fullest)


class _Spread:
    """Puts numbers of series together by endpoint."""

    def __init__(self, table: SeriesTable, units: Units, n: int) -> None:
        self._table, self._units, self._n = table, units, n
        self._flat = units.component.astype(np.intp) * n + units.slot

    def __call__(self, ids: Int32s, x: Floats) -> tuple[Floats, Floats, Floats]:
        """([C, n] combined, [C, n] summed over units, [units]) of `x` >= 0 of series `ids`."""
        units, cell = self._units, self._table.cell[ids]
        is_max = IS_MAX[self._table.component[ids]]
        by_cell = _sums(cell, np.where(is_max, 0.0, x), len(units))
        np.maximum.at(by_cell, cell[is_max], x[is_max])
        there = np.zeros(len(units), np.bool_)
        there[cell] = True
        by_cell[~there] = -1.0
        by_unit = by_cell
        if not units.is_flat:
            by_unit = np.full(len(units.slot), -1.0)
            np.maximum.at(by_unit, units.unit_of_cell, by_cell)
        used = np.flatnonzero(by_unit >= 0.0)
        flat, value = self._flat[used], by_unit[used]
        size = C * self._n
        total = _sums(flat, value, size)
        absent = np.ones(size, np.bool_)
        absent[flat] = False
        total[absent] = np.nan
        peak = IS_MAX[units.component[used]]
        combined = total.copy()
        combined[flat[peak]] = 0.0
        np.maximum.at(combined, flat[peak], value[peak])
        shape = (C, self._n)
        return combined.reshape(shape), total.reshape(shape), by_unit


def _sums(place: Rows | Int32s, x: Floats, size: int) -> Floats:
    """float64[size]: `x` added up by `place`, in order."""
    return np.bincount(place, x, size).astype(np.float64, copy=False)  # int64 when empty


def _fullest(
    per_unit: Floats, units: Units, used: str, whole: tuple[str, ...], extra: str, n: int
) -> Floats:
    """float64[n]: the largest share of used memory among the GPUs of each endpoint."""
    fullest = np.full(n, np.nan)
    mine = np.flatnonzero((units.component == COMPONENT_INDEX[used]) & (per_unit >= 0.0))
    if not len(mine):
        return fullest
    slot, group = units.slot[mine], units.group[mine]

    def of(name: str) -> Floats:
        found = units.find(COMPONENT_INDEX[name], slot, group)
        value = np.where(found >= 0, per_unit[found], np.nan)
        return np.where(value >= 0.0, value, np.nan)

    size = np.sum([of(name) for name in whole], axis=0)
    if extra:
        size = size + np.nan_to_num(of(extra))
    good = size > 0.0
    np.fmax.at(fullest, slot[good], per_unit[mine][good] / size[good])
    return fullest


def _quantiles(
    table: SeriesTable, ids: Int32s, families: Families, n: int
) -> tuple[Floats, Floats, Bools, Bools]:
    """p50, p99 and whether they are censored, [C, n] each, from series of equal bounds.

    Where an endpoint has series of different bounds, the bounds with most samples are read.
    """
    p50, p99 = np.full((2, C * n), np.nan)
    over50, over99 = np.zeros((2, C * n), np.bool_)
    most = np.zeros(C * n)
    place = table.component[ids].astype(np.intp) * n + table.slot[ids]
    family = table.family[ids]
    for number in np.unique(family[family >= 0]).tolist():
        mine = np.flatnonzero(family == number)
        at, counts = _merge(place[mine], families.all[number].window[table.row[ids[mine]]])
        cumulative = np.cumsum(counts, axis=1)
        more = np.flatnonzero(cumulative[:, -1] > most[at])
        at, cumulative = at[more], cumulative[more]
        most[at] = cumulative[:, -1]
        bounds = families.all[number].bounds
        p50[at], over50[at] = quantile(cumulative, bounds, 0.5)
        p99[at], over99[at] = quantile(cumulative, bounds, 0.99)
    shape = (C, n)
    return p50.reshape(shape), p99.reshape(shape), over50.reshape(shape), over99.reshape(shape)


def _merge(place: Rows, counts: Floats) -> tuple[Rows, Floats]:
    """Rows of `counts` [k, b] added up by `place` [k]."""
    order = np.argsort(place, kind="stable")
    ordered = place[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    if len(begins) == len(place):
        return place, counts
    return ordered[begins], np.add.reduceat(counts[order], begins, axis=0)


def derive(folded: Folded, components: Freshness, n: int) -> Derived:
    """Every signal of n endpoints that has a derivation."""
    derived = Derived.nothing(n)
    seen = (components.arrived_ns != NEVER_NS).any(axis=1).tolist()
    for signal, ways in DERIVATIONS.items():
        row = SIGNAL_INDEX[signal]
        is_first = True
        for number, way in enumerate(ways):
            if any(seen[i] for i in way.inputs):
                _take(derived, row, number, way, folded, components, is_first)
                is_first = False
    derived.value[IS_RATIO] = np.minimum(derived.value[IS_RATIO], 1.0)
    return derived


def _take(
    derived: Derived,
    row: int,
    number: int,
    way: Way,
    folded: Folded,
    components: Freshness,
    is_first: bool,
) -> None:
    """Fill in, from one way, what earlier ways left open."""
    fresh = derived.freshness
    newest = components.newest(way.inputs)
    value = way.formula(folded, way.first, way.second)
    found = ~np.isnan(value)
    newer: Bools | bool = True
    if not is_first:
        is_open = derived.chosen[row] < 0
        found &= is_open
        # Without a value yet, the freshest input still says how old the endpoint's silence is.
        newer = found | (is_open & (newest[0] > fresh.arrived_ns[row]))
    for name, column in zip(Freshness.__slots__, newest, strict=True):
        np.copyto(getattr(fresh, name)[row], column, where=newer)
    np.copyto(derived.value[row], value, where=found)
    np.copyto(derived.chosen[row], np.int8(number), where=found)
    over = quantile_of(folded, way)
    if over is not None:
        np.copyto(derived.censored[row], over, where=found)
