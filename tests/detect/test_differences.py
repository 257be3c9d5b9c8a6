"""Second derivative and first difference."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.detect.difference import Difference
from pipeline.detect.episodes import Episodes
from pipeline.detect.level import Level
from pipeline.detect.protocol import Detector
from pipeline.detect.second_derivative import SecondDerivative, curvature
from pipeline.model import Floats
from tests.detect.feed import START_S, edges, fed, noise


def scored(detector: Detector, values: Floats, times: Floats | None = None) -> Floats:
    """float64[rounds, k]."""
    detector.resize(values.shape[1])
    scores: Floats = fed(detector, values, times=times)[0]
    return scores


@given(
    st.lists(st.floats(0.05, 3.0), min_size=3, max_size=6),
    st.lists(st.floats(-100.0, 100.0), min_size=7, max_size=7),
    st.floats(0.3, 1.0),
)
def test_the_closed_form_is_the_least_squares_fit(
    steps: list[float], values: list[float], recency: float
) -> None:
    t = np.concatenate(([0.0], np.cumsum(steps)))
    y = np.array(values[: len(t)])
    weight = recency ** np.arange(len(t) - 1, -1, -1.0)
    expected = np.polyfit(t, y, 2, w=np.sqrt(weight))[0]
    found = curvature(t[:, None].copy(), y[:, None], weight[:, None])
    scale = np.abs(y).max() / found.spread[0] + 1e-9
    assert abs(found.curvature[0] - expected) <= 1e-6 * scale


def test_white_noise_bends_by_its_own_deviation_at_any_spacing() -> None:
    random = np.random.default_rng(1)
    t = np.sort(random.uniform(-6.0, 0.0, (6, 20_000)), axis=0)
    curve = curvature(t, random.normal(size=t.shape), np.ones((6, 1)))
    assert np.std(curve.curvature * curve.spread) == pytest.approx(1.0, abs=0.02)


def test_acceleration_is_seen_before_the_level_is_bad() -> None:
    """A smooth series that wanders by ten takes off: the value itself is still a usual one."""
    rounds, n, at = 1500, 20, 1400
    wander = 10.0 * np.sin(np.arange(rounds) / 50.0)[:, None] * np.ones(n)
    values = wander + 0.05 * noise(rounds, n)
    values[at:] += 0.1 * np.arange(rounds - at)[:, None] ** 2
    bends = scored(SecondDerivative(), values)
    levels = scored(Level(), values)

    def first(scores: Floats) -> Floats:
        beyond: Floats = (scores[at:] > 6.0).argmax(axis=0)
        return beyond

    assert (bends[at:] > 6.0).any(axis=0).all()
    assert first(bends).max() < 8
    assert not (levels[at : at + 8] > 6.0).any()


def test_a_straight_ramp_does_not_bend() -> None:
    values = noise(800, 10)
    values[400:] += 5.0 * np.arange(400)[:, None]
    scores = scored(SecondDerivative(), values)
    assert np.abs(scores[420:]).max() < 6.0


@pytest.mark.parametrize("kind", [Difference, SecondDerivative])
def test_nothing_is_taken_across_a_gap(kind: type[Difference] | type[SecondDerivative]) -> None:
    values = noise(400, 10)
    times = START_S + 15.0 * np.arange(400.0)
    values[300:] += 1000.0
    times[300:] += 3600.0
    scores = scored(kind(), values, times)
    assert np.isnan(scores[300]).all()
    assert np.nanmax(np.abs(scores[300:])) < 6.0


def test_a_difference_needs_only_the_sample_before() -> None:
    values = noise(400, 10)
    values[350:] += 30.0
    assert (scored(Difference(), values)[350] > 6.0).all()


def test_the_way_back_from_a_spike_is_no_second_jump() -> None:
    values = noise(400, 10)
    values[350] += 40.0
    scores = scored(Difference(), values)
    assert (scores[350] > 6.0).all()
    assert (scores[351:355] > -6.0).all()
    plain = scored(Difference(lags=1), values)
    assert (plain[351] < -6.0).all()


def test_a_second_spike_soon_after_still_fires() -> None:
    values = noise(400, 10)
    values[350] += 40.0
    values[366] += 40.0
    episodes = Episodes(entry=6.0)
    episodes.resize(10)
    detector = Difference()
    detector.resize(10)
    fired, _ = edges(episodes, fed(detector, values), values)
    assert sorted(fired) == [(at, row) for at in (350, 366) for row in range(10)]


@pytest.mark.parametrize(("kind", "wrong"), [(Difference, {"lags": 0})])
def test_what_makes_no_sense_is_refused(kind: type[Difference], wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least"):
        kind(**wrong)


@pytest.mark.parametrize("points", [3, 8])
def test_a_fit_has_four_to_seven_points(points: int) -> None:
    with pytest.raises(ValueError, match="4 to 7"):
        SecondDerivative(points=points)
