"""NAB's scorer: weighted rows, one threshold for a corpus, three profiles.

Enters: curves with windows, float64[n] scores for each. Leaves: normalised scores, 0 = nothing is
detected, 100 = the first row of every window and nothing else. The invariant: a row counts as
detected when its score is at or above the threshold, equal scores together. Source: numenta/NAB
(Lavin and Ahmad 2015).
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from pipeline.evaluate.events import ranked_only
from pipeline.evaluate.sets import Curve
from pipeline.model import Bools, Floats, Int64s

PROBATION_RATIO: Final = 0.15
"""Share of a file in which nothing counts, so that detectors may learn."""
MOST_PROBATION_ROWS: Final = 750
"""15 % of 5,000 rows: NAB's bound for long files."""
FAR: Final = 3.0
"""Window lengths after a window's end from which a false row costs all of its weight."""
OUTSIDE: Final = -1
"""In place of a window's number."""


class Profile(NamedTuple):
    """What a hit window earns, a false row and a missed window cost."""

    name: str
    hit: float
    false: float
    miss: float


PROFILES: Final = (
    Profile("standard", 1.0, 0.11, 1.0),
    Profile("low_fp", 1.0, 0.22, 1.0),
    Profile("low_fn", 1.0, 0.11, 2.0),
)


class Result(NamedTuple):
    """A threshold and what it scores."""

    value: float  # normalised, at most 100
    threshold: float  # inf = nothing is detected
    raw: float
    hit_windows: int
    false_rows: int


def sigmoid(x: Floats) -> Floats:
    """NAB's scaled sigmoid of positions relative to a window's end: 1 early, -1 far behind.

    >>> sigmoid(np.array([-1.0, 0.0, 1.0, 99.0])).round(5).tolist()
    [0.98661, 0.0, -0.98661, -1.0]
    """
    return np.where(x > FAR, -1.0, 2.0 / (1.0 + np.exp(5.0 * np.minimum(x, FAR))) - 1.0)


def row_weights(n: int, windows: Int64s) -> tuple[Floats, Int64s]:
    """What detecting each of `n` rows is worth, and the window that it lies in.

    `windows` is int64[w, 2], first and last row. Returns float64[n] weights, within (0, 1] inside
    windows and [-1, 0) elsewhere, and int64[n] windows, `OUTSIDE` elsewhere.
    """
    weight = np.full(n, -1.0)
    window = np.full(n, OUTSIDE)
    ascending = windows[np.argsort(windows[:, 1], kind="stable")]
    ended = np.searchsorted(ascending[:, 1], np.arange(n)) - 1
    behind = np.flatnonzero(ended >= 0)
    first, last = ascending[ended[behind]].T
    weight[behind] = sigmoid((behind - last) / np.maximum(last - first, 1))
    for k, (first_row, last_row) in enumerate(windows.tolist()):
        left = np.arange(last_row - first_row + 1, 0, -1)
        weight[first_row : last_row + 1] = sigmoid(-left / left[0]) / sigmoid(np.array(-1.0))
        window[first_row : last_row + 1] = k
    return weight, window


class Corpus:
    """Every row that counts of some curves, ready to be scored by any detector."""

    def __init__(self, curves: Sequence[Curve]) -> None:
        """Curves of the `nab` set, at least one; rows on probation are left out here."""
        self._kept = [_counts(curve.n) for curve in curves]
        kinds = sorted({curve.category for curve in curves})
        self.categories = tuple(kinds)
        weights, windows = [], []
        categories: list[Int64s] = []
        of_window: list[Int64s] = []
        for curve, kept in zip(curves, self._kept, strict=True):
            weight, window = row_weights(curve.n, curve.windows)
            before = sum(map(len, of_window))
            weights.append(weight[kept])
            windows.append(np.where(window >= 0, window + before, OUTSIDE)[kept])
            categories.append(np.full(kept.sum(), kinds.index(curve.category)))
            of_window.append(np.full(len(curve.windows), kinds.index(curve.category)))
        self._weight = np.concatenate(weights)
        self._window = np.concatenate(windows)
        self._category = np.concatenate(categories)
        self._window_category = np.concatenate(of_window)

    def counted(self, scores: Sequence[Floats]) -> Floats:
        """The scores, float64[n] a curve, of the rows that count; NaN is never detected."""
        rows = [each[kept] for each, kept in zip(scores, self._kept, strict=True)]
        return ranked_only(np.concatenate(rows))

    def at(self, scores: Sequence[Floats], threshold: float, profile: Profile) -> Result:
        """What `threshold` scores on all files; a non-finite one detects nothing."""
        return self._at(self.counted(scores) >= threshold, threshold, profile)

    def best(self, scores: Sequence[Floats], profile: Profile) -> Result:
        """The best of all distinct scores and of "none" on all files: NAB's own rule."""
        counted = self.counted(scores)
        everywhere = np.ones(len(counted), np.bool_)
        threshold = self._best(counted, everywhere, len(self._window_category), profile)
        return self._at(counted >= threshold, threshold, profile)

    def left_out(self, scores: Sequence[Floats], profile: Profile) -> Result:
        """Each category at the threshold that is best on the others, all pooled.

        The threshold of the result is NaN: there is one a category.
        """
        counted = self.counted(scores)
        detected = np.zeros(len(counted), np.bool_)
        for category in range(len(self.categories)):
            others = self._category != category
            windows = int((self._window_category != category).sum())
            threshold = self._best(counted, others, windows, profile)
            detected |= ~others & (counted >= threshold)
        return self._at(detected, np.nan, profile)

    def _at(self, detected: Bools, threshold: float, profile: Profile) -> Result:
        windows = len(self._window_category)
        outside = self._window == OUTSIDE
        earned = np.zeros(windows)
        inside = detected & ~outside
        np.maximum.at(earned, self._window[inside], self._weight[inside])
        hit = int((earned > 0).sum())
        false = detected & outside
        raw = profile.hit * earned.sum() - profile.miss * (windows - hit)
        raw += profile.false * self._weight[false].sum()
        perfect, nothing = profile.hit * windows, -profile.miss * windows
        value = 100.0 * (raw - nothing) / (perfect - nothing) if windows else np.nan
        return Result(float(value), float(threshold), float(raw), hit, int(false.sum()))

    def _best(self, score: Floats, among: Bools, windows: int, profile: Profile) -> float:
        rows = np.flatnonzero(among & (score > -np.inf))
        order = rows[np.argsort(-score[rows], kind="stable")]
        gain = _gains(self._weight[order], self._window[order], profile)
        raw = np.append(0.0, np.cumsum(gain)) - profile.miss * windows
        is_last = np.append(np.diff(score[order]) != 0, True) if len(order) else np.empty(0, bool)
        allowed = np.append(True, is_last)  # "none", and the last row of each score
        choice = int(np.argmax(np.where(allowed, raw, -np.inf)))
        return float(score[order[choice - 1]]) if choice else np.inf


def _counts(n: int) -> Bools:
    """Rows behind the probation.

    >>> [int(_counts(n).argmax()) for n in (10, 1000, 100_000)]
    [1, 150, 750]
    """
    probation = min(int(PROBATION_RATIO * n), MOST_PROBATION_ROWS)
    return np.arange(n) >= probation


def _gains(weight: Floats, window: Int64s, profile: Profile) -> Floats:
    """By how much the raw score moves as rows are detected one after the other.

    Inside a window only a row that is worth more than all detected before it moves it.
    """
    gain = np.where(window == OUTSIDE, profile.false * weight, 0.0)
    inside = np.flatnonzero(window != OUTSIDE)
    by_window = inside[np.argsort(window[inside], kind="stable")]
    worth = np.unique(weight[by_window], return_inverse=True)[1]
    reached = np.maximum.accumulate(window[by_window] * (len(weight) + 1) + worth)
    is_first = np.diff(window[by_window], prepend=OUTSIDE) != 0
    better = by_window[np.diff(reached, prepend=-1) > 0]
    starts = is_first[np.diff(reached, prepend=-1) > 0]
    before = np.append(0.0, weight[better][:-1])
    gain[better] = profile.hit * weight[better]
    gain[better] += np.where(starts, profile.miss, -profile.hit * before)
    return gain
