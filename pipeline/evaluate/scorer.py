"""What is evaluated: anything that gives each row a score, and the proof that it is causal.

Enters: curves without names and labels. Leaves: uncapped scores, larger = more anomalous. The
invariant: the scores of any prefix are the prefix of the scores, bit for bit.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

import numpy as np

from pipeline.evaluate.sets import Curve
from pipeline.model import Floats

POISON: Final = 1e9
"""Written over all later rows: a scorer that looks ahead cannot miss it."""


class Scores(NamedTuple):
    """What a scorer makes of one curve of n rows and m metrics; NaN = not known, never an alarm."""

    row: Floats
    """float64[n]: how anomalous the row is, over all its metrics."""
    metric: Floats
    """float64[n, m]: how anomalous each metric of the row is; ranks the culprits of an alarm."""


class Scorer(Protocol):
    """One configuration of one detector, or a control."""

    @property
    def name(self) -> str:
        """The method and what tells this configuration from others."""
        ...

    def scores(self, curves: Sequence[Curve]) -> list[Scores]:
        """The scores of each curve, in the same order.

        Row i uses rows <= i of its own curve only. Curves have no name and no labels; `boundary`
        says where the test part begins. Called anew for each set; no state passes between calls.
        """
        ...


def causality_breaks(
    scorer: Scorer, curves: Sequence[Curve], cut_ratios: Sequence[float] = (0.31, 0.73)
) -> list[str]:
    """Where scores depend on later rows: `curve: row` of the first difference; [] = causal.

    Each curve is cut after a share of its rows, and once more its later rows are poisoned; both
    times the scores of the rows before the cut must keep every bit.
    """
    wholes = scorer.scores([curve.unlabelled() for curve in curves])
    found = []
    for ratio in cut_ratios:
        rows = [int(ratio * curve.n) for curve in curves]
        heads = [curve.unlabelled().head(n) for curve, n in zip(curves, rows, strict=True)]
        poisoned = [_poisoned(curve.unlabelled(), n) for curve, n in zip(curves, rows, strict=True)]
        for others in (scorer.scores(heads), scorer.scores(poisoned)):
            for curve, n, whole, other in zip(curves, rows, wholes, others, strict=True):
                differs = _differs(whole, other, n)
                found += [f"{curve.name}: row {differs}"] if differs >= 0 else []
    return found


def _poisoned(curve: Curve, n: int) -> Curve:
    value = curve.value.copy()
    value[n:] = POISON
    return replace(curve, value=value)


def _differs(whole: Scores, other: Scores, n: int) -> int:
    """First of the rows below `n` in which any bit differs; -1 = none."""
    for left, right in zip(whole, other, strict=True):
        bits = [np.ascontiguousarray(each[:n]).view(np.int64) for each in (left, right)]
        rows = np.flatnonzero((bits[0] != bits[1]).any(axis=tuple(range(1, left.ndim))))
        if len(rows):
            return int(rows[0])
    return -1
