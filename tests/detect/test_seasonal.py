"""Seasons by clock time: the hour of the day, of the week."""

import numpy as np
import pytest

from pipeline.detect.episodes import Episodes
from pipeline.detect.level import Level
from pipeline.detect.protocol import Detector
from pipeline.detect.seasonal import Seasonal
from pipeline.model import Floats
from tests.detect.feed import edges, fed, noise

N = 6
STEP_S = 300.0
DAY = 288
MONDAY_S = 1_699_833_600.0
"""2023-11-13, a Monday, at midnight UTC."""


def times(days: float) -> Floats:
    return MONDAY_S + STEP_S * np.arange(days * DAY)


def daily(when_s: Floats, amplitude: float = 20.0) -> Floats:
    """A day's wave about 100, lowest at midnight."""
    phase = 2.0 * np.pi * (when_s % 86_400.0) / 86_400.0
    values: Floats = 100.0 - amplitude * np.cos(phase)
    return values


def scored(detector: Detector, values: Floats, when_s: Floats) -> Floats:
    detector.resize(values.shape[1])
    scores: Floats = fed(detector, values, times=when_s)[0]
    return scores


def test_a_value_of_the_day_is_an_anomaly_at_night() -> None:
    when_s = times(5)
    values = daily(when_s)[:, None] + noise(len(when_s), N)
    night = 4 * DAY + 12
    values[night : night + 3] = 120.0
    assert (scored(Seasonal(), values, when_s)[night] > 6.0).all()
    slow = Level(memory=1000.0)
    assert np.abs(scored(slow, values, when_s)[night]).max() < 3.0


def test_it_works_before_a_season_is_complete() -> None:
    values, when_s = 100.0 + noise(200, N), times(1)[:200]
    values[150] += 20.0
    scores = scored(Seasonal(), values, when_s)
    assert (scores[150] > 5.0).all()
    assert np.isfinite(scores[40:]).all()


def test_a_known_season_leaves_a_smaller_band_than_none() -> None:
    when_s = times(6)
    values = daily(when_s, 60.0)[:, None] + noise(len(when_s), N)
    detector = Seasonal()
    detector.resize(N)
    _, expected, band = fed(detector, values, times=when_s)
    error = np.abs(values - expected)
    assert error[5 * DAY :].mean() < 0.6 * error[DAY : 2 * DAY].mean()
    assert band[5 * DAY :].mean() < 0.8 * band[DAY : 2 * DAY].mean()


def test_a_daily_spike_is_quiet_after_three_days() -> None:
    when_s = times(7)
    values = 100.0 + noise(len(when_s), N)
    spikes = 37 + DAY * np.arange(7)
    values[spikes] += 40.0
    scores = scored(Seasonal(), values, when_s)[spikes]
    assert (scores[1] > 6.0).all()
    assert np.abs(scores[3:]).max() < 6.0


def test_a_spike_of_one_day_does_not_hide_another_hour_or_a_larger_one() -> None:
    when_s = times(6)
    values = 100.0 + noise(len(when_s), N)
    values[3 * DAY + 37] += 40.0
    values[4 * DAY + 37] += 60.0
    values[5 * DAY + 100] += 40.0
    scores = scored(Seasonal(), values, when_s)
    assert (scores[4 * DAY + 37] > 6.0).all()
    assert (scores[5 * DAY + 100] > 6.0).all()


def test_a_weekend_is_known_after_two_weeks() -> None:
    when_s = times(21)
    is_weekend = (when_s - MONDAY_S) % (7 * 86_400.0) >= 5 * 86_400.0
    values = (daily(when_s) - 60.0 * is_weekend)[:, None] + noise(len(when_s), N)
    detector = Seasonal()
    detector.resize(N)
    expected = fed(detector, values, times=when_s)[1]
    error = np.abs(values - expected)
    saturday = slice(5 * DAY, 5 * DAY + 24)
    third = slice(19 * DAY + 12, 19 * DAY + 36)  # after the hour that means are blended over
    assert error[third].mean() < 0.3 * error[saturday].mean()
    assert error[third].mean() < 3.0


def test_a_shift_of_the_whole_is_one_event_and_then_usual() -> None:
    when_s = times(9)
    values = daily(when_s)[:, None] + noise(len(when_s), N)
    values[5 * DAY :] += 40.0
    episodes, detector = Episodes(entry=8.0), Seasonal()
    for each in (episodes, detector):
        each.resize(N)
    fired, resolved = edges(episodes, fed(detector, values, times=when_s), values)
    assert sorted(row for at, row in fired if at >= 5 * DAY) == list(range(N))
    assert sorted(row for at, row in resolved if at >= 5 * DAY) == list(range(N))


@pytest.mark.parametrize("hours", [1, -1])
def test_a_week_of_another_clock_raises_no_alarm(hours: int) -> None:
    """Daylight saving time moves the day against UTC."""
    when_s = times(21)
    local_s = when_s + np.where(when_s >= MONDAY_S + 14 * 86_400.0, 3600.0 * hours, 0.0)
    values = daily(local_s)[:, None] + noise(len(when_s), N)
    scores = scored(Seasonal(), values, when_s)
    assert np.abs(scores[14 * DAY :]).max() < 7.0


def test_samples_of_several_hours_in_one_round_score_as_one_by_one() -> None:
    """Replay and back-fill bring rows of different times together."""
    random = np.random.default_rng(4)
    offsets = random.integers(0, 40, N).astype(np.float64) * 1800.0
    values = 100.0 + noise(900, N)
    together, alone = Seasonal(), Seasonal()
    together.resize(N)
    alone.resize(N)
    every, one = np.ones(N, np.bool_), np.ones(1, np.bool_)
    from pipeline.detect.protocol import Samples

    for number, value in enumerate(values):
        when_s = MONDAY_S + STEP_S * number + offsets
        got = together.score(Samples(np.arange(N), when_s, value), every)
        for row in range(N):
            part = slice(row, row + 1)
            wanted = alone.score(Samples(np.array([row]), when_s[part], value[part]), one)
            np.testing.assert_array_equal(got.score[part], wanted.score)
