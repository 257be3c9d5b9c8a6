"""From series to components to signals, at a tick: the reading side of the endpoint fold.

Enters: the series table. Leaves: `Folded`, then one column a signal with its freshness and the way
it was derived. Everything is a handful of passes over all series at once, in a fixed order.
"""

from dataclasses import dataclass
from itertools import pairwise
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


class Slots:
    """The endpoints to derive: all arrays that leave have a column for each of them, in order."""

    def __init__(self, is_chosen: Bools) -> None:
        """Those of bool[n slots]."""
        self.ids: Rows = np.flatnonzero(is_chosen)
        self.column: Rows = np.cumsum(is_chosen) - 1
        """[n slots]: the column of each chosen slot."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self.ids)


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

    def of(self, slots: Slots) -> "Freshness":
        """Of some slots, a column each; the same object where they are all."""
        if len(slots) == self.arrived_ns.shape[1]:
            return self
        return Freshness(*(getattr(self, n).take(slots.ids, axis=1) for n in self.__slots__))

    def put(self, slots: Slots, part: "Freshness") -> None:
        """Set some slots, a column each."""
        for name in self.__slots__:
            getattr(self, name)[:, slots.ids] = getattr(part, name)

    def clear(self, slots: Int32s) -> None:
        """Forget all about `slots`."""
        new = Freshness.never(len(self.arrived_ns), len(slots))
        for name in self.__slots__:
            getattr(self, name)[:, slots] = getattr(new, name)

    def age_s(self, now: Instant) -> Floats:
        """float64[r, n]; inf = never."""
        age_s = np.full(self.arrived_ns.shape, np.inf)
        for row in np.flatnonzero((self.arrived_ns != NEVER_NS).any(axis=1)).tolist():
            arrived_ns = self.arrived_ns[row]
            age = np.maximum((now.mono_ns - arrived_ns) / NS_PER_S, self.lag_s[row])
            np.copyto(age_s[row], age, where=arrived_ns != NEVER_NS)
        return age_s

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

    def put(self, slots: Slots, part: "Derived") -> None:
        """Set some slots, a column each."""
        self.freshness.put(slots, part.freshness)
        for name in ("value", "censored", "chosen"):
            getattr(self, name)[:, slots.ids] = getattr(part, name)

    def wider(self, more: int) -> "Derived":
        """With `more` slots that know nothing."""
        new = Derived.nothing(more)
        value, censored, chosen = (
            np.concatenate([getattr(self, name), getattr(new, name)], axis=1)
            for name in ("value", "censored", "chosen")
        )
        return Derived(value, self.freshness.wider(more), censored, chosen)

    @staticmethod
    def nothing(n: int) -> "Derived":
        """No signal is known."""
        return Derived(
            np.full((S, n), np.nan),
            Freshness.never(S, n),
            np.zeros((S, n), np.bool_),
            np.full((S, n), -1, np.int8),
        )


def gather(
    table: SeriesTable, ids: Int64s, units: Units, families: Families | None, slots: Slots
) -> Folded:
    """Components of endpoints `slots` from their living series `ids`.

    Without `families` there are no quantiles.
    """
    kind = KIND.take(table.component.take(ids))
    elapsed_s = table.elapsed_s.take(ids)
    is_gauge = kind == ComponentKind.GAUGE
    used = np.flatnonzero(is_gauge | (elapsed_s > 0.0))
    spread = _Spread(units, table.cell.take(ids), slots)
    # A component is of one kind, so levels and increases share one matrix, as do rates and samples.
    x = np.where(is_gauge, table.value.take(ids), table.increase.take(ids))
    level, total, per_unit = spread(used, x.take(used))
    moving = used[~is_gauge.take(used)]
    ids, kind = ids.take(moving), kind.take(moving)
    is_counter = kind == ComponentKind.COUNTER
    per_s = table.increase.take(ids) / elapsed_s.take(moving)
    rates, _, _ = spread(moving, np.where(is_counter, per_s, table.samples.take(ids)))
    fullest = np.full((C, len(slots)), np.nan)
    for part, whole, extra in MEMORY:
        row = COMPONENT_INDEX[part]
        fullest[row] = _fullest(per_unit, spread.unit, units, slots, part, whole, extra)
    if families is None:
        quantiles = _no_quantiles(len(slots))
    else:
        quantiles = _quantiles(table, ids[~is_counter], families, slots)
    return Folded(level, total, rates, *quantiles, fullest)


class _Spread:
    """Puts numbers of series together by endpoint; knows the units that these series belong to."""

    def __init__(self, units: Units, cell: Int32s, slots: Slots) -> None:
        """`cell` is that of each series."""
        here, self._cell = _dense(cell, len(units))
        self.unit, self._unit_of_cell = here, None
        if not units.is_flat:
            self.unit, self._unit_of_cell = _dense(units.unit_of_cell[here], len(units.slot))
        self._shape = (C, len(slots))
        component = units.component.take(self.unit)
        self._is_max = IS_MAX.take(component)
        self._is_max_cell = self._is_max
        if self._unit_of_cell is not None:
            self._is_max_cell = self._is_max.take(self._unit_of_cell)
        column = slots.column.take(units.slot.take(self.unit))
        self._flat = component.astype(np.intp) * len(slots) + column

    def __call__(self, series: Rows, x: Floats) -> tuple[Floats, Floats, Floats]:
        """([C, n] combined, [C, n] summed over units, [units]) of `x` >= 0 of some `series`."""
        by_unit = self._by_unit(self._cell.take(series), x)
        used = np.flatnonzero(by_unit >= 0.0)
        flat, value = self._flat.take(used), by_unit.take(used)
        size = self._shape[0] * self._shape[1]
        total = _sums(flat, value, size)
        absent = np.ones(size, np.bool_)
        absent[flat] = False
        total[absent] = np.nan
        peak = np.flatnonzero(self._is_max.take(used))
        combined = total.copy()
        combined[flat[peak]] = 0.0
        np.maximum.at(combined, flat[peak], value[peak])
        return combined.reshape(self._shape), total.reshape(self._shape), by_unit

    def _by_unit(self, cell: Rows, x: Floats) -> Floats:
        """float64[units]: cells added up, or their maximum; parallel ranks once; -1 = no series."""
        n = len(self._is_max_cell)
        is_max = self._is_max_cell.take(cell)
        peak = np.flatnonzero(is_max)
        by_cell = _sums(cell, np.where(is_max, 0.0, x) if len(peak) else x, n)
        np.maximum.at(by_cell, cell[peak], x[peak])
        absent = np.ones(n, np.bool_)
        absent[cell] = False
        by_cell[absent] = -1.0
        if self._unit_of_cell is None:
            return by_cell
        by_unit = np.full(len(self.unit), -1.0)
        np.maximum.at(by_unit, self._unit_of_cell, by_cell)
        return by_unit


def _dense(ids: Int32s, n: int) -> tuple[Rows, Rows]:
    """The distinct ones of `ids`, each below `n`, rising, and where each of `ids` is among them."""
    is_here = np.zeros(n, np.bool_)
    is_here[ids] = True
    here = np.flatnonzero(is_here)
    place = np.empty(n, np.intp)
    place[here] = np.arange(len(here))
    return here, place.take(ids)


def _sums(place: Rows | Int32s, x: Floats, size: int) -> Floats:
    """float64[size]: `x` added up by `place`, in order."""
    return np.bincount(place, x, size).astype(np.float64, copy=False)  # int64 when empty


def _fullest(
    per_unit: Floats,
    unit: Rows,
    units: Units,
    slots: Slots,
    used: str,
    whole: tuple[str, ...],
    extra: str,
) -> Floats:
    """float64[slots]: the largest share of used memory among the GPUs of each endpoint."""
    fullest = np.full(len(slots), np.nan)
    is_used = units.component.take(unit) == COMPONENT_INDEX[used]
    mine = np.flatnonzero(is_used & (per_unit >= 0.0))
    if not len(mine):
        return fullest
    slot, group = units.slot[unit[mine]], units.group[unit[mine]]
    everywhere = np.full(len(units.slot), -1.0)
    everywhere[unit] = per_unit

    def of(name: str) -> Floats:
        found = units.find(COMPONENT_INDEX[name], slot, group)
        value = np.where(found >= 0, everywhere[found], np.nan)
        return np.where(value >= 0.0, value, np.nan)

    size = np.sum([of(name) for name in whole], axis=0)
    if extra:
        size = size + np.nan_to_num(of(extra))
    good = size > 0.0
    np.fmax.at(fullest, slots.column[slot[good]], per_unit[mine][good] / size[good])
    return fullest


def _no_quantiles(n: int) -> tuple[Floats, Floats, Bools, Bools]:
    unknown, over = np.full((C, n), np.nan), np.zeros((C, n), np.bool_)
    return unknown, unknown, over, over


def _quantiles(
    table: SeriesTable, ids: Int64s, families: Families, slots: Slots
) -> tuple[Floats, Floats, Bools, Bools]:
    """p50, p99 and whether they are censored, [C, slots] each, from series of equal bounds.

    Where an endpoint has series of different bounds, the bounds with most samples are read.
    """
    n = len(slots)
    p50, p99 = np.full((2, C * n), np.nan)
    over50, over99 = np.zeros((2, C * n), np.bool_)
    most = np.zeros(C * n)
    place = table.component[ids].astype(np.intp) * n + slots.column[table.slot[ids]]
    family = table.family[ids]
    for number in np.flatnonzero(np.bincount(family[family >= 0])).tolist():
        mine = np.flatnonzero(family == number)
        at, counts = _merge(place[mine], families.all[number].window[table.row[ids[mine]]])
        rising = np.ascontiguousarray(counts.T)  # a row a bucket: long rows add up faster
        for lower, upper in pairwise(rising):
            np.add(lower, upper, out=upper)
        more = np.flatnonzero(rising[-1] > most[at])
        at, cumulative = at[more], rising.take(more, axis=1).T
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


def derive(folded: Folded, components: Freshness, *, quantiles: bool) -> Derived:
    """Every signal that has a derivation, of the endpoints of `folded`; quantiles where wanted."""
    derived = Derived.nothing(components.arrived_ns.shape[1])
    seen = (components.arrived_ns != NEVER_NS).any(axis=1).tolist()
    for signal, ways in DERIVATIONS.items():
        if ways[0].is_quantile and not quantiles:
            continue
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
