"""VUS-PR: area under the precision-recall curve of blurred labels, over all widths of the blur.

Enters: float64[n] scores, bool[n] labels, the longest buffer L in rows. Leaves: one number within
[0, 1]. The invariant: no threshold is chosen and no row outside a buffer ever helps. Source:
Paparrizos et al. 2022, as TheDatumOrg/TSB-AD computes it (Apache-2.0): buffers of l // 2 rows on
both sides weigh sqrt(1 - d / l), rows in two buffers weigh 1, recall is relative to the mean of the
plain and the blurred positives and multiplied by the share of blurred segments touched.
"""

from typing import Final

import numpy as np

from pipeline.evaluate.events import Runs, ranked_only, runs
from pipeline.model import Bools, Floats, Int64s

MOST_THRESHOLDS: Final = 250
"""Ranks of the scores that are tried: TSB-AD's number, so that figures compare."""
MOST_BUFFER_ROWS: Final = 400
"""TSB-AD looks for periods of at most 400 rows; a day of minutes would blur whole curves."""


def buffer_rows(step_s: float) -> int:
    """The longest buffer of a curve: a day, at most `MOST_BUFFER_ROWS`; 0 without a step.

    >>> buffer_rows(300.0), buffer_rows(3600.0), buffer_rows(60.0), buffer_rows(0.0)
    (288, 24, 400, 0)
    """
    return min(round(86_400.0 / step_s), MOST_BUFFER_ROWS) if step_s > 0 else 0


def vus_pr(score: Floats, label: Bools, longest: int, thresholds: int = MOST_THRESHOLDS) -> float:
    """Mean over buffers of 0 .. `longest` rows; NaN without a labelled row.

    At most `thresholds` thresholds, evenly spaced ranks of the scores.

    >>> label = np.array([0, 0, 1, 1, 0, 0], bool)
    >>> [round(vus_pr(each, label, 0), 3) for each in (label.astype(float), np.zeros(6))]
    [1.0, 0.333]
    """
    segments = runs(label)
    if not len(segments.first):
        return float("nan")
    step, flagged = _steps(ranked_only(score), thresholds)
    areas = _Areas(step, flagged, label, segments, longest // 2)
    return float(np.mean([areas.area(length) for length in range(longest + 1)]))


def _steps(score: Floats, thresholds: int) -> tuple[Int64s, Int64s]:
    """At which threshold, from the highest on, each row is flagged; how many are at each."""
    descending = -np.sort(-score)
    tried = descending[np.linspace(0, len(score) - 1, thresholds).astype(np.int64)]
    step = np.searchsorted(-tried, -score)
    return step, np.cumsum(np.bincount(step, minlength=thresholds))


class _Areas:
    """One curve's precision-recall areas, a buffer length at a time."""

    def __init__(
        self, step: Int64s, flagged: Int64s, label: Bools, segments: Runs, most: int
    ) -> None:
        """`most` is the widest buffer on one side; its rows are found here."""
        self._flagged = flagged
        self._segments = segments
        self._core = self._until(step[label])
        self._earliest = _earliest(step, label, segments, most)
        near, self._distance, self._second = _near(label, segments, most)
        self._near_step = step[near]

    def _until(self, step: Int64s, weight: Floats | None = None) -> Floats:
        """Weight of what is flagged at each threshold, float64[k]."""
        found = np.bincount(step, weight, len(self._flagged))
        return np.cumsum(found.astype(np.float64))

    def area(self, length: int) -> float:
        """Area under precision and recall with buffers that weigh sqrt(1 - d / `length`)."""
        side = length // 2
        rows = int(np.searchsorted(self._distance, side, side="right"))
        weight = np.sqrt(1.0 - self._distance[:rows] / max(length, 1))
        weight[self._second[:rows] <= side] = 1.0
        blurred = self._until(self._near_step[:rows], weight)
        true = self._core + blurred
        positives = self._core[-1] + blurred / 2.0
        recall = np.minimum(true / positives, 1.0) * self._touched(side)
        precision = true / self._flagged
        return float((np.diff(recall, prepend=0.0) * precision).sum())

    def _touched(self, side: int) -> Floats:
        """Share of the segments, merged where their buffers meet, with a flag: float64[k]."""
        first, last = self._segments
        is_apart = last[:-1] + side < first[1:] - side
        begins = np.flatnonzero(np.append(True, is_apart))
        return self._until(np.minimum.reduceat(self._earliest[side], begins)) / len(begins)


def _earliest(step: Int64s, label: Bools, segments: Runs, most: int) -> Int64s:
    """Lowest step of the rows within 0 .. `most` rows of each segment, int64[most + 1, s]."""
    first, last = segments
    begins = np.append(0, np.cumsum(last - first + 1)[:-1])
    side = np.arange(1, most + 1)[:, None]
    # Beyond an end of the curve its last row stands in, which a narrower buffer holds already.
    left = step[np.maximum(first - side, 0)]
    right = step[np.minimum(last + side, len(step) - 1)]
    inside = np.minimum.reduceat(step[label], begins)
    found = np.concatenate([inside[None], np.minimum(left, right)])
    return np.minimum.accumulate(found, axis=0)


def _near(label: Bools, segments: Runs, most: int) -> tuple[Int64s, Int64s, Int64s]:
    """Rows outside all segments but within `most` rows of one, nearest first.

    With each its distance to the nearest segment and to the second nearest, int64[r].
    """
    first, last = segments
    row = np.flatnonzero(~label)
    after = np.searchsorted(first, row)
    far = len(label) + most + 1
    starts = np.append(first, [2 * far, 2 * far])
    ends = np.append([-far, -far], last)
    distances = [
        *(row - ends[after], row - ends[after + 1]),
        *(starts[after] - row, starts[after + 1] - row),
    ]
    nearest, second = np.sort(np.stack(distances), axis=0)[:2]
    order = np.argsort(nearest, kind="stable")
    order = order[: int(np.searchsorted(nearest[order], most, side="right"))]
    return row[order], nearest[order], second[order]
