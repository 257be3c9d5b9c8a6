"""Shapes: windows unlike every earlier one."""

import numpy as np

from pipeline.detect.shape import Shape
from pipeline.model import Floats
from tests.detect.feed import START_S, fed, noise

N = 6


def scored(values: Floats, times: Floats | None = None) -> Floats:
    detector = Shape()
    detector.resize(values.shape[1])
    scores: Floats = fed(detector, values, times=times)[0]
    return scores


def wave(rounds: int, amplitude: float = 10.0) -> Floats:
    return amplitude * np.sin(np.arange(rounds) / 8.0)[:, None] + 0.3 * noise(rounds, N)


def test_a_shape_that_was_never_seen_is_found() -> None:
    """Values, steps and curvature stay within what is usual: only their order is new."""
    values = wave(2000)
    values[1500:1512] = 8.0 * (-1.0) ** np.arange(12)[:, None]
    scores = scored(values)
    assert (scores[1500:1524].max(axis=0) > 5.0).all()
    assert np.nanmax(scores[1000:1500]) < 4.0


def test_a_shape_that_returns_is_known() -> None:
    values = wave(4000)
    for at in range(600, 4000, 200):
        values[at : at + 12] = 8.0 * (-1.0) ** np.arange(12)[:, None]
    scores = scored(values)
    assert np.nanmax(scores[3000:]) < 6.0


def test_a_shape_that_only_grows_is_the_same_shape() -> None:
    values = wave(2000)
    values[1000:] *= np.linspace(1.0, 3.0, 1000)[:, None]
    assert np.nanmax(scored(values)) < 6.0


def test_float_noise_on_a_constant_has_no_shape() -> None:
    values = np.full((1000, N), 1000.0)
    values += 1e-9 * noise(1000, N)
    values[800] += 1e-7
    assert np.nanmax(np.abs(scored(values))) <= 0.3


def test_after_a_gap_windows_fill_anew() -> None:
    values = wave(1000)
    times = START_S + 15.0 * np.arange(1000.0)
    times[800:] += 3600.0
    scores = scored(values, times)
    assert np.isnan(scores[800:815]).all()
    assert np.isfinite(scores[816]).all()


def test_between_two_windows_the_score_holds() -> None:
    scores = scored(wave(600))
    changes = np.flatnonzero((np.diff(scores[400:], axis=0) != 0.0).any(axis=1))
    assert len(changes) > 20
    assert not (np.diff(changes) % 4).any()
