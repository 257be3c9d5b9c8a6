"""The controls: their arithmetic against plain loops, and that they are causal."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from pipeline.evaluate.naive import (
    CONTROLS,
    Control,
    blind,
    difference,
    expanding_z,
    exponential,
    kpi_z,
    metrics_z,
    one_liner,
    random,
    seasonal_residual,
    standardised,
)
from pipeline.evaluate.scorer import Scores, causality_breaks
from pipeline.evaluate.sets import Curve
from pipeline.model import Floats
from tests.evaluate.curves import curve


def wandering(n: int, m: int = 1, seed: int = 3) -> Floats:
    """Levels from 1e-3 to 1e9 that wander."""
    steps = np.random.default_rng(seed).normal(0.0, 1.0, (n, m))
    return (1000.0 + np.cumsum(steps, axis=0)) * 10.0 ** np.linspace(-6, 6, m)


def recursion(value: Floats, alpha: float) -> tuple[list[float], list[float]]:
    """Mean and variance before each row, one row after the other."""
    mean, variance = float(value[0]), 0.0
    means, variances = [], []
    for x in value.tolist():
        means.append(mean)
        variances.append(variance)
        distance = x - mean
        mean += alpha * distance
        variance = (1 - alpha) * (variance + alpha * distance**2)
    return means, variances


@pytest.mark.parametrize("alpha", [0.002, 0.1, 0.9])
def test_the_scan_in_blocks_equals_the_recursion(alpha: float) -> None:
    value = wandering(5000, 3)
    mean, variance = exponential(value, alpha)
    for column in range(3):
        means, variances = recursion(value[:, column], alpha)
        np.testing.assert_allclose(mean[:, column], means, rtol=1e-12)
        np.testing.assert_allclose(variance[:, column], variances, rtol=1e-6, atol=1e-18)


def test_a_constant_has_no_variance_and_no_z() -> None:
    value = np.full((3000, 2), 1.1e9)
    assert exponential(value)[1].max() == 0.0
    assert kpi_z(value).max() == 0.0
    assert metrics_z(value).max() == 0.0


def test_z_compares_a_row_with_the_state_before_it() -> None:
    value = wandering(400)
    means, variances = recursion(value[:, 0], 0.002)
    expected = abs(value[300, 0] - means[300])
    assert kpi_z(value)[300, 0] == pytest.approx(
        expected / np.sqrt(variances[300] + 1e-9 * abs(means[300])), rel=1e-6
    )
    assert metrics_z(value)[300, 0] == pytest.approx(
        min(expected / np.sqrt(variances[300] + 1e-6), 30.0), rel=1e-6
    )
    assert kpi_z(value)[:50].max() == metrics_z(value)[:100].max() == 0.0


def test_the_seasonal_residual_is_against_the_median_of_the_days_that_there_are() -> None:
    day, n = 4, 60
    value = np.random.default_rng(5).normal(size=(n, 2))
    found = seasonal_residual(value, 86_400 / day)
    assert not found[:day].any()
    for i in range(day, n):
        ago = [value[i - k * day] for k in (1, 2, 3, 7) if i >= k * day]
        np.testing.assert_allclose(found[i], value[i] - np.median(ago, axis=0))


def test_a_curve_shorter_than_a_day_has_no_season() -> None:
    assert not seasonal_residual(wandering(10), 300.0).any()


def test_expanding_z_is_against_all_rows_before() -> None:
    value = 1e6 * wandering(200)
    found = expanding_z(value)
    assert not found[:20].any()
    for i in (20, 21, 150, 199):
        before = value[:i, 0]
        expected = abs(value[i, 0] - before.mean()) / before.std()
        assert found[i, 0] == pytest.approx(expected, rel=1e-5)


def test_the_one_liner_measures_what_leaves_the_range_so_far() -> None:
    value = np.array([[3.0], [5.0], [4.0], [9.0], [2.0], [9.0]])
    assert one_liner(value)[2:, 0] == pytest.approx([0.0, 2.0, 1 / 6, 0.0])


def test_blind_fires_20_times_behind_the_probation_and_random_is_the_same_each_time() -> None:
    value = np.zeros((1000, 1))
    rows = np.flatnonzero(blind(value))
    assert (len(rows), rows[0], rows[-1]) == (20, 160, 990)
    assert (random(value) == random(value)).all()
    assert len(np.unique(random(value))) == 1000


def test_metrics_are_standardised_by_their_train_part_and_constant_ones_are_kept() -> None:
    value = wandering(500, 2)
    value[:300, 1] = 7.0
    value[400, 1] = 9.0
    found = standardised(curve(value, boundary=300))
    assert found[:300, 0].mean() == pytest.approx(0.0, abs=1e-9)
    assert found[:300, 0].std() == pytest.approx(1.0)
    assert (found[0, 1], found[400, 1]) == (0.0, 2.0)


def test_differences_start_at_0() -> None:
    value = np.array([[5.0], [7.0], [4.0]])
    assert difference(value)[:, 0].tolist() == [0.0, 2.0, -3.0]
    assert difference(difference(value))[:, 0].tolist() == [0.0, 2.0, -5.0]


NO_LOOK_AHEAD = [
    (name, control)
    for name, controls in CONTROLS.items()
    for control in controls
    if control.name != "control: blind"
]


@pytest.mark.parametrize(
    ("name", "control"), NO_LOOK_AHEAD, ids=[f"{s} {c.name}" for s, c in NO_LOOK_AHEAD]
)
def test_controls_are_causal_behind_the_train_part(name: str, control: Control) -> None:
    """`blind` alone knows the length of its curve; standardising needs the whole train part."""
    is_single = name in ("nab", "kpi")
    curves = [
        curve(wandering(n, 1 if is_single else 4, seed), boundary=n // 5)
        for seed, n in enumerate((3000, 700))
    ]
    assert causality_breaks(control, curves) == []


class Looking:
    """A scorer made of a function of a curve's values."""

    name = "looking"

    def __init__(self, column: Callable[[Floats], Floats]) -> None:
        self._column = column

    def scores(self, curves: Sequence[Curve]) -> list[Scores]:
        return [Scores(self._column(each.value)[:, 0], each.value) for each in curves]


@pytest.mark.parametrize(
    "column",
    [
        lambda value: value / len(value),
        lambda value: value - value.max(axis=0),
        lambda value: value - np.roll(value, -1, axis=0),
        lambda value: value + 1e-13 * value[-1],
        blind,
    ],
    ids=["length", "maximum", "next row", "a last bit", "blind"],
)
def test_a_scorer_that_looks_ahead_is_found(column: Callable[[Floats], Floats]) -> None:
    broken = causality_breaks(Looking(column), [curve(wandering(300))])
    assert broken
    assert broken[0].startswith("a/hand: row ")


def test_a_scorer_that_keeps_to_what_it_has_seen_is_causal_also_where_it_knows_nothing() -> None:
    def unknown_first(value: Floats) -> Floats:
        return np.where(np.arange(len(value))[:, None] < 20, np.nan, value)

    assert causality_breaks(Looking(unknown_first), [curve(wandering(300))]) == []


def test_a_metric_that_looks_ahead_is_found_too() -> None:
    class Metrics:
        name = "metrics"

        def scores(self, curves: Sequence[Curve]) -> list[Scores]:
            return [Scores(np.zeros(each.n), each.value - each.value.mean()) for each in curves]

    assert causality_breaks(Metrics(), [curve(wandering(300))])
