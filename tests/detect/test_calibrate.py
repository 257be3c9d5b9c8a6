"""The common scale: a score is what a tail probability says, whatever the distribution."""

from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest

from pipeline.detect.calibrate import Tail, chi_squared_deviate, normal_deviate, threshold
from pipeline.model import Floats

ROWS = 400


def trained(tail: Tail, z: Floats) -> Floats:
    """Lines that have learned `z` float64[rounds, rows]."""
    lines = np.repeat(np.array(list(tail.facts.values()))[:, None], z.shape[1], axis=1)
    for number, each in enumerate(z):
        tail.learn(each, lines, np.full(z.shape[1], float(number)))
    return lines


def scored(tail: Tail, z: Floats, lines: Floats) -> Floats:
    return tail.score(z, lines, np.full(len(z), 4000.0))


def exceeded(z: Floats, fresh: Floats, at: float) -> float:
    """How often fresh values score above `at`, after training on `z`."""
    tail = Tail()
    lines = trained(tail, z)
    return float(np.mean([np.abs(scored(tail, each, lines)) > at for each in fresh]))


@pytest.mark.parametrize(
    "kind", ["normal", "laplace", "student", "skewed", "scaled", "shrunk", "correlated"]
)
def test_a_score_of_three_is_exceeded_about_once_in_a_thousand(kind: str) -> None:
    random = np.random.default_rng(3)
    shape = (4500, ROWS)
    kinds: dict[str, Callable[[], Floats]] = {
        "normal": lambda: random.normal(size=shape),
        "laplace": lambda: random.laplace(size=shape) / np.sqrt(2.0),
        "student": lambda: random.standard_t(4, size=shape) / np.sqrt(2.0),
        "skewed": lambda: random.exponential(size=shape) - 1.0,
        "scaled": lambda: 3.0 * random.normal(size=shape),
        "shrunk": lambda: 0.5 * random.normal(size=shape),
        "correlated": lambda: random.normal(size=(1, ROWS)) * 0.2 + random.normal(size=shape),
    }
    z = kinds[kind]()
    rate = exceeded(z[:4000], z[4000:], 3.0)
    assert rate <= (2.5e-3 if kind == "student" else 2e-3)
    if kind not in ("scaled", "shrunk"):  # a threshold that is not at the tail's begin costs power
        assert rate >= 1e-4


def test_scores_are_not_capped_and_rank_the_far_tail() -> None:
    tail = Tail()
    lines = trained(tail, np.random.default_rng(1).normal(size=(2000, 1)))
    scores = [float(scored(tail, np.array([z]), lines)[0]) for z in (0.0, 1.0, 3.0, 10.0, 1e3, 1e9)]
    assert scores == sorted(set(scores))
    assert scores[-1] > 100.0


def test_each_side_has_its_own_tail() -> None:
    random = np.random.default_rng(4)
    tail = Tail()
    lines = trained(tail, random.exponential(size=(4000, 50)) - 1.0)
    up, down = (np.median(scored(tail, np.full(50, side * 4.0), lines)) for side in (1.0, -1.0))
    assert 0.0 < up < 3.0, "e^-5 above"
    assert down < -4.0, "nothing was ever seen there"


def test_an_unknown_residual_has_no_score_and_teaches_nothing() -> None:
    tail = Tail()
    lines = trained(tail, np.random.default_rng(1).normal(size=(50, 3)))
    before = lines.copy()
    unknown = np.full(3, np.nan)
    assert np.isnan(scored(tail, unknown, lines)).all()
    tail.learn(unknown, lines, np.full(3, 50.0))
    np.testing.assert_array_equal(lines[:6], before[:6])


def test_a_long_incident_does_not_hide_the_next_one() -> None:
    tail = Tail()
    z = np.random.default_rng(1).normal(size=(2000, 50))
    lines = trained(tail, z)
    for _ in range(100):
        tail.learn(np.full(50, 50.0), lines, np.full(50, 2000.0))
    assert scored(tail, np.full(50, 50.0), lines).min() > 8.0


def test_what_recurs_is_learned() -> None:
    """Every fiftieth value lies far out: after a while that is usual."""
    tail = Tail()
    z = np.random.default_rng(1).normal(size=(4000, 20)) * 0.5
    z[::50] = 40.0
    assert scored(tail, np.full(20, 40.0), trained(tail, z)).max() < 3.0


@pytest.mark.parametrize(("budget", "interval_s"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)])
def test_a_threshold_needs_a_budget_and_an_interval(budget: float, interval_s: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        threshold(budget, interval_s)


def test_a_budget_above_what_scores_can_tell_is_cut() -> None:
    assert threshold(1e9, 1.0) == 1.0


def test_chi_squared_deviates_agree_with_the_distribution() -> None:
    """Quantiles at 0.95 and 0.999 of a table."""
    freedom = np.array([5.0, 10.0, 30.0, 5.0, 10.0, 30.0])
    quantile = np.array([11.07, 18.307, 43.773, 20.515, 29.588, 59.703])
    wanted = np.repeat([1.6449, 3.0902], 3)
    np.testing.assert_allclose(chi_squared_deviate(quantile, freedom), wanted, atol=0.04)


def test_normal_deviates_agree_with_the_distribution() -> None:
    probability = np.array([0.1, 0.01, 1e-3, 1e-6, 1e-12])
    wanted = [NormalDist().inv_cdf(1.0 - each / 2.0) for each in probability.tolist()]
    np.testing.assert_allclose(normal_deviate(-np.log10(probability)), wanted, rtol=0.02)
    grid = np.linspace(-20.0, 20.0, 4001)
    assert (np.diff(normal_deviate(grid)) > 0.0).all()
