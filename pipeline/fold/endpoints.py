"""Canonical samples -> what every endpoint is like now: the endpoint signal matrix.

Enters: `SampleRows` and the time of their arrival. Leaves: `SignalMatrix` at a tick, ages, runs of
`up`. Counters and histograms become increases over an exponentially fading window, safe against
resets (OTLP metrics data model, "Resets and Gaps"). Memory is constant per series, bounded in all.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from pipeline.clock import NS_PER_S, Instant
from pipeline.fold.derivations import DERIVATIONS
from pipeline.fold.histograms import LOG_FAMILY, Families
from pipeline.fold.increase import WHOLE, Change, compare, weights
from pipeline.fold.matrix import NEVER_NS, C, Derived, Freshness, derive, gather
from pipeline.fold.series import SeriesIndex
from pipeline.fold.sources import Sources
from pipeline.fold.table import Round, Rows, SeriesTable, Units, rounds
from pipeline.model import (
    Bools,
    Config,
    Directory,
    Floats,
    Int32s,
    Int64s,
    SampleRows,
    SignalMatrix,
)
from pipeline.signals import (
    COMPONENT_INDEX,
    COMPONENTS,
    SERVING_COMPONENTS,
    SIGNAL_INDEX,
    ComponentKind,
)

KIND: Final = np.array([c.kind for c in COMPONENTS], np.int8)
HAS_BUCKETS: Final = np.array([c.buckets for c in COMPONENTS])
UP: Final = COMPONENT_INDEX["up"]
XID: Final = COMPONENT_INDEX["xid"]
XID_COUNT: Final = COMPONENT_INDEX["xid_count"]
XID_ROW: Final = SIGNAL_INDEX["gpu_xid_last"]
SWEEP_NS: Final = 10 * NS_PER_S
CATCH_UP_NS: Final = 30 * NS_PER_S  # a source that fell silent while it caught up
SET_BACK_S: Final = 30.0
SET_BACK_INTERVALS: Final = 3.0
"""Nothing new from a series for so long (the longer one), then an older time: a clock set back."""
GAP_WEIGHT: Final = 0.2  # of a new gap in the observed interval: about the last ten
GAP_LIMIT: Final = 4.0  # one outage does not make a fast source a slow one
_BY_SLOT: Final = {
    "_heard_ns": (np.int64, NEVER_NS),
    "_heard_lag_s": (np.float64, 0.0),
    "_caught_ns": (np.int64, NEVER_NS),
    "_xid": (np.float64, np.nan),
    "down_samples": (np.int32, 0),
    "up_samples": (np.int32, 0),
}


class FoldConfig(Config, frozen=True, kw_only=True):
    """How much is kept about endpoints' metrics, and for how long."""

    max_series: Annotated[int, msgspec.Meta(ge=1, le=20_000_000)] = 400_000
    """Metric series held at a time; new ones beyond are refused and counted `series_full`."""
    max_sources: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 16_384
    """Senders whose clock offset is tracked."""
    idle_s: Annotated[float, msgspec.Meta(ge=10.0)] = 300.0
    """A series without a new point for so long (or five of its intervals) is forgotten."""
    window_s: Annotated[float, msgspec.Meta(ge=0.1)] = 5.0
    """Time constant of rates and latencies; at least two observed intervals are used."""


class EndpointFold:
    """All metric state of all endpoints, by slot.

    Order: `resize` before the first batch; `fold` any number of times, then `signals`. Slots at or
    beyond the size are counted `unknown_slot`.
    """

    def __init__(self, config: FoldConfig) -> None:
        """Nothing is known yet."""
        self._config = config
        self._index = SeriesIndex(config.max_series)
        self._table = SeriesTable()
        self._units = Units()
        self._families = Families()
        self._sources = Sources(config.max_sources)
        self._n = 0
        self._swept_ns = 0
        self._dirty = True
        self._derived = Derived.nothing(0)
        self._components = Freshness.never(C, 0)
        self._heard_ns: Int64s
        self._heard_lag_s: Floats
        self._caught_ns: Int64s
        self._xid: Floats
        self.down_samples: Int32s
        """int32[n]: `up = 0` in a row."""
        self.up_samples: Int32s
        """int32[n]: `up = 1` in a row."""
        for name, (dtype, _) in _BY_SLOT.items():
            setattr(self, name, np.zeros(0, dtype))

    @property
    def censored(self) -> Bools:
        """bool[len(SIGNALS), n]: the quantile lies above the top bound, which is given instead."""
        return self._derived.censored

    def resize(self, n_slots: int) -> None:
        """Have `n_slots` slots (never fewer than before); new ones know nothing."""
        more = n_slots - self._n
        if more <= 0:
            return
        self._n = n_slots
        self._components = self._components.wider(more)
        for name, (dtype, empty) in _BY_SLOT.items():
            column = np.concatenate([getattr(self, name), np.full(more, empty, dtype)])
            setattr(self, name, column)
        self._dirty = True

    def forget(self, slots: Int32s) -> None:
        """Free everything about endpoints that are gone; their slots may get new ones."""
        ids = self._index.ids()
        self._remove(ids[np.isin(self._table.slot[ids], slots)])
        self._components.clear(slots)
        for name, (_, empty) in _BY_SLOT.items():
            getattr(self, name)[slots] = empty
        self._dirty = True

    def fold(self, samples: SampleRows, now: Instant) -> Mapping[str, int]:
        """Take up a batch that arrived at `now`; returns what was left out, by reason."""
        dropped: Counter[str] = Counter()
        if not samples.n:
            return dropped
        seen = self._sources.observe(samples.source, samples.time_ns, now)
        ids, new, _ = self._index.add(samples.series)
        self._table.grow(self._index.capacity)
        self._table.start(new, now.mono_ns)
        inside = samples.slot < self._n
        usable = (ids >= 0) & ~seen.future & inside
        if not usable.all():
            dropped["future"] += int((seen.future & inside).sum())
            dropped["unknown_slot"] += int((~inside).sum())
            dropped["series_full"] += int(((ids < 0) & ~seen.future & inside).sum())
        rows = np.flatnonzero(usable)
        self._place(samples, rows, ids[rows])
        for part, of_series in rounds(rows, ids[rows], self._table.scratch):
            whole = Round(samples, part, of_series, seen.lag_s, seen.first_ns)
            self._apply(whole, now, dropped)
        serving = rows[samples.component[rows] < len(SERVING_COMPONENTS)]
        caught = np.where(seen.catching_up[serving], now.mono_ns, NEVER_NS)
        self._caught_ns[samples.slot[serving]] = caught
        self._dirty = True
        return +dropped  # without zeros

    def saw_down(self, samples: SampleRows) -> bool:
        """Whether `samples` say that a target is down: a reason to decide early."""
        down = (samples.component == UP) & (samples.value == 0.0) & ~samples.ended
        return bool(down.any())

    def signals(self, now: Instant, directory: Directory) -> SignalMatrix:
        """The matrix at `now`, float64[len(SIGNALS), n]; arrays are the caller's to change."""
        if directory.n > self._n:
            self.resize(directory.n)
        if now.mono_ns - self._swept_ns >= SWEEP_NS:
            self._sweep(now)
        if self._dirty:
            self._derive()
        fresh = self._derived.freshness
        return SignalMatrix(self._derived.value.copy(), fresh.age_s(now), fresh.interval_s.copy())

    def heard_age_s(self, now: Instant) -> Floats:
        """float64[n] since the last sample of any kind but `up = 0`; inf = never heard."""
        age_s: Floats = np.maximum((now.mono_ns - self._heard_ns) / NS_PER_S, self._heard_lag_s)
        return np.where(self._heard_ns == NEVER_NS, np.inf, age_s)

    def report_interval_s(self) -> Floats:
        """float64[n] fastest observed interval of any component; NaN = not known yet."""
        fastest_s: Floats = np.fmin.reduce(self._components.interval_s, axis=0)
        return fastest_s

    def catching_up(self, now: Instant) -> Bools:
        """bool[n]: the endpoint's source replays old data, from which nothing is to be decided."""
        since_ns = max(now.mono_ns - CATCH_UP_NS, 0)  # above `NEVER_NS`
        return np.greater_equal(self._caught_ns, since_ns)

    def source_of(self, signal: str, slot: int) -> str:
        """Which derivation the value of `signal` came from; "" = there is none."""
        way = int(self._derived.chosen[SIGNAL_INDEX[signal], slot])
        return DERIVATIONS[signal][way].source if way >= 0 else ""

    def export_state(self) -> dict[str, Any]:
        """What was learned about senders' clocks; series start afresh with a new process."""
        return {"sources": self._sources.export_state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up exported state before the first batch."""
        self._sources.restore(state["sources"])

    def _derive(self) -> None:
        ids = self._index.ids()
        self._components.interval_s = self._shortest_intervals(ids)
        ids = ids[self._table.alive[ids]]
        folded = gather(self._table, ids, self._units, self._families, self._n)
        self._derived = derive(folded, self._components, self._n)
        self._derive_xid()
        self._dirty = False

    def _shortest_intervals(self, ids: Int32s) -> Floats:
        """Of the series of each component and slot, whatever order they came in: [C, n]."""
        table = self._table
        ids = ids[table.slot[ids] >= 0]
        shortest = np.full(len(COMPONENTS) * self._n, np.nan)
        place = table.component[ids].astype(np.intp) * self._n + table.slot[ids]
        np.fmin.at(shortest, place, table.interval_s[ids])
        return shortest.reshape(len(COMPONENTS), self._n)

    def _derive_xid(self) -> None:
        """The last code that was seen to change; 0 = none since the baseline."""
        fresh, derived = self._components, self._derived
        derived.value[XID_ROW] = self._xid
        newest = fresh.newest((XID, XID_COUNT))
        columns = (derived.freshness.arrived_ns, derived.freshness.lag_s)
        for column, row in zip((*columns, derived.freshness.interval_s), newest, strict=True):
            column[XID_ROW] = row

    def _place(self, samples: SampleRows, rows: Rows, ids: Int32s) -> None:
        """Put series that are new, or whose endpoint changed, where they belong."""
        table = self._table
        moved = table.slot[ids] != samples.slot[rows]
        if not moved.any():
            return
        rows, ids = rows[moved], ids[moved]
        for name in ("slot", "component", "group", "shard"):
            getattr(table, name)[ids] = getattr(samples, name)[rows]
        self._enlist(ids)

    def _enlist(self, ids: Int32s) -> None:
        table = self._table
        table.cell[ids] = self._units.cells(
            table.component[ids], table.slot[ids], table.group[ids], table.shard[ids]
        )

    def _apply(self, part: Round, now: Instant, dropped: Counter[str]) -> None:
        """Fold at most one point of each series."""
        table, ids, t = self._table, part.ids, part.time_ns
        quiet_s = (now.mono_ns - table.seen_ns[ids]) / NS_PER_S
        patience_s = np.fmax(SET_BACK_S, SET_BACK_INTERVALS * table.interval_s[ids])
        set_back = (t < table.time_ns[ids]) & (quiet_s > patience_s)
        table.fresh[ids[set_back]] = True
        is_first = table.fresh[ids]
        late = ~is_first & (t <= table.time_ns[ids])
        if late.any():
            dropped["duplicate"] += int((late & (t == table.time_ns[ids])).sum())
            dropped["out_of_order"] += int((late & (t < table.time_ns[ids])).sum())
        ended = part.samples.ended[part.rows] & ~late
        if ended.any():
            table.alive[ids[ended]] = False
            table.fresh[ids[ended]] = True
        live = np.flatnonzero(~late & ~part.samples.ended[part.rows])
        if not len(live):
            return
        part = part.only(live)
        kind = KIND[part.component]
        self._learn_interval(part)
        for wanted, fold in (
            (ComponentKind.GAUGE, self._fold_gauges),
            (ComponentKind.COUNTER, self._fold_counters),
            (ComponentKind.HISTOGRAM, self._fold_histograms),
        ):
            of_kind = np.flatnonzero(kind == wanted)
            if len(of_kind):
                fold(part.only(of_kind), dropped)
        self._stamp(part, now)

    def _learn_interval(self, part: Round) -> None:
        table, ids = self._table, part.ids
        gap_s = (part.time_ns - table.time_ns[ids]) / NS_PER_S
        old_s = table.interval_s[ids]
        mixed_s = old_s + GAP_WEIGHT * (np.minimum(gap_s, GAP_LIMIT * old_s) - old_s)
        learned_s = np.where(np.isnan(old_s), gap_s, mixed_s)
        table.interval_s[ids] = np.where(table.fresh[ids], old_s, learned_s)

    def _fold_gauges(self, part: Round, _: Counter[str]) -> None:
        value, component = part.samples.value[part.rows], part.component
        for wanted, learn in (
            (UP, self._learn_up),
            (XID, self._learn_xid),
            (XID_COUNT, self._learn_xid_count),
        ):
            rows = np.flatnonzero(component == wanted)
            if len(rows):
                learn(part.only(rows))
        self._table.value[part.ids] = value

    def _learn_up(self, part: Round) -> None:
        is_up = part.samples.value[part.rows] > 0.0
        up, down = part.slot[is_up], part.slot[~is_up]
        self.up_samples[up] += 1
        self.down_samples[up] = 0
        self.down_samples[down] += 1
        self.up_samples[down] = 0

    def _learn_xid(self, part: Round) -> None:
        """The first code is the baseline; only a change is news."""
        value, ids = part.samples.value[part.rows], part.ids
        known = self._table.known[ids]
        self._news(part, known & (value != self._table.value[ids]) & (value > 0.0), value)

    def _learn_xid_count(self, part: Round) -> None:
        value, ids = part.samples.value[part.rows], part.ids
        grown = self._table.known[ids] & (value > self._table.value[ids])
        code = part.samples.count[part.rows]
        self._news(part, grown & ~np.isnan(code), code)

    def _news(self, part: Round, changed: Bools, code: Floats) -> None:
        slot = part.slot
        self._xid[slot] = np.where(np.isnan(self._xid[slot]), 0.0, self._xid[slot])
        self._xid[slot[changed]] = code[changed]

    def _fold_counters(self, part: Round, dropped: Counter[str]) -> None:
        table, ids = self._table, part.ids
        value = part.samples.value[part.rows]
        change = self._compare(part, value < table.value[ids], dropped)
        increase = np.where(change.mode == WHOLE, value, value - table.value[ids])
        self._add(ids, change, increase, np.zeros_like(increase))
        is_delta = part.samples.delta[part.rows]
        table.value[ids] = np.where(is_delta, 0.0, value)

    def _compare(self, part: Round, fell: Bools, dropped: Counter[str]) -> Change:
        table, ids, samples = self._table, part.ids, part.samples
        change = compare(
            time_ns=part.time_ns,
            start_ns=samples.start_ns[part.rows],
            delta=samples.delta[part.rows],
            first=table.fresh[ids],
            fell=fell,
            last_time_ns=table.time_ns[ids],
            last_start_ns=table.start_ns[ids],
            heard_since_ns=part.first_ns[part.rows],
        )
        if change.overlap.any():
            dropped["overlap"] += int(change.overlap.sum())
        return change

    def _add(self, ids: Int32s, change: Change, increase: Floats, samples: Floats) -> None:
        """Let the windows fade over the elapsed time and take up the increases."""
        table = self._table
        first = ids[table.fresh[ids]]
        for window in (table.increase, table.samples, table.elapsed_s):
            window[first] = 0.0
        fade, weight, elapsed_s = self._weights(ids, change)
        counted = weight > 0.0
        table.increase[ids] = table.increase[ids] * fade + np.where(counted, increase, 0) * weight
        table.samples[ids] = table.samples[ids] * fade + np.where(counted, samples, 0) * weight
        table.elapsed_s[ids] = table.elapsed_s[ids] * fade + elapsed_s

    def _weights(self, ids: Int32s, change: Change) -> tuple[Floats, Floats, Floats]:
        return weights(change, self._table.interval_s[ids], self._config.window_s)

    def _fold_histograms(self, part: Round, dropped: Counter[str]) -> None:
        table, ids, samples = self._table, part.ids, part.samples
        row = samples.histogram[part.rows]
        has_row = row >= 0
        at = np.maximum(row, 0)
        total, count = samples.value[part.rows], samples.count[part.rows]
        if has_row.any():
            scaled = samples.histograms.sum[at] * samples.scale[part.rows]
            total = np.where(has_row, scaled, total)
            count = np.where(has_row, samples.histograms.count[at], count)
        buckets = np.flatnonzero(has_row & HAS_BUCKETS[part.component])
        scale = samples.scale[part.rows[buckets]]
        groups = self._families.groups(samples.histograms, at[buckets], scale)
        fell = count < table.count[ids]
        for family, where, counts in groups:
            self._enter(family, ids[buckets[where]])
            fell[buckets[where]] |= self._any_fell(family, ids[buckets[where]], counts)
        change = self._compare(part, fell, dropped)
        whole = change.mode == WHOLE
        increase = np.maximum(np.where(whole, total, total - table.value[ids]), 0.0)
        more = np.where(whole, count, count - table.count[ids])
        with_sum = ~np.isnan(increase)  # a sum may be missing; the mean then has no samples
        self._add(ids, change, np.where(with_sum, increase, 0.0), np.where(with_sum, more, 0.0))
        fade, weight, _ = self._weights(ids, change)
        for family, where, counts in groups:
            w = buckets[where]
            self._add_buckets(family, ids[w], counts, whole[w], fade[w], weight[w])
        is_delta = samples.delta[part.rows]
        table.value[ids] = np.where(is_delta, 0.0, total)
        table.count[ids] = np.where(is_delta, 0.0, count)

    def _enter(self, family: int, ids: Int32s) -> None:
        """Move series whose bounds are new or have changed into `family`, as if new."""
        table = self._table
        moving = ids[table.family[ids] != family]
        if not len(moving):
            return
        self._leave(moving)
        table.family[moving] = family
        table.row[moving] = self._families.all[family].take(len(moving))
        table.fresh[moving] = True

    def _leave(self, ids: Int32s) -> None:
        family = self._table.family[ids]
        for number in np.unique(family[family >= 0]).tolist():
            self._families.all[number].give(self._table.row[ids[family == number]])
        self._table.family[ids] = -1

    def _any_fell(self, family: int, ids: Int32s, counts: Floats) -> Bools:
        if family == LOG_FAMILY:  # re-bucketed after a change of scale: only the count tells
            return np.zeros(len(ids), np.bool_)
        last = self._families.all[family].last[self._table.row[ids]]
        fell: Bools = np.any(counts < last, axis=1)
        return fell

    def _add_buckets(
        self, number: int, ids: Int32s, counts: Floats, whole: Bools, fade: Floats, weight: Floats
    ) -> None:
        family, row = self._families.all[number], self._table.row[ids]
        before = np.where((whole | self._table.fresh[ids])[:, None], 0.0, family.last[row])
        increase = np.maximum(counts - before, 0.0)
        kept = np.where(self._table.fresh[ids], 0.0, fade)
        family.window[row] = family.window[row] * kept[:, None] + increase * weight[:, None]
        family.last[row] = counts

    def _stamp(self, part: Round, now: Instant) -> None:
        table, ids, slot = self._table, part.ids, part.slot
        table.time_ns[ids] = part.time_ns
        table.start_ns[ids] = part.samples.start_ns[part.rows]
        table.seen_ns[ids] = now.mono_ns
        table.alive[ids] = True
        table.known[ids] = True
        table.fresh[ids] = False
        lag_s = part.lag_s[part.rows]
        fresh = self._components
        fresh.arrived_ns[part.component, slot] = now.mono_ns
        fresh.lag_s[part.component, slot] = lag_s
        life = (part.component != UP) | (part.samples.value[part.rows] > 0.0)
        self._heard_ns[slot[life]] = now.mono_ns
        self._heard_lag_s[slot[life]] = lag_s[life]

    def _sweep(self, now: Instant) -> None:
        """Forget series that have been idle for too long."""
        self._swept_ns = now.mono_ns
        self._sources.expire(now)
        ids = self._index.ids()
        patience_s = np.fmax(self._config.idle_s, 5.0 * self._table.interval_s[ids])
        idle_s = (now.mono_ns - self._table.seen_ns[ids]) / NS_PER_S
        self._remove(ids[idle_s > patience_s])

    def _remove(self, ids: Int32s) -> None:
        if not len(ids):
            return
        self._leave(ids)
        self._index.remove(ids)
        self._table.end(ids)
        self._dirty = True
        if len(self._units) > 2 * len(self._index) + 1024:
            self._units = Units()
            left = self._index.ids()
            self._enlist(left[self._table.slot[left] >= 0])
