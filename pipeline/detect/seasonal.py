"""Season: a value against what this hour of the day, or of the week, usually brings.

Slots of an hour of clock time (UTC) hold means, interpolated between their middles; until a slot
has been visited often enough the level serves instead, so it works before a season is complete.
What the seasons miss as a whole is a bias that moves fast. Each hour of the day also keeps its
usual largest deviation: a job that runs daily is quiet after three days.
Source: seasonal subseries means of Holt-Winters (Winters 1960) with robust, protected learning.
"""

from typing import Final, NamedTuple

import numpy as np

from pipeline.detect.baseline import (
    OUTLIER_WEIGHT,
    OUTLYING,
    TINY,
    Deviation,
    keep_time,
    protected,
    sigma_of,
    standardised,
    steps_since,
    weights,
)
from pipeline.detect.calibrate import Tail
from pipeline.detect.protocol import Scores
from pipeline.detect.rows import Part, RowDetector, Slots
from pipeline.model import Bools, Floats, Int64s

SLOT_S: Final = 3600.0
DAY: Final = 24
WEEK: Final = 168
MOST_VISITS: Final = 255
PEAK_KEPT: Final = 0.9
"""Of a slot's usual largest deviation, from one day to the next."""
PEAK_WEIGHT: Final = 0.5
"""Of a larger one: three in three days make it usual, one does not."""

HEAD: Final = {
    "last_s": np.nan,
    "interval_s": np.nan,
    "count": 0.0,
    "floor": TINY,
    "level": 0.0,
    "bias": 0.0,
    "scale": 0.0,
    "run": 0.0,
    "run_level": 0.0,
    "slot": -1.0,
    "visit": 0.0,
    "largest": 0.0,
}


class _Clock(NamedTuple):
    """Where in the seasons samples lie: the slot, its nearest neighbour, how far towards it."""

    slot: Int64s
    near: Int64s
    towards: Floats


class _Columns(NamedTuple):
    """Neighbouring rows, all in one slot."""

    slot: int
    rows: slice


Place = _Columns | Int64s
"""Where in a season's slots rows are: in one slot, or int64[k] places in the flat array."""


class _Places(NamedTuple):
    """Of a slot and of its neighbour."""

    slot: Place
    near: Place


class _Expected(NamedTuple):
    """What the seasons say."""

    value: Floats
    is_known: Bools
    peak: Floats


class Seasonal(RowDetector):
    """float64 state of 19 facts a series, and 1,152 bytes of seasons in float32 and uint8."""

    name = "seasonal"

    def __init__(
        self,
        *,
        visits: int = 2,
        visit_memory: float = 3.0,
        memory: float = 40.0,
        scale_memory: float = 400.0,
        accept: float = 100.0,
        warm_up: float = 30.0,
        relative_floor: float = 1e-3,
    ) -> None:
        """A slot serves after `visits` of it and remembers about `visit_memory` visits.

        `memory` of level and bias, `scale_memory`, `accept` and `warm_up` as in `Level`.
        """
        self._visits = visits
        self._slot_memory_s = visit_memory * SLOT_S
        self._memory = memory
        self._scale_memory = scale_memory
        self._warm_up = warm_up
        self._relative_floor = relative_floor
        self._tail = Tail()
        self._deviation = Deviation(accept=accept, warm_up=warm_up)
        seasons = {
            "day_mean": Slots(DAY, np.float32),
            "day_peak": Slots(DAY, np.float32),
            "day_largest": Slots(DAY, np.float32),
            "day_visits": Slots(DAY, np.uint8),
            "week_mean": Slots(WEEK, np.float32),
            "week_visits": Slots(WEEK, np.uint8),
        }
        super().__init__({**HEAD, **self._tail.facts}, seasons)

    def _score(self, lines: Floats, samples: Part) -> Scores:
        last_s, interval_s, count, floor, level, bias, scale = lines[:7]
        tail, now = lines[len(HEAD) :], samples.value
        steps, _ = steps_since(last_s, interval_s, samples.time_s)
        clock = _clock(samples.time_s)
        day, week = (self._places(samples.row, clock, length) for length in (DAY, WEEK))
        season = self._look_up(clock.towards, day, week)
        expected = np.where(season.is_known, season.value + bias, level)
        sigma = sigma_of(scale, expected, floor, self._relative_floor)
        wide = np.maximum(sigma, season.peak / OUTLYING)
        residual = now - expected
        z = standardised(residual, wide)
        z[count < self._warm_up] = np.nan
        scores = Scores(self._tail.score(z, tail, count), expected, 3.0 * wide)
        self._tail.learn(z, tail, count)
        is_out = self._deviation.outlying(residual, wide, count)
        weight = protected(weights(steps, count, self._scale_memory), is_out)
        self._deviation.learn_scale(scale, residual, sigma, count, weight)
        self._visit(lines, samples, clock.slot, residual, sigma)
        self._learn_means(lines, samples, day.slot, week.slot, is_out & season.is_known)
        self._learn_level(lines, season, now, residual, is_out, weights(steps, count, self._memory))
        keep_time(last_s, interval_s, samples.time_s)
        count += 1.0
        return scores

    def _learn_level(
        self,
        lines: Floats,
        season: _Expected,
        now: Floats,
        residual: Floats,
        is_out: Bools,
        weight: Floats,
    ) -> None:
        level, bias, run, run_level = lines[4], lines[5], lines[7], lines[8]
        weight = protected(weight, is_out)
        level += weight * (now - level)
        bias += weight * season.is_known * residual
        done = self._deviation.accepted(run, run_level, is_out, residual, now)
        level[done] = run_level[done]
        bias[done] = (run_level[done] - season.value[done]) * season.is_known[done]

    def _places(self, row: Int64s, clock: _Clock, length: int) -> _Places:
        return _Places(self._place(clock.slot % length, row), self._place(clock.near % length, row))

    def _place(self, slot: Int64s, row: Int64s) -> Place:
        if len(row) and row[-1] - row[0] + 1 == len(row) and slot.min() == slot.max():
            return _Columns(int(slot[0]), slice(int(row[0]), int(row[-1]) + 1))
        return slot * self._table.n + row

    def _look_up(self, towards: Floats, day: _Places, week: _Places) -> _Expected:
        of_day, day_known = self._mean("day", day, towards)
        of_week, week_known = self._mean("week", week, towards)
        peak = np.maximum(self._take("day_peak", day.slot), self._take("day_peak", day.near))
        peak *= day_known
        return _Expected(np.where(week_known, of_week, of_day), day_known | week_known, peak)

    def _mean(self, season: str, places: _Places, towards: Floats) -> tuple[Floats, Bools]:
        mean = self._take(f"{season}_mean", places.slot)
        beside = self._take(f"{season}_mean", places.near)
        is_known = self._take(f"{season}_visits", places.slot) >= self._visits
        beside -= mean
        beside *= towards
        beside *= self._take(f"{season}_visits", places.near) >= self._visits
        mean += beside
        return mean, is_known

    def _visit(
        self, lines: Floats, samples: Part, hour: Int64s, residual: Floats, sigma: Floats
    ) -> None:
        """Count samples of a visit and keep its largest outlier; end the visits that are over."""
        slot, visit, largest = lines[9], lines[10], lines[11]
        here = (hour % WEEK).astype(np.float64)
        moved = np.flatnonzero(slot != here)
        if len(moved):
            ended = moved[samples.learn[moved] & (slot[moved] >= 0.0)]
            self._end_visit(samples.row[ended], slot[ended], largest[ended])
            begun = moved[samples.learn[moved]]
            self._begin_visit(samples.row[begun], hour[begun] % DAY)
            visit[moved], largest[moved], slot[moved] = 0.0, 0.0, here[moved]
        is_out = self._deviation.outlying(residual, sigma, lines[2])
        np.maximum(largest, np.abs(residual) * is_out, out=largest)
        visit += 1.0

    def _learn_means(
        self, lines: Floats, samples: Part, day: Place, week: Place, is_out: Bools
    ) -> None:
        visit, elapsed_s = lines[10], np.fmin(samples.time_s - lines[0], SLOT_S)
        weight = -np.expm1(elapsed_s * (-1.0 / self._slot_memory_s))
        weight[is_out] *= OUTLIER_WEIGHT
        for season, place in (("day", day), ("week", week)):
            mean = self._take(f"{season}_mean", place)
            is_first = self._take(f"{season}_visits", place) == 0.0
            change = np.where(is_first, 1.0 / visit, weight)
            change *= samples.value - mean
            mean += change
            self._put(f"{season}_mean", place, mean, samples.learn)

    def _end_visit(self, row: Int64s, slot: Floats, largest: Floats) -> None:
        week = slot.astype(np.int64)
        of_day, of_week = (at * self._table.n + row for at in (week % DAY, week))
        every = np.ones(len(row), np.bool_)
        for name, place in (("day_visits", of_day), ("week_visits", of_week)):
            visits = self._take(name, place) + 1.0
            self._put(name, place, np.minimum(visits, MOST_VISITS), every)
        self._put("day_largest", of_day, largest, every)

    def _begin_visit(self, row: Int64s, slot: Int64s) -> None:
        """Take up the outlier of the day before: that of today is no usual one yet, nor nearby."""
        place, every = slot * self._table.n + row, np.ones(len(row), np.bool_)
        peak = PEAK_KEPT * self._take("day_peak", place)
        peak += PEAK_WEIGHT * np.maximum(self._take("day_largest", place) - peak, 0.0)
        self._put("day_peak", place, peak, every)

    def _take(self, name: str, place: Place) -> Floats:
        """float64[k], a copy."""
        slots = self._table.slots[name]
        if isinstance(place, _Columns):
            return slots[place.slot, place.rows].astype(np.float64)
        return slots.reshape(-1).take(place).astype(np.float64)

    def _put(self, name: str, place: Place, values: Floats, learn: Bools) -> None:
        """Rounds to the slots' own type."""
        slots = self._table.slots[name]
        if isinstance(place, _Columns):
            columns = slots[place.slot, place.rows]
            np.copyto(columns, values, casting="unsafe", where=learn)
        else:
            slots.reshape(-1)[place[learn]] = values[learn]


def _clock(time_s: Floats) -> _Clock:
    """Slots since the epoch; half an hour before a border the next slot begins to count.

    >>> clock = _clock(np.array([3600.0 * 7 + 1800.0, 3600.0 * 8]))
    >>> clock.slot.tolist(), clock.near.tolist(), clock.towards.tolist()
    ([7, 8], [8, 7], [0.0, 0.5])
    """
    hours = time_s * (1.0 / SLOT_S)
    whole = np.floor(hours)
    towards = hours - whole - 0.5
    slot = whole.astype(np.int64)
    near = slot + np.where(towards < 0.0, -1, 1)
    return _Clock(slot, near, np.abs(towards))
