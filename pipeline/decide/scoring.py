"""Runs the scorers that the pools ask for and keeps the strongest reasons of each endpoint."""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias, TypeVar

import numpy as np

from pipeline.decide.authority import PoolConfigs
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


class Judged(NamedTuple):
    """All pools' endpoints, each scored by its pool's profile. Arrays have length n."""

    score: Floats
    cost: Floats
    coverage: Floats
    reasons: Reasons


def judge(signals: Floats, context: Context, directory: Directory, pools: PoolConfigs) -> Judged:
    """Score float64[signals, n]; each pool by its own profile."""
    profiles = [pools.of(name).profile for name in directory.pools]
    used = [name for name in SCORERS if name in profiles] or ["expected-wait"]
    judged = _judge(SCORERS[used[0]](signals, context), context)
    for name in used[1:]:
        other = _judge(SCORERS[name](signals, context), context)
        chosen = np.array([*(profile == name for profile in profiles), False])[directory.pool]
        judged = _merge(judged, other, np.flatnonzero(chosen))
    return judged


def _judge(scored: Scored, context: Context) -> Judged:
    return Judged(scored.score, scored.cost, scored.coverage, explain(scored, context))


def _merge(first: Judged, second: Judged, slots: Int64s) -> Judged:
    for mine, other in zip(_columns(first), _columns(second), strict=True):
        mine[slots] = other[slots]
    return first


def _columns(judged: Judged) -> tuple[Floats | Int32s, ...]:
    return (judged.score, judged.cost, judged.coverage, *judged.reasons)


def explain(scored: Scored, context: Context) -> Reasons:
    """The strongest contributions of every endpoint, then what was read and cost nothing."""
    k, n = scored.points.shape
    kept = min(k, MAX_REASONS)
    strength = np.abs(scored.points)
    told = np.isin(scored.signals, ALWAYS_TOLD)[:, None] & ~np.isnan(scored.values)
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
        observer=strongest(_observers(scored, context), -1),
    )


def _observers(scored: Scored, context: Context) -> Int32s:
    """Who saw each term's value, int32[k, n]; -1 where it is no request window."""
    observers = np.full(scored.points.shape, -1, np.int32)
    if context.window is not None:
        rows = {int(signal): row for row, signal in enumerate(scored.signals)}
        for name, column in OBSERVED.items():
            row = rows.get(SIGNAL_INDEX[name])
            if row is not None:
                observers[row] = getattr(context.window, column)
    return observers
