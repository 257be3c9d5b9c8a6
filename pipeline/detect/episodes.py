"""Scores -> edges: an episode fires once and resolves once.

Enters: samples and their scores. Leaves: the rows that fired and those that resolved. A run begins
at the entry threshold and goes on above 0.7 of it, on one side; it fires when it is long enough. A
gap, an unknown score and muted time change nothing. Then a row is quiet for a cool-down, unless
what comes is far louder; a bucket of tokens bounds how often a row fires at all.
Source: hysteresis and hold times of alarm management (ISA-18.2); token bucket (RFC 2697).
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from pipeline.detect.baseline import keep_time, steps_since
from pipeline.detect.protocol import Samples, Scores
from pipeline.detect.rows import Table
from pipeline.model import Bools, Floats, Int64s

EXIT_RATIO: Final = 0.7
"""Of the entry threshold: below it a run ends."""
BOTH, UP, DOWN = 0, 1, -1
"""Directions."""

RULE: Final = {"entry": 8.0, "direction": 0.0, "least_absolute": 0.0, "least_relative": 0.0}
STATE: Final = {
    "last_s": np.nan,
    "interval_s": np.nan,
    "run": 0.0,
    "side": 0.0,
    "since_s": np.nan,
    "firing": 0.0,
    "calm": 0.0,
    "peak": 0.0,
    "quiet_until_s": -np.inf,
    "spent": 0.0,
    "held_back": 0.0,
}


class Edges(NamedTuple):
    """What began and what ended with some samples."""

    fired: Int64s
    """int64[a] rows, ascending."""
    fired_at: Int64s
    """int64[a] their places among the samples."""
    fired_since_s: Floats
    """float64[a] event time at which the run began."""
    resolved: Int64s
    """int64[b] rows, ascending."""
    resolved_at: Int64s
    """int64[b] their places among the samples."""
    resolved_since_s: Floats
    """float64[b] the same time as when they fired."""


class Episodes:
    """State of n rows: 15 facts in float64."""

    def __init__(
        self,
        *,
        entry: float = 8.0,
        least_samples: float = 1.0,
        least_s: float = 0.0,
        calm_samples: float = 3.0,
        cool_down_samples: float = 10.0,
        cool_down_s: float = 0.0,
        louder: float = 2.0,
        burst: float = 5.0,
        refill_s: float = 3600.0,
    ) -> None:
        """`entry` is the threshold of rows without a rule (see `calibrate.threshold`).

        A run fires after `least_samples` and `least_s`; it ends after `calm_samples` in a row below
        the exit. The cool-down is the longer of both; a score `louder` times the last episode's
        peak breaks it. A row fires `burst` times, then once every `refill_s`.
        """
        self._least_samples = least_samples
        self._least_s = least_s
        self._calm_samples = calm_samples
        self._cool_down_samples = cool_down_samples
        self._cool_down_s = cool_down_s
        self._louder = louder
        self._burst = burst
        self._refill_s = refill_s
        self._table = Table({**RULE, "entry": entry, **STATE}, {})
        self.held_back: Counter[str] = Counter()
        """Runs that did not fire, by reason: cool_down, flapping."""

    @property
    def nbytes(self) -> int:
        """Bytes of state."""
        return self._table.nbytes

    @property
    def is_firing(self) -> Bools:
        """bool[n], which rows are in an episode."""
        return self._table.fact("firing") > 0.0

    def resize(self, n: int) -> None:
        """Have room for n rows; never shrinks."""
        self._table.resize(n)

    def forget(self, rows: Int64s) -> None:
        """Let `rows` start afresh, without a rule; what fired there never resolves."""
        self._table.forget(rows)

    def set_rule(
        self,
        rows: Int64s,
        *,
        entry: float | Floats,
        direction: int | Int64s = BOTH,
        least_absolute: float | Floats = 0.0,
        least_relative: float | Floats = 0.0,
    ) -> None:
        """What an anomaly of `rows` is: score, side, and the least deviation from the expected.

        The deviation must reach `least_absolute`, in the unit of the series, and `least_relative`
        of the expected value.
        """
        values = (entry, direction, least_absolute, least_relative)
        for name, value in zip(RULE, values, strict=True):
            self._table.fact(name)[rows] = value

    def export_state(self) -> dict[str, Any]:
        """The state as numpy arrays and plain values; rules are part of it."""
        return self._table.export_state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from an exported state; `ValueError` when it does not fit."""
        self._table.restore(state)

    def update(self, samples: Samples, scores: Scores, live: Bools | None = None) -> Edges:
        """The edges that `scores` of `samples` make; rows that are not `live` (muted) make none."""
        is_known = ~np.isnan(scores.score)
        if live is not None:
            is_known &= live
        lines, is_view = self._table.read(samples.row, is_known)
        with np.errstate(invalid="ignore"):  # NaN is "not known"
            fires, ends = self._step(lines, samples, scores, is_known)
        fired, resolved = np.flatnonzero(fires), np.flatnonzero(ends)
        since_s = lines[len(RULE) + 4]
        edges = Edges(
            samples.row[fired],
            fired,
            since_s[fired],
            samples.row[resolved],
            resolved,
            since_s[resolved],
        )
        if not is_view:
            self._table.write(samples.row, is_known, lines)
        return edges

    def _step(
        self, lines: Floats, samples: Samples, scores: Scores, is_known: Bools
    ) -> tuple[Bools, Bools]:
        last_s, interval_s, run, side, since_s, firing, calm, peak = lines[len(RULE) :][:8]
        now_s, size = samples.time_s, np.abs(scores.score)
        enters, stays = self._compare(lines, samples, scores, size)
        _, is_gap = steps_since(last_s, interval_s, now_s)
        was_firing = firing > 0.0
        goes_on = (run > 0.0) & stays & (was_firing | ~is_gap)
        begins = enters & ~goes_on & ~was_firing
        run[:] = np.where(goes_on, run + 1.0, np.where(begins | was_firing, 1.0, 0.0))
        np.copyto(since_s, now_s, where=begins)
        np.copyto(side, np.sign(scores.score), where=begins)
        fires = self._fire(lines, now_s, size, is_known & (run > 0.0) & ~was_firing)
        calm[:] = np.where(was_firing & ~stays, calm + 1.0, 0.0)
        ends = was_firing & (calm >= self._calm_samples) & is_known
        peak[:] = np.where(fires, size, np.where(was_firing, np.fmax(peak, size), peak))
        firing += fires
        firing -= ends
        run[ends] = calm[ends] = 0.0
        cool_down_s = np.fmax(self._cool_down_samples * interval_s, self._cool_down_s)
        np.copyto(lines[len(RULE) + 8], now_s + cool_down_s, where=ends)
        keep_time(last_s, interval_s, now_s)
        return fires, ends

    @staticmethod
    def _compare(
        lines: Floats, samples: Samples, scores: Scores, size: Floats
    ) -> tuple[Bools, Bools]:
        """Where a run may begin, and where the one that there is goes on."""
        entry, direction, least_absolute, least_relative = lines[: len(RULE)]
        sign, side = np.sign(scores.score), lines[len(RULE) + 3]
        apart = np.abs(samples.value - scores.expected)
        least = np.maximum(least_absolute, least_relative * np.abs(scores.expected))
        enters = (size >= entry) & ~(apart < least) & (direction * sign >= 0.0)
        stays = (size >= EXIT_RATIO * entry) & ~(apart < EXIT_RATIO * least) & (sign == side)
        return enters, stays

    def _fire(self, lines: Floats, now_s: Floats, size: Floats, is_running: Bools) -> Bools:
        """Which runs become episodes now."""
        run, _, since_s, _, _, peak, quiet_until_s, spent, held_back = lines[len(RULE) + 2 :]
        is_ready: Bools = is_running & (run >= self._least_samples)
        is_ready &= now_s - since_s >= self._least_s
        held_back[~is_running] = 0.0
        ready = np.flatnonzero(is_ready)
        if not len(ready):
            return is_ready
        is_quiet = (now_s < quiet_until_s)[ready] & (size < self._louder * peak)[ready]
        # `spent` is when the bucket will be full again; each firing moves it on.
        full_s = np.maximum(spent[ready], now_s[ready])
        is_empty = full_s - now_s[ready] > (self._burst - 1.0) * self._refill_s
        self._count(is_quiet, is_empty, held_back, ready)
        fires = ~is_quiet & ~is_empty
        is_ready[ready] = fires
        spent[ready] = np.where(fires, full_s + self._refill_s, spent[ready])
        return is_ready

    def _count(self, is_quiet: Bools, is_empty: Bools, held_back: Floats, ready: Int64s) -> None:
        is_new = held_back[ready] == 0.0
        self.held_back["cool_down"] += int(np.count_nonzero(is_quiet & is_new))
        self.held_back["flapping"] += int(np.count_nonzero(is_empty & ~is_quiet & is_new))
        held_back[ready[is_quiet | is_empty]] = 1.0
