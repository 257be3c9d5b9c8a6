"""Silence: series without telemetry, told apart from series without traffic.

Enters: now, when each series was last heard, how many calls it reported. Leaves: who is silent
(nothing for three observed intervals and a floor), who has telemetry but no calls, and which
sources fell silent as a whole: one cause, not one per series. The score is that of so long a pause
among arrivals at random (exponential gaps), an upper bound for regular ones.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from pipeline.detect.baseline import keep_time
from pipeline.detect.rows import Table, taken_array
from pipeline.model import Bools, Floats, Int32s, Int64s

LOG10_E: Final = math.log10(math.e)


class Silent(NamedTuple):
    """What is known about n series now."""

    is_known: Bools
    """It was heard twice at least, once since the start: its interval is known."""
    is_silent: Bools
    has_no_traffic: Bools
    """It is heard, and reports no calls."""
    is_explained: Bools
    """It is silent because its source is."""
    age_s: Floats
    """Since it was heard; NaN = never."""
    allowed_s: Floats
    """The pause after which it is silent; NaN = not known."""
    score: Floats
    """-log10 p of the pause, as < 0: below what was expected; NaN = not known."""
    completeness: Floats
    """float64[sources]: share of each source's known series that are heard; NaN = none known."""
    silent_sources: Int32s
    """Sources that fell silent as a whole, ascending."""


class Silence:
    """State of n series: two float64 facts and the source in int32."""

    name = "silence"

    def __init__(
        self,
        *,
        steps: float = 3.0,
        floor_s: float = 30.0,
        source_share: float = 0.8,
        least_series: int = 3,
    ) -> None:
        """Silent after `steps` observed intervals, and not before `floor_s` seconds.

        A source is silent when `source_share` of its known series are, of `least_series` at least.
        """
        self._steps = steps
        self._floor_s = floor_s
        self._source_share = source_share
        self._least_series = least_series
        self._table = Table({"last_s": np.nan, "interval_s": np.nan}, {})
        self._source: Int32s = np.zeros(0, np.int32)

    @property
    def nbytes(self) -> int:
        """Bytes of state."""
        return self._table.nbytes + self._source.nbytes

    def resize(self, n: int) -> None:
        """Have room for n series, of no source; never shrinks."""
        more = n - self._table.n
        if more > 0:
            self._table.resize(n)
            self._source = np.concatenate((self._source, np.full(more, -1, np.int32)))

    def forget(self, rows: Int64s) -> None:
        """Let `rows` start afresh."""
        self._table.forget(rows)

    def set_sources(self, sources: Int32s) -> None:
        """The source of every series, int32[n], -1 = none."""
        if len(sources) != self._table.n:
            raise ValueError(f"{len(sources)} sources for {self._table.n} series")
        self._source = sources.astype(np.int32)

    def export_state(self) -> dict[str, Any]:
        """The state as numpy arrays and plain values."""
        return {**self._table.export_state(), "source": self._source.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from an exported state; `ValueError` when it does not fit."""
        source = taken_array(state, "source", self._source)
        lines = state.get("lines")
        if not isinstance(lines, np.ndarray) or lines.shape[-1:] != source.shape:
            raise ValueError("source: another number of series")
        self._table.restore(state)
        self._source = source

    def judge(self, now_s: float, heard_s: Floats, calls: Floats) -> Silent:
        """Learn who was heard meanwhile, then tell who is silent.

        `heard_s` float64[n] is when each series was last heard, NaN = not since the start; `calls`
        float64[n] what it reported then, NaN = it reports no calls. Time on one clock.
        """
        last_s, interval_s = self._table.lines
        new = np.flatnonzero((heard_s > last_s) | (np.isnan(last_s) & ~np.isnan(heard_s)))
        learned = last_s[new], interval_s[new]
        keep_time(*learned, heard_s[new])
        last_s[new], interval_s[new] = learned
        age_s = now_s - heard_s
        allowed_s = np.maximum(self._steps * interval_s, self._floor_s)
        is_known = ~np.isnan(age_s) & ~np.isnan(allowed_s)
        is_silent = is_known & (age_s > allowed_s)
        completeness, silent_sources = self._sources(is_known, is_silent)
        with np.errstate(invalid="ignore"):  # NaN is "not known"
            score = np.where(is_known, -LOG10_E * np.maximum(age_s, 0.0) / interval_s, np.nan)
        return Silent(
            is_known=is_known,
            is_silent=is_silent,
            has_no_traffic=is_known & ~is_silent & (calls == 0.0),
            is_explained=is_silent & np.isin(self._source, silent_sources),
            age_s=age_s,
            allowed_s=allowed_s,
            score=score,
            completeness=completeness,
            silent_sources=silent_sources,
        )

    def _sources(self, is_known: Bools, is_silent: Bools) -> tuple[Floats, Int32s]:
        size = int(self._source.max(initial=-1)) + 1
        known = np.bincount(self._source[is_known & (self._source >= 0)], minlength=size)
        silent = np.bincount(self._source[is_silent & (self._source >= 0)], minlength=size)
        completeness = np.full(size, np.nan)
        np.divide(known - silent, known, out=completeness, where=known > 0)
        is_gone = (known >= self._least_series) & (silent >= self._source_share * known)
        return completeness, np.flatnonzero(is_gone).astype(np.int32)
