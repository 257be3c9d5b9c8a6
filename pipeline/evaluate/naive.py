"""Controls: what costs nothing to write, and what every result is shown beside.

Enters: curves. Leaves: float64[n, m] scores a curve, causal but for `blind` (it knows the length)
and standardised metrics (they know the train part). The invariant: state before the row scores the
row. Source: reference/detection.md, sections 5 and 7; Wu and Keogh 2021 for the one-liner.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.evaluate.scorer import Scores
from pipeline.evaluate.sets import Curve
from pipeline.model import Floats

ALPHA: Final = 0.002
"""Weight of the newest row: a memory of about 500 rows."""
SCANNED_MEMORIES: Final = 2.0
"""Memories (of 1 / alpha rows) that a recursion takes at once: e^2 is undone without a loss."""
KPI_WARM_ROWS: Final = 50
METRICS_WARM_ROWS: Final = 100
EXPANDING_WARM_ROWS: Final = 20
"""Rows without a score, as the published rows were computed."""
MOST_Z: Final = 30.0
"""One metric must not outvote eighteen."""
SEASON_DAYS: Final = (1, 2, 3, 7)
DAY_S: Final = 86_400
BLIND_RATIOS: Final = np.linspace(0.16, 0.99, 20)
"""Places behind the probation, spread evenly: what firing now and then is worth."""
SEED: Final = 20_180_901
"""Of the random control: any fixed number."""


@dataclass(frozen=True, slots=True)
class Control:
    """A scorer that scores each metric alone and a row by the mean of its metrics."""

    name: str
    column: Callable[[Curve], Floats]
    """float64[n, m] from a curve."""

    def scores(self, curves: Sequence[Curve]) -> list[Scores]:
        """See `Scorer`."""
        found = [self.column(curve) for curve in curves]
        return [Scores(each.mean(axis=1), each) for each in found]


def one_liner(value: Floats) -> Floats:
    """By how much a row leaves the range of all rows before it, in ranges: float64[n, m].

    >>> one_liner(np.array([[1.0], [2.0], [0.0], [4.0]])).round(3).ravel().tolist()
    [0.0, 1000000000.0, 1.0, 1.0]
    """
    high = np.maximum.accumulate(value[:-1])
    low = np.minimum.accumulate(value[:-1])
    beyond = np.maximum(np.maximum(value[1:] - high, low - value[1:]), 0.0)
    return np.concatenate([np.zeros_like(value[:1]), beyond / (high - low + 1e-9)])


def blind(value: Floats) -> Floats:
    """1 at 20 rows spread over the curve, else 0: float64[n, m]."""
    score = np.zeros_like(value)
    score[(BLIND_RATIOS * len(value)).astype(np.int64)] = 1.0
    return score


def random(value: Floats) -> Floats:
    """Uniform numbers from a fixed seed: float64[n, m]."""
    return np.random.default_rng(SEED).random(value.shape)


def expanding_z(value: Floats) -> Floats:
    """Distance to the mean of all rows before, in their deviations: float64[n, m]."""
    shifted = value - value[:1]
    seen = np.arange(1, len(value))[:, None]
    mean = np.cumsum(shifted, axis=0)[:-1] / seen
    moment = np.cumsum(shifted**2, axis=0)[:-1] / seen
    deviation = np.sqrt(np.maximum(moment - mean**2, 0.0))
    score = np.abs(shifted[1:] - mean) / (deviation + 1e-9)
    score[: EXPANDING_WARM_ROWS - 1] = 0.0
    return np.concatenate([np.zeros_like(value[:1]), score])


def difference(value: Floats) -> Floats:
    """Of each row to the one before, 0 first: float64[n, m]."""
    return np.diff(value, axis=0, prepend=value[:1])


def seasonal_residual(value: Floats, step_s: float) -> Floats:
    """Distance to the median of the same time 1, 2, 3 and 7 days ago, as far as there are rows.

    float64[n, m]; 0 on the first day.
    """
    lags = [round(days * DAY_S / step_s) for days in SEASON_DAYS]
    residual = np.zeros_like(value)
    for i, lag in enumerate(lags):
        stop = lags[i + 1] if i + 1 < len(lags) else len(value)
        row = np.arange(lag, min(stop, len(value)))
        ago = np.stack([value[row - each] for each in lags[: i + 1]])
        residual[row] = value[row] - np.median(ago, axis=0)
    return residual


def exponential(value: Floats, alpha: float = ALPHA) -> tuple[Floats, Floats]:
    """Exponentially weighted mean and variance of the rows before each row, float64[n, m] each.

    The first row is where both start: its own mean, no variance.

    >>> mean, variance = exponential(np.array([[1.0], [3.0], [3.0]]), 0.5)
    >>> mean.ravel().tolist(), variance.ravel().tolist()
    ([1.0, 1.0, 2.0], [0.0, 0.0, 1.0])
    """
    shifted = value - value[:1]  # the variance of what is near 0 loses no digits
    mean = _before(_decayed(shifted, alpha))
    moment = _before(_decayed(shifted**2, alpha))
    return value[:1] + mean, np.maximum(moment - mean**2, 0.0)


def _before(state: Floats) -> Floats:
    return np.concatenate([np.zeros_like(state[:1]), state[:-1]])


def _decayed(value: Floats, alpha: float) -> Floats:
    """The states of s = (1 - alpha) s + alpha x from 0 on: a scan in blocks, no loop of rows."""
    n, m = value.shape
    rows = max(1, int(SCANNED_MEMORIES / alpha))
    blocks = -(-n // rows)
    padded = np.zeros((blocks * rows, m))
    padded[:n] = alpha * value
    power = (1.0 - alpha) ** np.arange(rows)[:, None]
    scanned = np.cumsum(padded.reshape(blocks, rows, m) / power, axis=1) * power
    for k in range(1, blocks):
        scanned[k] += scanned[k - 1, -1] * ((1.0 - alpha) * power)
    states: Floats = scanned.reshape(-1, m)[:n]
    return states


def kpi_z(value: Floats) -> Floats:
    """Exponential z of single curves, first 50 rows 0: float64[n, m]."""
    mean, variance = exponential(value)
    z = np.abs(value - mean) / np.sqrt(np.maximum(variance, 1e-12) + 1e-9 * np.abs(mean))
    z[:KPI_WARM_ROWS] = 0.0
    return z


def metrics_z(value: Floats) -> Floats:
    """Exponential z of the metrics of a node, at most 30, first 100 rows 0: float64[n, m]."""
    mean, variance = exponential(value)
    z = np.minimum(np.abs(value - mean) / np.sqrt(variance + 1e-6), MOST_Z)
    z[:METRICS_WARM_ROWS] = 0.0
    return z


def standardised(curve: Curve) -> Floats:
    """Metrics less their train mean, in train deviations; constant ones keep their scale."""
    train = curve.value[: curve.boundary]
    deviation = train.std(axis=0)
    scaled: Floats = (curve.value - train.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    return scaled


ANYWHERE: Final = (
    Control("control: one-liner", lambda curve: one_liner(curve.value)),
    Control("control: blind", lambda curve: blind(curve.value)),
    Control("control: random", lambda curve: random(curve.value)),
)
EXPANDING: Final = (
    Control("naive: expanding z", lambda curve: expanding_z(curve.value)),
    Control("naive: expanding z of difference", lambda curve: expanding_z(difference(curve.value))),
)


def _kpi_x(curve: Curve) -> Floats:
    return kpi_z(curve.value)


def _kpi_difference(curve: Curve) -> Floats:
    return kpi_z(difference(curve.value))


def _kpi_seasonal(curve: Curve) -> Floats:
    return kpi_z(seasonal_residual(curve.value, curve.step_s))


KPI: Final = (
    Control("naive: z of x", _kpi_x),
    Control("naive: z of difference", _kpi_difference),
    Control(
        "naive: z of second difference", lambda curve: kpi_z(difference(difference(curve.value)))
    ),
    Control("naive: z of seasonal residual", _kpi_seasonal),
    Control(
        "naive: max(difference, seasonal)",
        lambda curve: np.maximum(_kpi_difference(curve), _kpi_seasonal(curve)),
    ),
)
APPS: Final = (
    Control("naive: level", lambda curve: metrics_z(curve.value)),
    Control("naive: difference", lambda curve: metrics_z(difference(curve.value))),
)
SERVICES: Final = (
    Control("naive: level", lambda curve: metrics_z(standardised(curve))),
    Control("naive: difference", lambda curve: metrics_z(difference(standardised(curve)))),
)
CONTROLS: Final = {
    "nab": ANYWHERE + EXPANDING,
    "kpi": ANYWHERE + KPI,
    "services": ANYWHERE + SERVICES,
    "apps": ANYWHERE + APPS,
}
"""The controls of each set."""
