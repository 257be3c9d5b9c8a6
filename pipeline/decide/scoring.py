"""Runs the scorers that the pools ask for and keeps the strongest reasons of each endpoint."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias, TypeVar

import numpy as np

from pipeline.decide.authority import PoolConfigs
from pipeline.decide.groups import ByRow, Groups, differing
from pipeline.decide.latency import ROWS as LATENCIES
from pipeline.decide.scorers import Context, Scored, expected_wait, hardware
from pipeline.model import MAX_REASONS, Directory, Floats, Int32s, Int64s, ProfileName
from pipeline.signals import SIGNAL_INDEX

Shown = TypeVar("Shown", Floats, Int32s)
Scorer: TypeAlias = Callable[[Floats, Context], Scored]

SCORERS: Final[dict[ProfileName, Scorer]] = {
    "expected-wait": expected_wait.score,
    "hardware": hardware.score,
}
MIN_POINTS: Final = 1e-3  # a reason that moves the score by less is none
ALWAYS_TOLD: Final = np.array(
    [
        SIGNAL_INDEX[name]
        for name in ("queue_depth", "running", "output_tokens_per_s", *LATENCIES[:2])
    ],
    np.int32,
)
"""Shown whenever known: "is it busy, is it slow?" is asked of healthy endpoints, too."""
_IS_TOLD: Final = np.isin(np.arange(len(SIGNAL_INDEX)), ALWAYS_TOLD)
OBSERVED: Final = {
    "window_ttft_p50_s": "ttft_observer",
    "window_duration_p50_s": "calls_observer",
    "window_failure_ratio": "failures_observer",
}
"""Signals of request windows -> the window's column that names the observer."""


class Reasons(NamedTuple):
    """Strongest first, [n, MAX_REASONS]; signal -1 = none."""

    signal: Int32s
    value: Floats
    peer: Floats
    points: Floats
    observer: Int32s

    def of(self, slots: Int64s) -> "Reasons":
        """Those of some slots."""
        return Reasons(
            self.signal[slots],
            self.value[slots],
            self.peer[slots],
            self.points[slots],
            self.observer[slots],
        )

    def put(self, slots: Int64s, part: "Reasons") -> "Reasons":
        """A copy with those of some slots replaced."""
        return Reasons(
            _with(self.signal, slots, part.signal),
            _with(self.value, slots, part.value),
            _with(self.peer, slots, part.peer),
            _with(self.points, slots, part.points),
            _with(self.observer, slots, part.observer),
        )


class Judged(NamedTuple):
    """All pools' endpoints, each scored by its pool's profile. Arrays have length n."""

    score: Floats
    cost: Floats
    coverage: Floats
    reasons: Reasons


class Judge:
    """Scores each pool by its own profile; explains anew only what moved since the last time."""

    def __init__(self) -> None:
        """Nothing was judged yet."""
        self._medians = {name: ByRow(Groups.median_rows) for name in SCORERS}
        self._explanations = {name: _Explanations() for name in SCORERS}

    def __call__(
        self, signals: Floats, context: Context, directory: Directory, pools: PoolConfigs
    ) -> Judged:
        """Score float64[signals, n]. What comes out is not to be changed."""
        profiles = [pools.of(name).profile for name in directory.pools]
        used = [name for name in SCORERS if name in profiles] or ["expected-wait"]
        judged = self._by(used[0], signals, context)
        for name in used[1:]:
            other = self._by(name, signals, context)
            chosen = np.array([*(profile == name for profile in profiles), False])[directory.pool]
            judged = _merge(judged, other, np.flatnonzero(chosen))
        return judged

    def _by(self, name: ProfileName, signals: Floats, context: Context) -> Judged:
        context = replace(context, medians=self._medians[name])
        scored = SCORERS[name](signals, context)
        reasons = self._explanations[name](scored, observers_of(scored, context))
        return Judged(scored.score, scored.cost, scored.coverage, reasons)


def _merge(first: Judged, second: Judged, slots: Int64s) -> Judged:
    """`first`, with the rows `slots` of `second`."""
    return Judged(
        _with(first.score, slots, second.score[slots]),
        _with(first.cost, slots, second.cost[slots]),
        _with(first.coverage, slots, second.coverage[slots]),
        first.reasons.put(slots, second.reasons.of(slots)),
    )


def _with(column: Shown, slots: Int64s, rows: Shown) -> Shown:
    """A copy of `column` with other `rows` at `slots`."""
    changed = column.copy()
    changed[slots] = rows
    return changed


class _Explanations:
    """The reasons that one scorer gave last, and for what."""

    def __init__(self) -> None:
        self._terms: tuple[Floats, Floats, Floats] | None = None
        self._observers = np.zeros((0, 0), np.int32)
        self._reasons: Reasons | None = None

    def __call__(self, scored: Scored, observers: Int32s) -> Reasons:
        """As `explain`; the same object while nothing moved."""
        terms = scored.points, scored.values, scored.peers
        last, before, reasons = self._terms, self._observers, self._reasons
        self._terms, self._observers = terms, observers
        if last is None or reasons is None or before.shape != observers.shape:
            self._reasons = explain(scored, observers)
            return self._reasons
        moved = (before != observers).any(axis=0)
        for was, now in zip(last, terms, strict=True):
            moved |= differing(was, now)
        slots = np.flatnonzero(moved)
        if len(slots):
            points, values, peers = (each.take(slots, axis=1) for each in terms)
            part = scored._replace(points=points, values=values, peers=peers)
            self._reasons = reasons.put(slots, explain(part, observers.take(slots, axis=1)))
            return self._reasons
        return reasons


def explain(scored: Scored, observers: Int32s) -> Reasons:
    """The strongest contributions of every endpoint, then what was read and cost nothing.

    `observers` int32[k, n] saw each term's value; -1 = nobody.
    """
    k, n = scored.points.shape
    kept = min(k, MAX_REASONS)
    strength = np.abs(scored.points)
    told = _IS_TOLD[scored.signals][:, None] & ~np.isnan(scored.values)
    strength = np.where(strength >= MIN_POINTS, strength, np.where(told, MIN_POINTS / 2, 0.0))
    by_slot = np.ascontiguousarray(strength.T)
    order = np.argsort(-by_slot, axis=1, kind="stable")[:, :kept]
    shown = np.take_along_axis(by_slot, order, axis=1) > 0
    place = order * n + np.arange(n)[:, None]

    def strongest(terms: Shown, nothing: float) -> Shown:
        reasons = np.full((n, MAX_REASONS), nothing, terms.dtype)
        reasons[:, :kept] = np.where(shown, terms.reshape(-1).take(place), nothing)
        return reasons

    signal = np.full((n, MAX_REASONS), -1, np.int32)
    signal[:, :kept] = np.where(shown, scored.signals[order], -1)
    return Reasons(
        signal=signal,
        value=strongest(scored.values, np.nan),
        peer=strongest(scored.peers, np.nan),
        points=strongest(scored.points, 0.0),
        observer=strongest(observers, -1),
    )


def observers_of(scored: Scored, context: Context) -> Int32s:
    """Who saw each term's value, int32[k, n]; -1 where it is no request window."""
    observers = np.full(scored.points.shape, -1, np.int32)
    if context.window is not None:
        rows = {int(signal): row for row, signal in enumerate(scored.signals)}
        for name, column in OBSERVED.items():
            row = rows.get(SIGNAL_INDEX[name])
            if row is not None:
                observers[row] = getattr(context.window, column)
    return observers
