"""Counts of events, alarms and culprits at one threshold; sweeps against them at all thresholds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.evaluate.events import (
    Counts,
    Series,
    alarm_rows,
    alarms,
    attribution_hits,
    delay_counts,
    event_counts,
    flags,
    pooled,
    runs,
)
from pipeline.evaluate.sets import Episode
from pipeline.evaluate.sweep import GRID, budget_threshold, intervals, sweep
from pipeline.model import Bools, Floats

GAPS = st.sampled_from([None, 0, 1, 3])


def mask(text: str) -> Bools:
    return np.array([char == "1" for char in text], np.bool_)


def series(score: list[float], label: str, step_s: float = 300.0) -> Series:
    return Series(np.array(score), mask(label), step_s)


@st.composite
def many(draw: st.DrawFn) -> list[Series]:
    found = []
    for n in draw(st.lists(st.integers(0, 25), min_size=1, max_size=4)):
        score = draw(st.lists(st.sampled_from([0.0, 1.0, 1.5, 2.0, 5.0]), min_size=n, max_size=n))
        label = draw(st.lists(st.booleans(), min_size=n, max_size=n))
        found.append(Series(np.array(score), np.array(label, np.bool_), 300.0))
    return found


def test_a_lucky_row_counts_once_and_a_late_one_does_not_count_when_promptness_does() -> None:
    label, flag = mask("0011100"), mask("0100100")
    assert event_counts(label, flag) == Counts(tp=1, fp=1, fn=0)
    assert event_counts(label, flag).f1 == pytest.approx(0.667, abs=5e-4)
    assert delay_counts(label, flag, 1).f1 == 0.0
    assert delay_counts(label, flag) == Counts(tp=3, fp=1, fn=0)


def test_nothing_labelled_and_nothing_flagged_is_no_success() -> None:
    nothing = mask("0000")
    assert event_counts(nothing, nothing).f1 == 0.0
    assert runs(mask("")).first.size == 0
    assert event_counts(mask(""), mask("")) == Counts(0, 0, 0)


def test_a_segment_counts_up_to_the_eighth_row() -> None:
    label = mask("1" * 20)
    for row, is_prompt in ((0, True), (7, True), (8, False)):
        flag = mask("0" * 20)
        flag[row] = True
        assert delay_counts(label, flag).tp == (20 if is_prompt else 0)


@given(st.lists(st.sampled_from([0.0, 9.0]), max_size=30), st.integers(0, 4))
def test_an_alarm_begins_where_no_row_above_lies_within_the_gap(
    score: list[float], gap_rows: int
) -> None:
    expected = [
        i
        for i, value in enumerate(score)
        if value > 5 and not any(each > 5 for each in score[max(i - gap_rows - 1, 0) : i])
    ]
    assert alarm_rows(np.array(score), 5.0, gap_rows).tolist() == expected


@given(many(), GAPS, st.sampled_from([None, 0, 2, 7]))
def test_a_sweep_counts_at_every_threshold_what_one_threshold_counts(
    parts: list[Series], gap_rows: int | None, delay_rows: int | None
) -> None:
    found = sweep(intervals(parts, gap_rows), delay_rows)
    scores = np.concatenate([part.score for part in parts])
    assert found.threshold.tolist() == [-math.inf, *np.unique(scores).tolist()]
    for i, threshold in enumerate(found.threshold.tolist()):
        counts = []
        for part in parts:
            flag = flags(part.score, threshold, gap_rows)
            counts.append(
                event_counts(part.label, flag)
                if delay_rows is None
                else delay_counts(part.label, flag, delay_rows)
            )
        expected = pooled(counts)
        assert Counts(int(found.tp[i]), int(found.fp[i]), int(found.fn[i])) == expected
        assert found.f1[i] == pytest.approx(expected.f1)


@given(many(), GAPS)
def test_no_threshold_beats_the_best(parts: list[Series], gap_rows: int | None) -> None:
    found = sweep(intervals(parts, gap_rows))
    best = found.best()
    assert best.f1 == found.f1.max()
    counts = [event_counts(p.label, flags(p.score, best.threshold, gap_rows)) for p in parts]
    assert pooled(counts).f1 == best.f1


def test_the_best_threshold_keeps_its_distance_from_noise_and_events() -> None:
    one = series([0, 2, 1, 10, 12, 0, 14, 2], "00011010")
    assert sweep(intervals([one], 0)).best() == (7.0, 1.0)
    quiet = series([0, 2, 1], "000")
    assert sweep(intervals([quiet], 0)).best() == (2.0, 0.0)
    loud = series([5, 5, 5], "111")
    assert flags(loud.score, sweep(intervals([loud], None)).best().threshold, None).all()


@given(many(), GAPS)
def test_the_best_of_a_grid_is_the_first_of_the_best(
    parts: list[Series], gap_rows: int | None
) -> None:
    grid = np.array([0.5, 1.2, 1.5, 3.0, 99.0])
    tried = [
        pooled([event_counts(p.label, flags(p.score, each, gap_rows)) for p in parts]).f1
        for each in grid.tolist()
    ]
    best = sweep(intervals(parts, gap_rows)).best_of(grid)
    assert best.threshold == grid[int(np.argmax(tried))]
    assert best.f1 == pytest.approx(max(tried))


def test_the_grid_is_the_published_one() -> None:
    assert (GRID[:3].tolist(), GRID[35:39].tolist(), GRID[-1]) == (
        [2.0, 2.5, 3.0],
        [19.5, 20.0, 24.0, 28.0],
        196.0,
    )


def test_an_alarm_that_begins_before_its_segment_is_false_and_the_segment_missed() -> None:
    one = series([0, 9, 9, 9, 0], "00110")
    assert sweep(intervals([one], 0)).f1.max() == 0.0
    assert sweep(intervals([one], None)).f1.max() == pytest.approx(2 / 3)


def days(n: int, spikes: dict[int, float]) -> Series:
    """Rows a day apart, over `n` days."""
    score = np.zeros(n + 1)
    score[list(spikes)] = list(spikes.values())
    return Series(score, np.zeros(n + 1, np.bool_), 86_400.0)


def test_a_budget_lets_through_as_many_alarms_as_it_says() -> None:
    one = days(100, {10: 5.0, 30: 4.0, 50: 3.0, 70: 2.0})
    assert [budget_threshold([one], each, 0) for each in (0.01, 0.02, 0.03, 0.0)] == [4, 3, 2, 5]
    assert budget_threshold([one, days(100, {})], 0.01, 0) == 3.0, "pooled over series"


def test_merging_everything_into_one_alarm_does_not_keep_a_budget() -> None:
    """Below 1.0 all rows are above, which is a single alarm and no quiet detector."""
    one = Series(np.tile([1.0, 3.0], 50), np.zeros(100, np.bool_), 86_400.0)
    assert len(alarm_rows(one.score, 0.5, 0)) == 1
    assert budget_threshold([one], 0.02, 0) == 3.0


def test_near_alarms_are_one_to_a_budget() -> None:
    one = days(100, {10: 5.0, 23: 4.0})
    assert budget_threshold([one], 0.01, 12) == 0.0
    assert budget_threshold([one], 0.01, 11) == 4.0


def test_a_detector_that_is_silent_on_train_may_still_not_alarm_on_everything() -> None:
    assert budget_threshold([days(100, {})], 1.0) == 0.0


@given(many(), st.sampled_from([0.0, 1.0, 50.0, 200.0]), st.integers(0, 3))
def test_a_budget_is_kept_at_its_threshold_and_at_every_higher_one(
    parts: list[Series], budget: float, gap_rows: int
) -> None:
    allowed = budget * sum(part.days for part in parts)
    scores = np.unique(np.concatenate([part.score for part in parts]))

    def fired(threshold: float) -> int:
        return sum(len(alarm_rows(part.score, threshold, gap_rows)) for part in parts)

    found = budget_threshold(parts, budget, gap_rows)
    kept = [all(fired(t) <= allowed + 1e-9 for t in scores[i:]) for i in range(len(scores))]
    expected = scores[kept.index(True)] if len(scores) else -math.inf
    assert found == expected


def test_alarms_are_counted_a_day_an_episode_and_a_row() -> None:
    label = "0" * 10 + "1" * 10 + "0" * 10 + "1" * 10 + "0" * 9
    score = np.zeros(49)
    score[[2, 12, 16, 18]] = 9.0
    found = alarms([Series(score, mask(label), 1800.0)], 5.0, 0)
    assert found == (4.0, 3.0, 2.0, 1)
    quiet = alarms([Series(np.zeros(49), mask(label), 1800.0)], 5.0, 0)
    assert quiet[0] == 0.0
    assert math.isnan(quiet.per_episode)
    assert math.isnan(quiet.median_delay_rows)


def ranking(*rows: list[float]) -> Floats:
    return np.array(rows)


def test_culprits_are_ranked_where_the_alarm_fires_and_a_missed_episode_is_nothing() -> None:
    metric = ranking([9, 0, 0, 0], [1, 4, 3, 2], [9, 0, 0, 0], [0, 0, 0, 9])
    episodes = [Episode(1, 2, (1, 2, 3)), Episode(3, 3, (0,))]
    assert attribution_hits(episodes, np.array([1, 2]), metric).tolist() == [1.0, 0.0]
    assert attribution_hits(episodes, np.array([2, 3]), metric).tolist() == [2 / 3, 0.0]
    assert attribution_hits(episodes, np.empty(0, np.int64), metric).tolist() == [0.0, 0.0]


def test_no_more_metrics_are_named_than_there_are_culprits() -> None:
    metric = ranking([5, 4, 3, 2])
    episode = [Episode(0, 0, (1,))]
    assert attribution_hits(episode, np.array([0]), metric).tolist() == [0.0]
    assert attribution_hits([Episode(0, 0, (0,))], np.array([0]), metric).tolist() == [1.0]
    assert attribution_hits([Episode(0, 0, (0, 2))], np.array([0]), metric).tolist() == [0.5]


def test_metrics_without_a_score_are_named_last() -> None:
    metric = ranking([np.nan, 1.0, np.nan, 2.0])
    assert attribution_hits([Episode(0, 0, (1, 3))], np.array([0]), metric).tolist() == [1.0]
