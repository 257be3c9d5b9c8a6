"""Peaks over threshold against a plain loop over one series, and what a person expects of it."""

import math

import numpy as np
import pytest

from pipeline.detect.calibrate import BODY_SCORE
from pipeline.detect.joint import unusualness
from pipeline.detect.peaks import AT_THRESHOLD, PeaksOverThreshold
from pipeline.detect.protocol import Samples
from pipeline.detect.refractory import Refractory

WARM_UP, MEMORY, SLOT_S = 50, 500.0, 1800.0
LN_10 = math.log(10.0)


class PlainTail:
    """One residual's tail, as the module says it in words."""

    def __init__(self) -> None:
        self.threshold = self.excess = self.shape = self.mean = 0.0
        self.seen = self.beyond = 0

    def score(self, size: float, floor: float) -> tuple[float, float]:
        """Exponential and Pareto."""
        edge = max(self.threshold, floor)
        if self.seen < WARM_UP:
            return math.nan, math.nan
        if size <= edge:
            body = BODY_SCORE * size / edge
            return body, body
        exponential = (size - edge) / max(self.excess, floor) / LN_10
        pareto = math.log(size / edge) / max(self.shape, 0.05) / LN_10
        return AT_THRESHOLD + exponential, AT_THRESHOLD + pareto

    def learn(self, size: float, floor: float) -> None:
        weight = max(1.0 / (self.seen + 1), 1.0 / MEMORY)
        self.mean += weight * (size - self.mean)
        step = 0.1 * weight * self.mean
        if size > self.threshold:
            self.beyond += 1
            least = max(1.0 / self.beyond, 0.2 / (MEMORY * 0.05))
            edge = max(self.threshold, floor)
            found = size - self.threshold
            if self.excess > 0 and self.beyond > 10:
                found = min(found, 10 * self.excess)
            self.excess += least * (found - self.excess)
            if size > edge:
                found = math.log(size / edge)
                if self.shape > 0 and self.beyond > 10:
                    found = min(found, 10 * self.shape)
                self.shape += least * (found - self.shape)
            self.threshold += step * 19.0
        else:
            self.threshold -= step
        self.seen += 1


def plain_scores(time_s: list[float], value: list[float]) -> list[float]:
    """The score of every sample of one series without gaps, in plain Python."""
    tails = [PlainTail() for _ in range(5)]
    days: dict[int, list[float]] = {}
    level = long = 0.0
    visit: list[float] = []
    slot, before, scores = -1, math.nan, []
    for i, (now_s, now) in enumerate(zip(time_s, value, strict=True)):
        if int(now_s // SLOT_S) != slot:
            if visit:
                days.setdefault(slot % 48, []).append(sum(visit) / len(visit))
            slot, visit = int(now_s // SLOT_S), []
        past = days.get(slot % 48, [])[-7:]
        season = float(np.median(past)) if past else math.nan
        jump = now - value[i - 1] if i else math.nan
        short = sum(value[max(0, i - 23) : i + 1]) / min(i + 1, 24)
        residuals = (
            jump,
            jump - (season - before),
            now - season,
            now - level if i else math.nan,
            short - long if i else math.nan,
        )
        floor = 1e-3 * abs(level if i else now)
        found = [t.score(abs(r), floor) for t, r in zip(tails, residuals, strict=True)]
        candidates = [found[1][1], found[2][0], found[3][0], found[4][0]]
        known = [c for c, r in zip(candidates, residuals[1:], strict=True) if not math.isnan(c + r)]
        known.sort(reverse=True)
        second = known[1] if len(known) > 1 and known[1] >= AT_THRESHOLD else 0.0
        scores.append(known[0] + 0.5 * second if known else math.nan)
        for tail, residual in zip(tails, residuals, strict=True):
            if not math.isnan(residual):
                tail.learn(abs(residual), floor)
        level += max(1.0 / (i + 1), 1.0 / 50) * (now - level)
        long += max(1.0 / (i + 1), 1.0 / 288) * (now - long)
        visit.append(now)
        before = season
    return scores


def scored(bank: PeaksOverThreshold, times: np.ndarray, values: np.ndarray) -> np.ndarray:
    rows, learn = np.arange(values.shape[1]), np.ones(values.shape[1], np.bool_)
    return np.array(
        [
            bank.score(Samples(rows, np.full(len(rows), t), v), learn).score
            for t, v in zip(times, values, strict=True)
        ]
    )


def days_of(seed: int, n: int, series: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples each 300 s with a daily wave, noise and spikes."""
    rng = np.random.default_rng(seed)
    times = 1.7e9 + 300.0 * np.arange(n)
    wave = 10.0 + 3.0 * np.sin(2 * np.pi * times / 86_400.0)[:, None]
    values = wave + rng.normal(0.0, 0.3, (n, series))
    values[rng.random((n, series)) < 0.002] += 6.0
    return times, values


def test_scores_are_those_of_a_plain_loop_over_each_series() -> None:
    times, values = days_of(3, 2_500, 2)
    bank = PeaksOverThreshold()
    bank.resize(2)
    got = np.abs(scored(bank, times, values))
    for series in range(2):
        wanted = plain_scores(times.tolist(), values[:, series].tolist())
        np.testing.assert_allclose(got[:, series], wanted, rtol=1e-4)


def test_what_is_rare_in_one_series_is_usual_in_another() -> None:
    rng = np.random.default_rng(4)
    calm, wild = rng.normal(0, 1, 3_000), rng.standard_t(2, 3_000)
    values = np.stack((calm, wild), 1)
    values[-1] = 12.0
    bank = PeaksOverThreshold()
    bank.resize(2)
    last = scored(bank, 60.0 * np.arange(3_000), values)[-1]
    assert last[0] > 2.0 * last[1]


def test_a_daily_spike_is_quiet_after_a_week() -> None:
    times, values = days_of(5, 288 * 10, 1)
    values = 10.0 + np.random.default_rng(6).normal(0.0, 0.3, values.shape)
    daily = (times % 86_400.0) // SLOT_S == 20
    values[daily] += 20.0
    bank = PeaksOverThreshold()
    bank.resize(1)
    score = np.abs(scored(bank, times, values)[:, 0])
    days = (times // 86_400.0).astype(int)
    first, last = (np.nanmax(score[daily & (days == day)]) for day in (days[0] + 1, days[-1]))
    assert last < 0.5 * first


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_the_sign_says_on_which_side_it_lies(side: float) -> None:
    times, values = days_of(7, 1_000, 1)
    values[-1] += side * 50.0
    bank = PeaksOverThreshold()
    bank.resize(1)
    assert side * scored(bank, times, values)[-1, 0] > 6.0


def test_many_signals_that_are_a_little_unusual_count_as_much_as_one_that_is_very_unusual() -> None:
    many, one = np.full((1, 4), 2.0), np.array([[8.0, 0.0, 0.0, 0.0]])
    none = np.zeros((1, 4))
    assert unusualness(many, none) == unusualness(one, none) == 2.0


def test_an_endpoint_of_which_nothing_is_known_has_no_number() -> None:
    assert np.isnan(unusualness(np.full((1, 3), np.nan), np.zeros((1, 3)))).all()


def test_a_bar_goes_on_after_a_restart_as_if_there_had_been_none() -> None:
    scores = np.random.default_rng(8).exponential(1.0, (200, 5))
    rows = np.arange(5)
    whole, first = Refractory(), Refractory()
    for bar in (whole, first):
        bar.resize(5)
    expected = [whole.passed(rows, score) for score in scores]
    got = [first.passed(rows, score) for score in scores[:100]]
    second = Refractory()
    second.restore(first.export_state())
    got += [second.passed(rows, score) for score in scores[100:]]
    np.testing.assert_array_equal(got, expected)


def test_a_second_anomaly_soon_after_is_heard_and_a_lesser_one_at_once_is_not() -> None:
    bar = Refractory(memory=50.0)
    bar.resize(1)
    row = np.array([0])
    heard = [bar.passed(row, np.array([x]))[0] for x in [9.0, 8.0, *[0.1] * 60, 8.0]]
    assert heard[0] == 9.0
    assert heard[1] == 0.0
    assert heard[-1] == 8.0
