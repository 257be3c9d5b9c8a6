"""Peers: one of many that differs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.detect.episodes import Episodes
from pipeline.detect.peer_order import Groups
from pipeline.detect.peers import Peers
from pipeline.detect.protocol import Samples
from pipeline.model import Floats, Int32s, Int64s
from tests.detect.feed import START_S, edges, fed, grouped, noise

VALUES = st.one_of(st.just(float("nan")), st.integers(-5, 5).map(float), st.floats(-1e6, 1e6))


@given(st.lists(st.tuples(st.integers(-1, 4), VALUES), min_size=1, max_size=40), st.data())
def test_median_and_mad_of_the_others_agree_with_brute_force(
    members: list[tuple[int, float]], data: st.DataObject
) -> None:
    groups = np.array([group for group, _ in members], np.int32)
    value = np.array([each for _, each in members])
    some = data.draw(st.lists(st.sampled_from(range(len(members))), unique=True))
    row = np.array(sorted(some), np.int64)
    found = Groups(groups).others(row, value.take)
    for place, each in enumerate(row):
        others = (groups == groups[each]) & (groups >= 0) & (np.arange(len(groups)) != each)
        known = value[others & ~np.isnan(value)]
        if np.isnan(value[each]) or not len(known):
            assert found.size[place] == 0
            assert np.isnan(found.median[place])
            continue
        median = np.median(known)
        distances = np.sort(np.abs(known - median))
        assert found.size[place] == len(known)
        assert found.median[place] == pytest.approx(median, abs=1e-9)
        assert found.mad[place] == pytest.approx(distances[len(known) // 2], abs=1e-9)


def made(groups: Int32s, **settings: float) -> Peers:
    detector = Peers(**settings)  # type: ignore[arg-type]
    detector.resize(len(groups))
    detector.set_groups(groups)
    return detector


def scored(values: Floats, groups: Int32s | None = None) -> Floats:
    of = grouped(values.shape[1]) if groups is None else groups
    scores: Floats = fed(made(of), values)[0]
    return scores


def test_one_of_many_that_differs_is_found_and_no_other() -> None:
    values = 100.0 + noise(600, 16)
    values[400:, 3] += 20.0
    scores = scored(values)
    assert (scores[402:420, 3] > 4.0).all()
    assert np.nanmax(np.abs(np.delete(scores, 3, axis=1))) < 5.0


def test_what_all_do_together_is_no_outlier() -> None:
    values = 100.0 + noise(600, 16)
    values[400:] += 50.0
    values[450:] *= 2.0
    assert np.nanmax(np.abs(scored(values)[400:])) < 6.0


def test_one_sample_apart_is_no_outlier() -> None:
    values = 100.0 + noise(600, 8)
    values[400, 3] += 1000.0
    assert np.nanmax(np.abs(scored(values)[395:410])) < 6.0


@pytest.mark.parametrize(("members", "is_known"), [(3, False), (4, True)])
def test_at_least_three_peers_are_needed(members: int, is_known: bool) -> None:
    scores = scored(noise(100, members), np.zeros(members, np.int32))
    assert bool(np.isfinite(scores[50:]).all()) is is_known
    assert bool(np.isnan(scores).all()) is not is_known


def test_without_a_group_nothing_is_known() -> None:
    groups = np.array([0, 0, 0, 0, -1, -1, -1, -1], np.int32)
    scores = scored(noise(100, 8), groups)
    assert np.isnan(scores[:, 4:]).all()
    assert np.isfinite(scores[50:, :4]).all()


def test_a_member_that_differs_from_the_first_is_found_then_accepted() -> None:
    values = 100.0 + noise(3000, 8)
    values[:, 3] += 20.0
    detector, episodes = made(grouped(8)), Episodes(entry=4.0)
    episodes.resize(8)
    fired, resolved = edges(episodes, fed(detector, values), values)
    assert [row for _, row in fired] == [3]
    assert [row for _, row in resolved] == [3]


def test_a_peer_that_is_no_longer_heard_is_none() -> None:
    values = noise(200, 4)
    detector = made(np.zeros(4, np.int32))
    fed(detector, values[:100])
    row, learn = np.array([0, 1, 2]), np.ones(3, np.bool_)
    last = [
        detector.score(Samples(row, np.full(3, START_S + 15.0 * at), values[at, :3]), learn)
        for at in range(100, 120)
    ]
    assert np.isfinite(last[2].score).all()
    assert np.isnan(last[-1].score).all()


def staggered(detector: Peers, values: Floats, rows: Int64s) -> Floats:
    """Each series a second after the one before; all of a round in one call or one by one."""
    out = np.empty(values.shape)
    for number, value in enumerate(values):
        times = START_S + 15.0 * number + rows.astype(np.float64)
        for part in np.array_split(rows, 1 + number % 3):
            samples = Samples(part, times[part], value[part])
            out[number, part] = detector.score(samples, np.ones(len(part), np.bool_)).score
    return out


def test_scrapes_that_are_staggered_see_a_common_step_as_none() -> None:
    values = 100.0 + noise(600, 8)
    values[400:] += 50.0
    scores = staggered(made(grouped(8)), values, np.arange(8))
    episodes = Episodes(entry=6.0, least_samples=2)
    episodes.resize(8)
    fired, _ = edges(episodes, np.stack((scores, values, values)), values)
    assert fired == []


def test_groups_are_one_for_each_row() -> None:
    with pytest.raises(ValueError, match="2 groups for 4 rows"):
        made(np.zeros(4, np.int32)).set_groups(np.zeros(2, np.int32))


def test_a_row_that_changes_its_group_starts_afresh_and_keeps_its_floor() -> None:
    detector = made(grouped(16))
    detector.set_floor(np.array([0]), np.array([1e6]))
    fed(detector, noise(100, 16))
    moved = grouped(16)
    moved[0] = 1
    detector.set_groups(moved)
    scores = fed(detector, noise(100, 16) * 100.0, first=100)[0]
    assert np.isnan(scores[:2, 0]).all()
    assert np.abs(scores[50:, 0]).max() < 0.3
