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
from pipeline.fold import steady
from pipeline.fold.derivations import DERIVATIONS
from pipeline.fold.matrix import NEVER_NS, C, Derived, Freshness, Slots, derive, gather
from pipeline.fold.sources import Seen, Sources
from pipeline.fold.table import Round, Rows, SeriesTable, Units, has_twins, rounds
from pipeline.fold.windows import Windows
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
from pipeline.series import SeriesIndex
from pipeline.signals import (
    COMPONENT_INDEX,
    COMPONENTS,
    SERVING_COMPONENTS,
    SIGNAL_INDEX,
    ComponentKind,
)

IS_GAUGE: Final = np.array([c.kind is ComponentKind.GAUGE for c in COMPONENTS])
UP: Final = COMPONENT_INDEX["up"]
XID: Final = COMPONENT_INDEX["xid"]
XID_COUNT: Final = COMPONENT_INDEX["xid_count"]
IS_NEWS: Final = np.isin(np.arange(len(COMPONENTS)), (UP, XID, XID_COUNT))
XID_ROW: Final = SIGNAL_INDEX["gpu_xid_last"]
HINTS: Final = 4  # hints of series that are counted only lie between
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
    "_stale": (np.bool_, True),
    "_no_quantiles": (np.bool_, True),
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
        self._of_hint: Int64s = np.zeros(1, np.int64)
        """The series that each hint stood for last; compared before it is used."""
        self._table = SeriesTable()
        self._units = Units()
        self._windows = Windows(self._table, config.window_s)
        self._sources = Sources(config.max_sources)
        self._n = 0
        self._swept_ns = 0
        self._is_catching_up = False
        self._derived = Derived.nothing(0)
        self._components = Freshness.never(C, 0)
        self._heard_ns: Int64s
        self._heard_lag_s: Floats
        self._caught_ns: Int64s
        self._xid: Floats
        self._stale: Bools
        """bool[n]: what was folded since is not in `_derived` yet."""
        self._no_quantiles: Bools
        """bool[n]: the quantiles are not in `_derived`."""
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
        self._derived = self._derived.wider(more)

    def forget(self, slots: Int32s) -> None:
        """Free everything about endpoints that are gone; their slots may get new ones."""
        ids = self._index.ids()
        self._remove(ids[np.isin(self._table.slot[ids], slots)])
        self._components.clear(slots)
        for name, (_, empty) in _BY_SLOT.items():
            getattr(self, name)[slots] = empty

    def fold(self, samples: SampleRows, now: Instant) -> Mapping[str, int]:
        """Take up a batch that arrived at `now`; returns what was left out, by reason."""
        dropped: Counter[str] = Counter()
        if not samples.n:
            return dropped
        seen = self._sources.observe(samples.source, samples.time_ns, now)
        ids, is_known = self._ids(samples, now)
        batch = Round(samples, ids, seen.lag_s, seen.of_row, seen.first_ns)
        if not (is_known and seen.future is None and self._go_on(batch, now)):
            rows = self._usable(samples, ids, seen, dropped)
            if rows is not None:
                batch = batch.only(rows)
            self._place(batch)
            for part in rounds(batch, self._table.scratch):
                self._apply(part, now, dropped)
        if self._is_catching_up or np.count_nonzero(seen.catching_up):
            self._note_catching_up(batch.samples, seen.catching_up[batch.source], now)
        return +dropped if dropped else {}  # without zeros

    def _ids(self, samples: SampleRows, now: Instant) -> tuple[Int64s, bool]:
        """The series of each row, -1 = refused, and whether all were known; new ones are blank."""
        ids = self._of_hint.take(samples.hint, mode="clip")
        if self._index.holds(ids, samples.series):
            return ids, True
        ids, new, n_refused = self._index.add(samples.series)
        self._table.grow(self._index.capacity)
        self._table.start(new, now.mono_ns)
        useful = (samples.hint >= 0) & (samples.hint < HINTS * self._config.max_series) & (ids >= 0)
        hint = samples.hint[useful]
        if len(hint):
            more = int(hint.max()) + 1 - len(self._of_hint)
            if more > 0:
                size = max(more, len(self._of_hint))
                self._of_hint = np.concatenate([self._of_hint, np.zeros(size, np.int64)])
            self._of_hint[hint] = ids[useful]
        return ids, not (len(new) or n_refused)

    def _usable(
        self, samples: SampleRows, ids: Int64s, seen: Seen, dropped: Counter[str]
    ) -> Rows | None:
        """Positions of the rows that count; None = all."""
        if seen.future is None and samples.slot.max() < self._n and ids.min() >= 0:
            return None
        inside = samples.slot < self._n
        future = np.zeros(samples.n, np.bool_) if seen.future is None else seen.future
        dropped["future"] += int((future & inside).sum())
        dropped["unknown_slot"] += int((~inside).sum())
        dropped["series_full"] += int(((ids < 0) & ~future & inside).sum())
        return np.flatnonzero((ids >= 0) & inside & ~future)

    def _note_catching_up(self, samples: SampleRows, catching_up: Bools, now: Instant) -> None:
        """When each endpoint's source was last seen to replay; the newest row of a slot decides."""
        serving = samples.component < len(SERVING_COMPONENTS)
        caught = np.where(catching_up[serving], now.mono_ns, NEVER_NS)
        self._caught_ns[samples.slot[serving]] = caught
        self._is_catching_up = bool((self._caught_ns != NEVER_NS).any())

    def saw_down(self, samples: SampleRows) -> bool:
        """Whether `samples` say that a target is down: a reason to decide early."""
        is_up = samples.component == UP
        if not np.count_nonzero(is_up):
            return False
        return bool(((samples.value == 0.0) & is_up & ~samples.ended).any())

    def signals(
        self, now: Instant, directory: Directory, *, quantiles: bool = True
    ) -> SignalMatrix:
        """The matrix at `now`, float64[len(SIGNALS), n]; arrays are the caller's to change.

        Quantiles cost more than all the rest; whoever reads none of them leaves them out (NaN).
        """
        if directory.n > self._n:
            self.resize(directory.n)
        if now.mono_ns - self._swept_ns >= SWEEP_NS:
            self._sweep(now)
        stale = self._stale | self._no_quantiles if quantiles else self._stale
        if stale.any():
            self._derive(Slots(stale), quantiles=quantiles)
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

    def _derive(self, slots: Slots, *, quantiles: bool) -> None:
        """Derive the signals of `slots` anew; those of the others are as they were."""
        table, ids = self._table, self._index.ids()
        stale = np.append(self._is_in(slots), False)  # the last is for slot -1
        ids = ids[stale.take(table.slot.take(ids))]
        components = self._components.of(slots)
        components.interval_s = self._shortest_intervals(ids, slots)
        self._components.interval_s[:, slots.ids] = components.interval_s
        ids = ids[table.alive.take(ids)]
        families = self._windows.families if quantiles else None
        folded = gather(table, ids, self._units, families, slots)
        derived = derive(folded, components, quantiles=quantiles)
        self._derive_xid(derived, components, slots)
        self._derived.put(slots, derived)
        self._stale[slots.ids] = False
        self._no_quantiles[slots.ids] = not quantiles

    def _is_in(self, slots: Slots) -> Bools:
        """bool[n]: the slots that `slots` names."""
        inside = np.zeros(self._n, np.bool_)
        inside[slots.ids] = True
        return inside

    def _shortest_intervals(self, ids: Int64s, slots: Slots) -> Floats:
        """Of the series `ids` of each component and slot, in any order: [C, slots]."""
        table, n = self._table, len(slots)
        shortest = np.full(C * n, np.nan)
        column = slots.column.take(table.slot.take(ids))
        place = table.component.take(ids).astype(np.intp) * n + column
        np.fmin.at(shortest, place, table.interval_s.take(ids))
        return shortest.reshape(C, n)

    def _derive_xid(self, derived: Derived, components: Freshness, slots: Slots) -> None:
        """The last code that was seen to change; 0 = none since the baseline."""
        derived.value[XID_ROW] = self._xid[slots.ids]
        newest = components.newest((XID, XID_COUNT))
        columns = (derived.freshness.arrived_ns, derived.freshness.lag_s)
        for column, row in zip((*columns, derived.freshness.interval_s), newest, strict=True):
            column[XID_ROW] = row

    def _place(self, batch: Round) -> None:
        """Put series that are new, or whose endpoint changed, where they belong."""
        table, samples = self._table, batch.samples
        moved = table.slot.take(batch.ids) != samples.slot
        if not moved.any():
            return
        ids = batch.ids[moved]
        before = table.slot[ids]
        self._stale[before[before >= 0]] = True
        for name in ("slot", "component", "group", "shard"):
            getattr(table, name)[ids] = getattr(samples, name)[moved]
        self._enlist(ids)

    def _enlist(self, ids: Int64s) -> None:
        table = self._table
        table.cell[ids] = self._units.cells(
            table.component[ids], table.slot[ids], table.group[ids], table.shard[ids]
        )

    def _apply(self, part: Round, now: Instant, dropped: Counter[str]) -> None:
        """Fold at most one point of each series."""
        part = self._on_time(part, now, dropped)
        self._stale[part.samples.slot] = True
        if part.samples.ended.any():
            part = self._end(part)
        if not len(part.ids):
            return
        self._learn_interval(part)
        is_gauge = IS_GAUGE.take(part.samples.component)
        gauges = np.flatnonzero(is_gauge)
        down = self._fold_gauges(part, gauges)
        if len(gauges) < len(is_gauge):
            self._windows.fold(part, np.flatnonzero(~is_gauge), dropped)
        self._stamp(part, down, now)
        for column, is_so in ((self._table.alive, True), (self._table.known, True)):
            column[part.ids] = is_so
        self._table.fresh[part.ids] = False

    def _go_on(self, batch: Round, now: Instant) -> bool:
        """Fold a batch whose series all go on as they were; False = not so, nothing was changed."""
        samples, ids, table = batch.samples, batch.ids, self._table
        last_ns = table.time_ns.take(ids)
        if (
            np.count_nonzero(samples.ended)
            or np.count_nonzero(samples.delta)
            or np.count_nonzero(samples.time_ns <= last_ns)
            or np.count_nonzero(samples.slot != table.slot.take(ids))
            or np.count_nonzero(table.fresh.take(ids))
            or has_twins(ids, table.scratch)
        ):
            return False
        gap_s = (samples.time_ns - last_ns) / NS_PER_S
        interval_s = _mixed(table.interval_s.take(ids), gap_s)
        kind = steady.KIND.take(samples.component)
        moving = kind.nonzero()[0]
        if len(moving):
            points = steady.Points(
                *(moving, kind.take(moving)),
                ids=ids.take(moving),
                elapsed_s=gap_s.take(moving),
                interval_s=interval_s.take(moving),
            )
            if not steady.fold(self._windows, batch, points):
                return False
        self._stale[samples.slot] = True
        table.interval_s[ids] = interval_s
        down = self._fold_gauges(batch, (kind == ComponentKind.GAUGE).nonzero()[0])
        self._stamp(batch, down, now)
        return True

    def _on_time(self, part: Round, now: Instant, dropped: Counter[str]) -> Round:
        """Without the points that are no later than their series' last."""
        table, ids, t = self._table, part.ids, part.samples.time_ns
        last_ns = table.time_ns.take(ids)
        if not (t <= last_ns).any():
            return part
        quiet_s = (now.mono_ns - table.seen_ns[ids]) / NS_PER_S
        patience_s = np.fmax(SET_BACK_S, SET_BACK_INTERVALS * table.interval_s[ids])
        set_back = (t < last_ns) & (quiet_s > patience_s)
        table.fresh[ids[set_back]] = True
        late = ~table.fresh[ids] & (t <= last_ns)
        dropped["duplicate"] += int((late & (t == last_ns)).sum())
        dropped["out_of_order"] += int((late & (t < last_ns)).sum())
        return part.only(np.flatnonzero(~late)) if late.any() else part

    def _end(self, part: Round) -> Round:
        """End series that say so; returns the other points."""
        ended = part.ids[part.samples.ended]
        self._table.alive[ended] = False
        self._table.fresh[ended] = True
        return part.only(np.flatnonzero(~part.samples.ended))

    def _learn_interval(self, part: Round) -> None:
        table, ids = self._table, part.ids
        gap_s = (part.samples.time_ns - table.time_ns.take(ids)) / NS_PER_S
        old_s = table.interval_s.take(ids)
        learned_s = _mixed(old_s, gap_s)
        is_first = table.fresh.take(ids)
        if is_first.any():
            learned_s = np.where(is_first, old_s, learned_s)
        table.interval_s[ids] = learned_s

    def _fold_gauges(self, part: Round, at: Rows) -> Rows:
        """Take up the gauges at positions `at`; returns the positions of `up` = 0."""
        component = part.samples.component[at]
        news = at[IS_NEWS.take(component)]
        down = news[:0]
        if len(news):
            component = part.samples.component[news]
            down = self._learn_up(part, news[component == UP])
            for wanted, learn in ((XID, self._learn_xid), (XID_COUNT, self._learn_xid_count)):
                rows = news[component == wanted]
                if len(rows):
                    learn(part, rows)
        self._table.value[part.ids[at]] = part.samples.value[at]
        return down

    def _learn_up(self, part: Round, at: Rows) -> Rows:
        is_up = part.samples.value[at] > 0.0
        up, down = part.samples.slot[at[is_up]], at[~is_up]
        self.up_samples[up] += 1
        self.down_samples[up] = 0
        if len(down):
            slot = part.samples.slot[down]
            self.down_samples[slot] += 1
            self.up_samples[slot] = 0
        return down

    def _learn_xid(self, part: Round, at: Rows) -> None:
        """The first code is the baseline; only a change is news."""
        value, ids = part.samples.value[at], part.ids[at]
        changed = self._table.known[ids] & (value != self._table.value[ids]) & (value > 0.0)
        self._news(part.samples.slot[at], changed, value)

    def _learn_xid_count(self, part: Round, at: Rows) -> None:
        value, ids = part.samples.value[at], part.ids[at]
        grown = self._table.known[ids] & (value > self._table.value[ids])
        code = part.samples.count[at]
        self._news(part.samples.slot[at], grown & ~np.isnan(code), code)

    def _news(self, slot: Int32s, changed: Bools, code: Floats) -> None:
        self._xid[slot] = np.where(np.isnan(self._xid[slot]), 0.0, self._xid[slot])
        self._xid[slot[changed]] = code[changed]

    def _stamp(self, part: Round, down: Rows, now: Instant) -> None:
        """The points are the newest of their series; those at `down` are no sign of life."""
        table, samples, ids = self._table, part.samples, part.ids
        table.time_ns[ids] = samples.time_ns
        table.start_ns[ids] = samples.start_ns
        table.seen_ns[ids] = now.mono_ns
        place = samples.component.astype(np.intp) * self._n + samples.slot
        self._components.arrived_ns.reshape(-1)[place] = now.mono_ns
        self._components.lag_s.reshape(-1)[place] = part.lag_s
        slot, lag_s = samples.slot, part.lag_s
        if len(down):
            slot, lag_s = np.delete(slot, down), np.delete(lag_s, down)
        self._heard_ns[slot] = now.mono_ns
        self._heard_lag_s[slot] = lag_s

    def _sweep(self, now: Instant) -> None:
        """Forget series that have been idle for too long."""
        self._swept_ns = now.mono_ns
        self._sources.expire(now)
        ids = self._index.ids()
        patience_s = np.fmax(self._config.idle_s, 5.0 * self._table.interval_s[ids])
        idle_s = (now.mono_ns - self._table.seen_ns[ids]) / NS_PER_S
        self._remove(ids[idle_s > patience_s])

    def _remove(self, ids: Int64s) -> None:
        if not len(ids):
            return
        self._windows.leave(ids)
        self._index.remove(ids)
        slot = self._table.slot[ids]
        self._stale[slot[slot >= 0]] = True
        self._table.end(ids)
        if len(self._units) > 2 * len(self._index) + 1024:
            self._units = Units()
            left = self._index.ids()
            self._enlist(left[self._table.slot[left] >= 0])


def _mixed(old_s: Floats, gap_s: Floats) -> Floats:
    """Observed intervals after one more gap each; NaN = there was none yet."""
    mixed_s = old_s * GAP_LIMIT
    np.minimum(gap_s, mixed_s, out=mixed_s)
    mixed_s -= old_s
    mixed_s *= GAP_WEIGHT
    mixed_s += old_s
    is_first = np.isnan(old_s)
    if np.count_nonzero(is_first):
        mixed_s[is_first] = gap_s[is_first]
    return mixed_s
