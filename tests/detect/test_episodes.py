"""From scores to edges."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.detect.episodes import DOWN, UP, Edges, Episodes
from pipeline.detect.protocol import Samples, Scores

Story = list[tuple[int, str]]


def told(
    scores: Sequence[float],
    *,
    times: list[float] | None = None,
    values: list[float] | None = None,
    episodes: Episodes | None = None,
    live: list[bool] | None = None,
) -> Story:
    """What happens to one row: (sample, "fired" or "resolved")."""
    each = Episodes(entry=8.0) if episodes is None else episodes
    each.resize(1)
    story: Story = []
    for i, score in enumerate(scores):
        edges = step(
            each,
            score,
            float(i) * 10.0 if times is None else times[i],
            1.0 if values is None else values[i],
            None if live is None else live[i],
        )
        story += [(i, "fired")] * len(edges.fired) + [(i, "resolved")] * len(edges.resolved)
    return story


def step(
    episodes: Episodes, score: float, time_s: float, value: float, live: bool | None = None
) -> Edges:
    samples = Samples(np.array([0]), np.array([time_s]), np.array([value]))
    scores = Scores(np.array([score]), np.zeros(1), np.ones(1))
    return episodes.update(samples, scores, None if live is None else np.array([live]))


def test_an_episode_fires_once_and_resolves_once() -> None:
    assert told([0, 1, 9, 12, 9, 0, 0, 0, 0]) == [(2, "fired"), (7, "resolved")]


def test_between_exit_and_entry_nothing_changes() -> None:
    assert told([7.9, 6, 7, 9, 6, 7, 6, 7, 6]) == [(3, "fired")]


def test_a_dip_shorter_than_the_recovery_does_not_resolve() -> None:
    assert told([9, 0, 0, 9, 0, 0, 9]) == [(0, "fired")]


@pytest.mark.parametrize(("direction", "fires"), [(0, True), (UP, False), (DOWN, True)])
def test_a_fall_fires_unless_only_rises_matter(direction: int, fires: bool) -> None:
    episodes = Episodes()
    episodes.resize(1)
    episodes.set_rule(np.array([0]), entry=8.0, direction=direction)
    assert bool(told([0, -9], episodes=episodes)) is fires


@pytest.mark.parametrize(
    ("absolute", "relative", "value", "fires"),
    [(2.0, 0.0, 1.9, False), (2.0, 0.0, 2.0, True), (0.0, 0.5, 1.0, True), (5.0, 0.5, 4.0, False)],
)
def test_a_deviation_must_be_large_enough_too(
    absolute: float, relative: float, value: float, fires: bool
) -> None:
    episodes = Episodes()
    episodes.resize(1)
    episodes.set_rule(np.array([0]), entry=8.0, least_absolute=absolute, least_relative=relative)
    assert bool(told([0, 9], values=[0.0, value], episodes=episodes)) is fires


def test_a_low_volume_change_from_two_to_four_is_silent() -> None:
    episodes = Episodes()
    episodes.resize(1)
    episodes.set_rule(np.array([0]), entry=8.0, least_absolute=5.0)
    samples = Samples(np.array([0]), np.zeros(1), np.array([4.0]))
    edges = episodes.update(samples, Scores(np.array([30.0]), np.array([2.0]), np.ones(1)))
    assert not len(edges.fired)


def test_a_run_must_last_both_samples_and_seconds() -> None:
    scores = [9.0] * 6
    assert told(scores, episodes=Episodes(least_samples=3))[0] == (2, "fired")
    assert told(scores, episodes=Episodes(least_s=35.0))[0] == (4, "fired")
    assert told([9, 9, 0, 9, 9, 0], episodes=Episodes(least_samples=3)) == []


def test_since_is_when_the_run_began() -> None:
    episodes = Episodes(least_samples=3)
    episodes.resize(1)
    found = [step(episodes, score, 10.0 * i, 1.0) for i, score in enumerate([0, 9, 9, 9, 9])]
    (fired,) = [each for each in found if len(each.fired)]
    assert fired.fired_since_s.tolist() == [10.0]
    ended = [step(episodes, 0.0, 50.0 + 10.0 * i, 1.0) for i in range(4)]
    (resolved,) = [each for each in ended if len(each.resolved)]
    assert resolved.resolved_since_s.tolist() == [10.0]


def test_a_gap_while_firing_neither_resolves_nor_fires_again() -> None:
    times = [0.0, 10.0, 20.0, 30.0, 90_000.0, 90_010.0, 90_020.0]
    assert told([0, 0, 9, 9, 9, 9, 9], times=times) == [(2, "fired")]


def test_a_gap_is_no_duration() -> None:
    times = [0.0, 10.0, 20.0, 30.0, 90_000.0]
    assert told([0, 0, 0, 9, 9], times=times, episodes=Episodes(least_s=100.0)) == []


def test_an_unknown_score_changes_nothing() -> None:
    nan = float("nan")
    assert told([0, 9, nan, nan, nan, nan, nan, 9, 0, 0, 0]) == [(1, "fired"), (10, "resolved")]


def test_muted_time_makes_no_edges_and_leaves_no_trace() -> None:
    live = [True, False, False, False, True, True, True]
    assert told([0, 9, 9, 9, 0, 0, 0], live=live) == []
    assert told([9, 0, 0, 0, 9, 0, 9], live=live) == [(0, "fired")]


def test_the_swing_back_after_an_episode_is_no_second_one() -> None:
    assert told([0, 0, 20, 0, -20, 0, 0, 0, 0]) == [(2, "fired"), (5, "resolved")]
    assert told([0, 0, 20, 0, 0, 0, -20, 0, 0]) == [(2, "fired"), (5, "resolved")]


def test_a_second_anomaly_after_the_cool_down_fires_again() -> None:
    scores = [0, 0, 20, 0, 0, 0, *[0] * 10, 20, 0]
    assert told(scores) == [(2, "fired"), (5, "resolved"), (16, "fired")]


def test_a_far_louder_anomaly_breaks_the_cool_down() -> None:
    assert told([0, 0, 20, 0, 0, 0, 50]) == [(2, "fired"), (5, "resolved"), (6, "fired")]


def test_what_lasts_beyond_the_cool_down_fires_late() -> None:
    story = told([0, 0, 20, 0, 0, 0, *[15] * 30])
    assert story[2] == (15, "fired")
    assert len(story) == 3


def test_oscillation_is_bounded_and_counted() -> None:
    episodes = Episodes(cool_down_samples=0, calm_samples=1, burst=3, refill_s=10_000.0)
    story = told([20.0, 0.0] * 200, episodes=episodes)
    assert sum(what == "fired" for _, what in story) == 3
    assert episodes.held_back["flapping"] == 197
    later = told([20.0, 0.0], times=[1e6, 1e6 + 10.0], episodes=episodes)
    assert later == [(0, "fired"), (1, "resolved")]


def test_runs_within_the_cool_down_are_counted_once_each() -> None:
    episodes = Episodes(calm_samples=1, cool_down_samples=20)
    told([0, 0, 20, 0, 19, 19, 19, 0, 19, 0], episodes=episodes)
    assert episodes.held_back == {"cool_down": 2, "flapping": 0}


SCORES = st.lists(
    st.sampled_from([0.0, 5.0, 6.0, 8.0, -9.0, 20.0, float("nan")]), min_size=1, max_size=60
)


@given(SCORES)
def test_edges_alternate_and_the_state_says_so(scores: list[float]) -> None:
    episodes = Episodes()
    story = [what for _, what in told(scores, episodes=episodes)]
    assert story == (["fired", "resolved"] * len(story))[: len(story)]
    assert bool(episodes.is_firing[0]) is bool(len(story) % 2)


@given(SCORES, st.integers(0, 60))
def test_a_restored_state_goes_on_alike(scores: list[float], cut: int) -> None:
    times = [10.0 * i for i in range(len(scores))]
    first, second = Episodes(), Episodes()
    told(scores[:cut], times=times[:cut], episodes=first)
    second.restore(first.export_state())
    rest = scores[cut:], times[cut:]
    assert told(rest[0], times=rest[1], episodes=first) == told(
        rest[0], times=rest[1], episodes=second
    )


def test_rows_do_not_see_each_other() -> None:
    random = np.random.default_rng(2)
    scores = random.choice(
        [0.0, 6.0, 9.0, -9.0, np.nan], size=(200, 12), p=[0.5, 0.2, 0.1, 0.1, 0.1]
    )
    together = Episodes()
    together.resize(12)
    found: list[tuple[int, int, str]] = []
    for i, each in enumerate(scores):
        samples = Samples(np.arange(12), np.full(12, 10.0 * i), np.ones(12))
        edges = together.update(samples, Scores(each, np.zeros(12), np.ones(12)))
        found += [(int(row), i, "fired") for row in edges.fired]
        found += [(int(row), i, "resolved") for row in edges.resolved]
        np.testing.assert_array_equal(samples.row[edges.fired_at], edges.fired)
    alone = [(row, i, what) for row in range(12) for i, what in told(scores[:, row].tolist())]
    assert sorted(found) == sorted(alone)
    assert found
