"""Shape: how unlike the last window is to every earlier window that this series remembers.

A left matrix profile keeps all earlier windows (Yeh et al. 2016; DAMP, Lu et al. 2022); this one
keeps the few that differ, as online k-means would, so that cost and memory are constant: every
`stride` samples one distance of `window` to `shapes` centres. Limits: more than `shapes` recurring
shapes push each other out, a window that only grew is the same shape, and a step is a steep ramp.
Deviations below the floor are not blown up, so that constants and float noise have no shape.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.detect.baseline import (
    TINY,
    Deviation,
    keep_time,
    protected,
    sigma_of,
    standardised,
    steps_since,
    weights,
)
from pipeline.detect.calibrate import Tail
from pipeline.detect.ordered import total
from pipeline.detect.protocol import Scores
from pipeline.detect.rows import Part, RowDetector, Slots
from pipeline.model import Bools, Floats, Int64s

Floats32 = npt.NDArray[np.float32]

LEAST_NOVELTY: Final = 0.12
"""Sigma of distances is not taken to be smaller: windows of one shape differ by noise."""
FLOORS: Final = 3.0
"""A window has a shape when it deviates by so many floors: noise of the size of one has none."""
USE_KEPT: Final = 0.98
"""Of a centre's use, a window later: the one that was not met for longest gives way."""
CENTRE_WEIGHT: Final = 0.2
"""Of a window in the centre that it is like."""
ALIKE: Final = 0.4
"""Root mean square distance below which a window is like a centre; independent ones have 1.4."""

HEAD: Final = {
    "last_s": np.nan,
    "interval_s": np.nan,
    "floor": TINY,
    "waiting": 0.0,
    "filled": 0.0,
    "windows": 0.0,
    "level": 0.0,
    "scale": 0.0,
    "held_score": np.nan,
    "held_value": 0.0,
    "held_width": 0.0,
}


class Shape(RowDetector):
    """18 + `window` + `stride` facts in float64, `shapes` * (`window` + 1) in float32 a series."""

    name = "shape"

    def __init__(
        self,
        *,
        window: int = 16,
        shapes: int = 12,
        stride: int = 4,
        memory: float = 200.0,
        warm_up: float = 50.0,
        relative_floor: float = 1e-3,
    ) -> None:
        """Look at the last `window` samples every `stride` of them.

        `memory` of the usual distance and `warm_up` are in windows looked at.
        """
        self._window = window
        self._shapes = shapes
        self._stride = stride
        self._memory = memory
        self._warm_up = warm_up
        self._relative_floor = relative_floor
        self._tail = Tail(memory=1000.0, excess=0.4)
        self._deviation = Deviation(accept=np.inf, warm_up=warm_up)
        values = {f"value_{i}": 0.0 for i in range(window + stride)}
        slots = {
            "centres": Slots(shapes * window, np.float32),
            "use": Slots(shapes, np.float32),
        }
        super().__init__({**HEAD, **values, **self._tail.facts}, slots)

    def _score(self, lines: Floats, samples: Part) -> Scores:
        waiting, filled = lines[3], lines[4]
        held_score, held_value, held_width = lines[8], lines[9], lines[10]
        _, is_gap = steps_since(lines[0], lines[1], samples.time_s)
        waiting[is_gap] = filled[is_gap] = 0.0
        held_score[is_gap] = np.nan
        for place, value in enumerate(self._values(lines)[self._window :]):
            np.copyto(value, samples.value, where=waiting == place)
        waiting += 1.0
        filled += 1.0
        at = np.flatnonzero(waiting >= self._stride)
        if len(at):
            whole = len(at) == len(samples.row)
            of_due = lines if whole else lines.take(at, axis=1)
            self._look(of_due, samples.row.take(at), samples.learn.take(at))
            if not whole:
                lines[:, at] = of_due
        keep_time(lines[0], lines[1], samples.time_s)
        is_new = np.isnan(held_score)
        expected = np.where(is_new, samples.value, held_value)
        return Scores(held_score.copy(), expected, 3.0 * held_width)

    def _values(self, lines: Floats) -> Floats:
        """The window, oldest first, and after it those that wait until there are `stride`."""
        return lines[len(HEAD) : len(HEAD) + self._window + self._stride]

    def _look(self, lines: Floats, row: Int64s, learn: Bools) -> None:
        """Take what waits into the windows, compare those that are full, then remember them."""
        values = self._values(lines)
        for i in range(self._window):
            values[i] = values[i + self._stride]
        lines[3] = 0.0
        full = np.flatnonzero(lines[4] >= self._window)
        if not len(full):
            return
        whole = len(full) == len(row)
        of_full = lines if whole else lines.take(full, axis=1)
        self._compare(of_full, row[full], learn[full])
        if not whole:
            lines[:, full] = of_full

    def _compare(self, lines: Floats, row: Int64s, learn: Bools) -> None:
        windows, level, scale, score, value, width = lines[5:11]
        tail = lines[len(HEAD) + self._window + self._stride :]
        centre, width[:] = self._size(lines)
        shape = ((self._values(lines)[: self._window] - centre) / width).astype(np.float32)
        centres = self._columns("centres", row)
        nearest, distance = self._nearest(shape, centres, self._columns("use", row))
        is_first = windows == 0.0
        distance[is_first] = 0.0
        residual = np.maximum(distance - level, 0.0)
        sigma = sigma_of(scale, distance, np.full(len(row), LEAST_NOVELTY), 0.0)
        z = standardised(residual, sigma)
        z[windows < self._warm_up] = np.nan
        score[:] = self._tail.score(z, tail, windows)
        self._tail.learn(z, tail, windows)
        is_out = self._deviation.outlying(residual, sigma, windows)
        weight = protected(weights(np.ones(len(row)), windows, self._memory), is_out)
        self._deviation.learn_scale(scale, distance - level, sigma, windows, weight)
        level += weight * (distance - level)
        last = self._window - 1 + self._window * nearest
        value[:] = centre + width * centres[last, np.arange(len(row))]
        self._remember(shape, nearest, (distance > ALIKE) | is_first, row, learn)
        windows += 1.0

    def _size(self, lines: Floats) -> tuple[Floats, Floats]:
        """Mean and deviation of the window, not below the floors."""
        values = self._values(lines)[: self._window]
        centre = total(values) / self._window
        apart = values - centre
        apart *= apart
        width = np.sqrt(total(apart) / self._window)
        least = np.maximum(lines[2], self._relative_floor * np.abs(centre))
        return centre, np.maximum(width, FLOORS * least, out=width)

    def _columns(self, name: str, row: Int64s) -> Floats32:
        """float32[depth, k], to read."""
        slots: Floats32 = self._table.slots[name]
        if row[-1] - row[0] + 1 == len(row):
            return slots[:, row[0] : row[-1] + 1]
        return slots.take(row, axis=1)

    def _nearest(self, shape: Floats32, centres: Floats32, use: Floats32) -> tuple[Int64s, Floats]:
        """The nearest centre that is in use, and how far it is (root mean square)."""
        nearest = np.zeros(shape.shape[1], np.int64)
        least = np.full(shape.shape[1], np.inf, np.float32)
        for k in range(self._shapes):
            apart = centres[k * self._window : (k + 1) * self._window] - shape
            apart *= apart
            square = total(apart)
            square[use[k] == 0.0] = np.inf
            nearest[square < least] = k
            np.minimum(least, square, out=least)
        return nearest, np.sqrt(least.astype(np.float64) / self._window)

    def _remember(
        self, shape: Floats32, nearest: Int64s, is_new: Bools, row: Int64s, learn: Bools
    ) -> None:
        """Move the centre that a window is like, or give it the place of the least used one."""
        use, centres = self._table.slots["use"], self._table.slots["centres"]
        if not learn.all():
            row, shape = row[learn], shape[:, learn]
            nearest, is_new = nearest[learn], is_new[learn]
        used = use.take(row, axis=1) * np.float32(USE_KEPT)
        place = np.where(is_new, _least(used), nearest)
        weight = np.where(is_new, 1.0, CENTRE_WEIGHT).astype(np.float32)
        used[place, np.arange(len(row))] = 1.0
        use[:, row] = used
        flat, at = centres.reshape(-1), place * (self._window * self._table.n) + row
        for value in shape:
            centre = flat.take(at)
            change = value - centre
            change *= weight
            centre += change
            flat[at] = centre
            at += self._table.n


def _least(rows: Floats32) -> Int64s:
    """int64[k] the first of the smallest entries of each column."""
    least, place = rows[0].copy(), np.zeros(rows.shape[1], np.int64)
    for i, row in enumerate(rows[1:], 1):
        is_less = row < least
        place[is_less] = i
        np.minimum(least, row, out=least)
    return place
