"""Level, change point, drift and records: what each sees, and what it accepts."""

import math

import numpy as np
import pytest

from pipeline.detect.change_point import ChangePoint
from pipeline.detect.difference import Difference
from pipeline.detect.drift import Drift
from pipeline.detect.episodes import Episodes
from pipeline.detect.level import Level
from pipeline.detect.protocol import Detector
from pipeline.detect.records import Records
from pipeline.model import Floats
from tests.detect.feed import ar1, edges, fed, noise

N = 10


def scored(detector: Detector, values: Floats) -> Floats:
    detector.resize(values.shape[1])
    scores: Floats = fed(detector, values)[0]
    return scores


def story(detector: Detector, values: Floats) -> tuple[int, int]:
    """How often it fired and resolved, over all series."""
    detector.resize(values.shape[1])
    episodes = Episodes(entry=6.0)
    episodes.resize(values.shape[1])
    fired, resolved = edges(episodes, fed(detector, values), values)
    return len(fired), len(resolved)


def test_a_point_is_not_part_of_its_own_baseline() -> None:
    """With it, sixty samples could not reach 8 sigma."""
    values = noise(60, N)
    values[59] += 1e6
    assert (scored(Level(), values)[59] > 30.0).all()


def test_a_lasting_shift_is_accepted_in_bounded_time_with_one_event() -> None:
    values = noise(1500, N)
    values[700:] += 50.0
    scores = scored(Level(accept=100), values)
    assert (scores[700:790] > 6.0).all()
    assert np.abs(scores[830:]).max() < 6.0
    assert story(Level(accept=100), values) == (N, N)


def test_the_return_to_normal_after_a_short_incident_is_no_event() -> None:
    values = noise(1000, N)
    values[700:750] += 50.0
    assert story(Level(), values) == (N, N)


def test_an_incident_does_not_hide_the_next() -> None:
    values = noise(1200, N)
    values[700:760] += 30.0
    values[850:] += 30.0
    scores = scored(Level(), values)
    assert (scores[850] > 6.0).all()


def test_a_small_lasting_shift_adds_up_to_a_change_point() -> None:
    values = noise(1500, N)
    values[1000:] += 2.0
    assert (scored(ChangePoint(), values)[1000:1040].max(axis=0) > 6.0).all()
    assert np.abs(scored(Level(), values)[1000:1040]).max() < 6.0


def test_one_outlier_is_no_change_point() -> None:
    values = noise(1200, N)
    values[1000] += 1000.0
    assert np.abs(scored(ChangePoint(), values)[1000:1010]).max() < 6.0


def test_a_change_point_shows_through_correlated_noise() -> None:
    values = ar1(2600, N)
    values[2000:] += 10.0
    assert (scored(ChangePoint(), values)[2000:2040].max(axis=0) > 5.0).all()


def test_the_bound_of_the_sums_follows_from_a_tail_probability() -> None:
    """exp(-2 k h) = p, where the textbook's 5 would be exp(-5)."""
    detector = ChangePoint(slack=0.25, tail_probability=1e-4)
    assert math.exp(-2.0 * 0.25 * detector.h) == pytest.approx(1e-4)


def test_a_slow_drift_is_seen_where_level_and_difference_see_nothing() -> None:
    values = noise(5000, N)
    values[3000:] += 0.01 * np.arange(2000)[:, None]
    assert (scored(Drift(), values)[3000:].max(axis=0) > 6.0).all()
    assert np.nanmax(np.abs(scored(Level(), values))) < 6.0
    assert np.nanmax(np.abs(scored(Difference(), values))) < 6.0


def test_a_drift_that_ended_is_accepted() -> None:
    values = noise(5000, N)
    values[2000:2400] += 0.05 * np.arange(400)[:, None]
    values[2400:] += 20.0
    scores = scored(Drift(), values)
    assert np.abs(scored(Drift(), values)[4000:]).max() < 6.0
    assert (scores[2000:2500].max(axis=0) > 6.0).all()


def test_a_value_beyond_everything_seen_is_a_record() -> None:
    values = noise(2000, N)
    values[1500] += 12.0
    values[1600] -= 14.0
    scores = scored(Records(), values)
    assert (scores[1500] > 4.0).all()
    assert (scores[1600] < -4.0).all()


def test_within_the_range_of_the_past_nothing_is_a_record() -> None:
    """A daily wave: the same values at other times."""
    values = 10.0 * np.sin(np.arange(2000) / 45.8)[:, None] + noise(2000, N)
    values[1500] = 5.0
    scores = scored(Records(), values)
    assert np.abs(scores[1500]).max() < 4.0


def test_old_extremes_leak_away() -> None:
    values = noise(3000, N)
    values[150] += 15.0
    values[2900] += 15.0
    hidden = scored(Records(memory=1e9), values)[2900]
    seen = scored(Records(memory=500.0), values)[2900]
    assert (seen > 4.0).all()
    assert np.median(hidden) < np.median(seen)
