"""What a detector is: scores for new samples, on one scale for every method and series.

Enters: `Samples`, at most one a series, sanitised (`pipeline.detect.border`). Leaves: `Scores`.
Order: `resize` before a row is used, then `score` in the order of time; `forget` when a row is
given to another series. Guaranteed: a batch of samples cut differently, in another order of series
or with other series added gives bit-identical scores; what is exported and restored goes on
bit-identically; nothing raises on any finite value.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from pipeline.model import Bools, Floats, Int64s


class Samples(NamedTuple):
    """New samples of k different series, sanitised: finite, time moves forward per series."""

    row: Int64s
    """int64[k], unique, ascending: rows of the bank."""
    time_s: Floats
    """float64[k], event time in seconds."""
    value: Floats
    """float64[k], in the unit of the series."""


class Scores(NamedTuple):
    """What one detector makes of k samples."""

    score: Floats
    """float64[k], signed -log10 of the tail probability: > 0 above what was expected, < 0 below;
    NaN = not known yet (warm-up, a gap)."""
    expected: Floats
    """float64[k], in the series' unit."""
    band: Floats
    """float64[k], half width of what is usual (about 3 sigma), same unit."""


class Detector(Protocol):
    """One method over n series; its state is arrays, its memory grows with n only."""

    name: str
    """The method, such as "second_derivative"."""

    def resize(self, n: int) -> None:
        """Have room for n series; never shrinks."""

    def forget(self, rows: Int64s) -> None:
        """Let `rows` start afresh."""

    def score(self, samples: Samples, learn: Bools) -> Scores:
        """Score first, then learn where `learn` bool[k] (False = muted: trains nothing)."""

    @property
    def nbytes(self) -> int:
        """Bytes of state."""

    def export_state(self) -> dict[str, Any]:
        """The state as numpy arrays and plain values; later samples do not change it."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from an exported state; `ValueError` when it does not fit, nothing changed."""
