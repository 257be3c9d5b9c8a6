"""Known series: key -> what it means, so that labels and names are read once in a series' life.

Enters: the series keys of a batch. Leaves: a plan each, -1 for those that must be read. Pages come
in the order in which they came before, so what follows a run's first series is expected and
compared whole, wherever a page was cut; only a run that differs is looked up key by key. Plans that
are idle are forgotten; a full table takes no new ones, which are then read each time.
"""

from typing import Final

import numpy as np

from pipeline.clock import NS_PER_S, Instant
from pipeline.model import Bools, Int64s, UInt64s
from pipeline.normalise.points import MEANING, Known, Meanings, Rows, Runs
from pipeline.series import SeriesIndex

IDLE_S: Final = 600
"""As long as a silent endpoint is remembered."""
SWEEP_S: Final = 60
UNREAD: Final = -1
"""The shape of a plan that is of no series."""
_MIN_ORDER: Final = 1024
_WORD: Final = 2**64 - 1


class Plans:
    """What is kept of each series, indexed by plan."""

    def __init__(self, max_plans: int) -> None:
        """At most `max_plans` series."""
        self._index = SeriesIndex(max_plans)
        self._meaning: Meanings = _unread(1)
        self._used_s: Int64s = np.zeros(1, np.int64)
        self._starts: dict[int, int] = {}
        """Where the order of a run begins, by its first series and its length; a mere guess."""
        self._order: Int64s = np.zeros(_MIN_ORDER, np.int64)
        """Plans of pages, as they came last, one page after the other."""
        self._place: Int64s = np.full(1, -1, np.int64)
        """Where each plan is in that order; -1 = nowhere."""
        self._from: Int64s = np.zeros(1, np.int64)
        self._to: Int64s = np.zeros(1, np.int64)
        """Where the page of each plan is in that order."""
        self._ordered = 0
        self._swept_s = 0

    def __len__(self) -> int:
        """How many series are known."""
        return len(self._index)

    def find(self, series: UInt64s, runs: Runs, now: Instant) -> tuple[Known, Rows | None]:
        """What is known of `series` uint64[n, 2], and the rows that must be read; None = none."""
        plan = self._expect(series, runs)
        meaning = self._meaning.take(plan)
        wrong = meaning["first"] != series[:, 0]
        wrong |= meaning["second"] != series[:, 1]
        wrong |= meaning["shape"] == UNREAD
        missing = None
        if np.count_nonzero(wrong):
            rows = self._look_up(series, runs, wrong, plan)
            meaning[rows] = self._meaning.take(plan[rows], mode="wrap")
            missing = np.flatnonzero(plan < 0)
        known = plan if missing is None or not len(missing) else plan[plan >= 0]
        self._used_s[known] = now.mono_ns // NS_PER_S
        return Known(meaning, plan), missing

    def add(self, meaning: Meanings, now: Instant) -> Int64s:
        """Keep what was read of new series, while there is room; int64[k] plans, -1 = no room."""
        keys = np.stack([meaning["first"], meaning["second"]], axis=1)
        plans, _, _ = self._index.add(keys)
        self._grow(self._index.capacity)
        kept = plans >= 0
        self._meaning[plans[kept]] = meaning[kept]
        self._used_s[plans[kept]] = now.mono_ns // NS_PER_S
        return plans

    def agree(self, plans: Int64s, states: Int64s) -> None:
        """Series `plans` say of their reporters what is known of these, in `states`."""
        kept = plans >= 0
        self._meaning["agrees"][plans[kept]] = states[kept]

    def sweep(self, now: Instant) -> bool:
        """Forget what has been idle; whether it was time to look."""
        now_s = now.mono_ns // NS_PER_S
        if now_s - self._swept_s < SWEEP_S:
            return False
        self._swept_s = now_s
        ids = self._index.ids()
        self._remove(ids[now_s - self._used_s[ids] > IDLE_S])
        return True

    def forget_reporters(self, reporters: Int64s) -> None:
        """Forget the series of `reporters`, whose numbers will be given to others."""
        ids = self._index.ids()
        self._remove(ids[np.isin(self._meaning["reporter"][ids], reporters)])

    def shapes_in_use(self) -> Int64s:
        """int64[k] the distinct shapes of all series."""
        return np.unique(self._meaning["shape"][self._index.ids()]).astype(np.int64)

    def _expect(self, series: UInt64s, runs: Runs) -> Int64s:
        """int64[n] the plans that come if every run goes on as it did when it came last."""
        begins, lengths = runs
        names = series[begins, 0]
        names += lengths.view(np.uint64)
        get = self._starts.get
        places = [get(name, -1) for name in names.tolist()]
        if -1 in places:
            places = self._start(names, series[begins], places)
        place = np.array(places)
        place -= begins
        at = place.repeat(lengths)
        at += np.arange(len(series))
        return self._order.take(at, mode="clip")

    def _start(self, names: UInt64s, keys: UInt64s, places: list[int]) -> list[int]:
        """Places also of runs that never came like this: a page may be cut anywhere."""
        rows = [row for row, place in enumerate(places) if place < 0]
        if len(self._starts) + len(rows) > self._index.capacity:
            self._starts.clear()
        plans = self._index.find(keys[rows])
        found = np.where(plans >= 0, self._place.take(plans, mode="wrap"), -1).tolist()
        for row, name, place in zip(rows, names[rows].tolist(), found, strict=True):
            places[row] = place
            if place >= 0:
                self._starts[name] = place
        return places

    def _look_up(self, series: UInt64s, runs: Runs, wrong: Bools, plan: Int64s) -> Rows:
        """Put the plans of all runs with a row in `wrong` into `plan`; returns their rows."""
        differs = np.logical_or.reduceat(wrong, runs.begins)
        rows = np.flatnonzero(differs.repeat(runs.lengths))
        plan[rows] = self._index.find(series[rows])
        differs &= np.minimum.reduceat(plan, runs.begins) >= 0
        for run in np.flatnonzero(differs).tolist():
            begin, length = int(runs.begins[run]), int(runs.lengths[run])
            place = self._remember(plan[begin : begin + length])
            self._starts[(int(series[begin, 0]) + length) & _WORD] = place
        return rows

    def _remember(self, run: Int64s) -> int:
        """Expect the series of `run` in this order from now on; returns its place."""
        page = self._joined(run)
        begin, end = self._ordered, self._ordered + len(page)
        if end > 4 * self._index.capacity:
            self._place[:] = -1  # all order is learned anew
            self._starts.clear()
            page, begin, end = run, 0, len(run)
        if end > len(self._order):
            self._order = _longer(self._order, max(end, 2 * len(self._order)))
        self._order[begin:end] = page
        self._place[page[::-1]] = np.arange(begin, end)[::-1]  # where one comes first counts
        self._from[page], self._to[page] = begin, end
        self._ordered = end
        return int(self._place[run[0]])

    def _joined(self, run: Int64s) -> Int64s:
        """`run` with what came before and after it in its page, of which it may be a part."""
        first, last = int(run[0]), int(run[-1])
        before = self._ordered_at(first, int(self._from[first]), int(self._place[first]))
        after = self._ordered_at(last, int(self._place[last]) + 1, int(self._to[last]))
        page = np.concatenate([before, run, after])
        return page if len(np.unique(page)) == len(page) else run

    def _ordered_at(self, plan: int, begin: int, end: int) -> Int64s:
        """The plans at places `begin` to `end`, without those that have moved or are gone.

        None if `plan`, beside them, has no place.
        """
        if self._place[plan] < 0:
            return self._order[:0]
        plans = self._order[begin:end]
        stays = self._place[plans] == np.arange(begin, begin + len(plans))
        return plans[np.flatnonzero(stays)]

    def _remove(self, plans: Int64s) -> None:
        self._index.remove(plans)
        self._meaning["shape"][plans] = UNREAD
        self._place[plans] = -1

    def _grow(self, capacity: int) -> None:
        more = capacity - len(self._meaning)
        if more > 0:
            self._meaning = np.concatenate([self._meaning, _unread(more)])
            self._place = np.concatenate([self._place, np.full(more, -1, np.int64)])
            for name in ("_used_s", "_from", "_to"):
                setattr(self, name, _longer(getattr(self, name), capacity))


def _unread(k: int) -> Meanings:
    meaning: Meanings = np.zeros(k, MEANING)
    meaning["shape"] = UNREAD
    return meaning


def _longer(column: Int64s, size: int) -> Int64s:
    return np.concatenate([column, np.zeros(max(size - len(column), 0), np.int64)])
