"""What detectors are fed: finite values, one a series and round, time that moves forward.

Enters: samples as they come. Leaves: rounds of `Samples`, in order. Everything else is counted by
reason and never seen by any state: one NaN would blind a baseline for ever. A clock that was set
back for good is believed after a while, and its series start afresh.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from pipeline.detect.protocol import Samples
from pipeline.detect.rows import Table
from pipeline.model import Bools, Floats, Int64s

MOST_VALUE: Final = 1e140
"""Larger values are nobody's measurement, and their squares would not be finite."""


class Admitted(NamedTuple):
    """One round."""

    samples: Samples
    restarted: Int64s
    """int64[j] rows among them whose time went back for good: detectors forget these first."""


class Border:
    """State of n series: time and value of the last sample, and how many came before it in time."""

    def __init__(self, *, believe_after: float = 30.0) -> None:
        """After `believe_after` samples in a row from before the last one, the clock was set."""
        self._believe_after = believe_after
        self._table = Table({"last_s": -np.inf, "value": np.nan, "backward": 0.0}, {})
        self.dropped: Counter[str] = Counter()
        """Samples left out: not_finite, too_large, repeated (same time and value), duplicate (same
        time, another value), backward. Beside them clock_set: series that started afresh."""

    @property
    def nbytes(self) -> int:
        """Bytes of state."""
        return self._table.nbytes

    def resize(self, n: int) -> None:
        """Have room for n series; never shrinks."""
        self._table.resize(n)

    def forget(self, rows: Int64s) -> None:
        """Let `rows` start afresh."""
        self._table.forget(rows)

    def export_state(self) -> dict[str, Any]:
        """The state as numpy arrays and plain values."""
        return self._table.export_state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from an exported state; `ValueError` when it does not fit."""
        self._table.restore(state)

    def admit(self, row: Int64s, time_s: Floats, value: Floats) -> Iterator[Admitted]:
        """Rounds of what is sound in k samples, in any order of rows; each as it is asked for.

        `row` int64[k], `time_s` and `value` float64[k]; samples of one row in their order.
        """
        is_sound = self._sound(time_s, value)
        if not is_sound.all():
            row, time_s, value = row[is_sound], time_s[is_sound], value[is_sound]
        for part in _rounds(row):
            one = Samples(row, time_s, value)
            if part is not None:
                one = Samples(row[part], time_s[part], value[part])
            if len(one.row):
                yield self._admit(one)

    def _sound(self, time_s: Floats, value: Floats) -> Bools:
        is_finite = np.isfinite(value) & np.isfinite(time_s)
        is_sound = is_finite & (np.abs(value) <= MOST_VALUE)
        self._drop("not_finite", ~is_finite)
        self._drop("too_large", is_finite & ~is_sound)
        return is_sound

    def _admit(self, samples: Samples) -> Admitted:
        lines = self._table.lines.take(samples.row, axis=1)
        last_s, value, backward = lines
        is_next = samples.time_s > last_s
        restarted = samples.row[:0]
        if not is_next.all():
            is_same = samples.time_s == last_s
            is_repeated = is_same & (samples.value == value)
            self._drop("repeated", is_repeated)
            self._drop("duplicate", is_same & ~is_repeated)
            backward += ~is_next & ~is_same
            is_set = backward >= self._believe_after
            is_set &= ~is_next & ~is_same
            self._drop("backward", ~is_next & ~is_same & ~is_set)
            self._drop("clock_set", is_set)
            restarted = samples.row[is_set]
            is_next |= is_set
        backward[is_next] = 0.0
        last_s[is_next], value[is_next] = samples.time_s[is_next], samples.value[is_next]
        self._table.lines[:, samples.row] = lines
        if not is_next.all():
            samples = Samples(*(column[is_next] for column in samples))
        return Admitted(samples, restarted)

    def _drop(self, reason: str, which: Bools) -> None:
        count = int(np.count_nonzero(which))
        if count:
            self.dropped[reason] += count


def _rounds(row: Int64s) -> Iterator[Int64s | None]:
    """Places of rows, ascending and unique; a row's samples come in their order. None = all."""
    if len(row) < 2 or (row[1:] > row[:-1]).all():
        yield None
        return
    order = np.argsort(row, kind="stable")
    ordered = row[order]
    begins = np.ones(len(row), np.bool_)
    begins[1:] = ordered[1:] != ordered[:-1]
    run = np.flatnonzero(begins)
    nth = np.arange(len(row)) - np.repeat(run, np.diff(np.append(run, len(row))))
    for k in range(int(nth.max()) + 1):
        yield order[nth == k]
