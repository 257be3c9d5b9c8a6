"""Requests -> the seconds they count in.

Seconds are those of the events' ends, corrected by their source's clock offset, on a time line that
has the wall clock's seconds and never steps. Rows from the future and rows older than what is kept
are left out and counted.
"""

from typing import Final, NamedTuple

import numpy as np

from pipeline.clock import NS_PER_S, Instant
from pipeline.fold.offsets import SourceOffsets
from pipeline.model import Bools, Int64s, RequestRows

_NO_TIMES: Final = np.zeros(0, np.int64)


class Placed(NamedTuple):
    """The requests of a batch that count, n of them, and where."""

    rows: RequestRows
    second: Int64s
    """int64[n]"""
    oldest_s: int
    """No second is smaller."""
    at_ns: Int64s
    """int64[n]: the corrected ends."""
    left_out: dict[str, int]
    """By reason; `source_overflow` counts rows that are taken at their word."""


class TimeLine:
    """The seconds of the last `kept_s`, the open one included."""

    def __init__(self, kept_s: int, max_sources: int) -> None:
        """Know the clock offsets of up to `max_sources` sources."""
        self._kept_s = kept_s
        self._offsets = SourceOffsets(max_sources)
        self._origin_ns: int | None = None

    def time_ns(self, now: Instant) -> int:
        """Now, as it was on the wall clock when the line began, plus what passed since."""
        if self._origin_ns is None:
            self._origin_ns = now.wall_ns - now.mono_ns
        return now.mono_ns + self._origin_ns

    def place(self, rows: RequestRows, now: Instant) -> Placed:
        """Where the rows count that arrive at `now`, and learn from them; none is fine."""
        if not rows.n:
            return Placed(rows, _NO_TIMES, 0, _NO_TIMES, {})
        ages = self._offsets.ages(rows.source, rows.end_ns, now)
        time_ns = self.time_ns(now)
        at_ns = time_ns - np.maximum(ages.age_ns, 0)
        second = at_ns // NS_PER_S
        oldest_s, gone_s = int(np.minimum.reduce(second)), time_ns // NS_PER_S - self._kept_s
        is_late = second <= gone_s if oldest_s <= gone_s else None
        left_out = _count_left_out(ages.is_future, is_late)
        if left_out:
            kept = (~_either(ages.is_future, is_late)).nonzero()[0]
            rows, second, at_ns = rows.only(kept), second[kept], at_ns[kept]
        if ages.overflow:
            left_out["source_overflow"] = ages.overflow
        return Placed(rows, second, max(oldest_s, gone_s + 1), at_ns, left_out)


def _count_left_out(is_future: Bools | None, is_late: Bools | None) -> dict[str, int]:
    reasons = {}
    if is_future is not None:
        reasons["future"] = int(np.count_nonzero(is_future))
    if is_late is not None:
        # What is from the future by its source's clock is now by ours, so never late.
        reasons["late"] = int(np.count_nonzero(is_late))
    return reasons


def _either(left: Bools | None, right: Bools | None) -> Bools:
    if left is None or right is None:
        result = right if left is None else left
        assert result is not None, "one of them left something out"
        return result
    return left | right
