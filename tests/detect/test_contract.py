"""The contract of every detector: what its state and scores do not depend on, and what they do."""

import numpy as np
import pytest

from pipeline.detect import DETECTORS
from pipeline.detect.border import Border
from pipeline.detect.protocol import Samples
from pipeline.detect.rows import BLOCK_ROWS, RowDetector
from tests.detect.feed import (
    GROUP,
    INTERVAL_S,
    NAMES,
    START_S,
    STATISTICS,
    fed,
    grouped,
    grow,
    lively,
    made,
    parts,
    same_state,
)

ROUNDS = 400
SERIES = 3 * GROUP
BODY = 0.3


@pytest.mark.parametrize("name", NAMES)
def test_its_name_is_its_method(name: str) -> None:
    assert DETECTORS[name].make().name == name


@pytest.mark.parametrize("name", NAMES)
def test_equal_inputs_give_equal_bits(name: str) -> None:
    values = lively(ROUNDS, SERIES)
    first, second = (fed(made(name, SERIES), values) for _ in range(2))
    assert first.tobytes() == second.tobytes()
    assert np.isfinite(first[0, -1]).all(), "every series is known by then"


@pytest.mark.parametrize("name", NAMES)
def test_a_round_cut_into_parts_scores_the_same(name: str) -> None:
    values = lively(ROUNDS, SERIES)
    whole, cut = made(name, SERIES), made(name, SERIES)
    expected = fed(whole, values)
    for number, value in enumerate(values):
        got = np.empty((3, SERIES))
        for part in parts(SERIES, number):
            times = np.full(len(part), START_S + number * INTERVAL_S)
            got[:, part] = cut.score(
                Samples(part, times, value[part]), np.ones(len(part), np.bool_)
            )
        for i, statistic in enumerate(STATISTICS):
            np.testing.assert_array_equal(got[i], expected[i, number], statistic)
    assert same_state(whole.export_state(), cut.export_state())


@pytest.mark.parametrize("name", NAMES)
def test_another_order_of_series_scores_the_same(name: str) -> None:
    values = lively(ROUNDS, SERIES)
    order = np.random.default_rng(5).permutation(SERIES)
    plain = fed(made(name, SERIES), values)
    moved = fed(made(name, SERIES, grouped(SERIES)[order]), values[:, order])
    np.testing.assert_array_equal(moved, plain[:, :, order])


@pytest.mark.parametrize("name", NAMES)
def test_series_that_are_added_later_change_no_score_of_the_others(name: str) -> None:
    values, more = lively(ROUNDS, SERIES), lively(ROUNDS, GROUP, seed=9)
    alone = fed(made(name, SERIES), values)
    joined = made(name, SERIES)
    half = ROUNDS // 2
    first = fed(joined, values[:half])
    grow(joined, SERIES + GROUP)
    both = np.concatenate((values, more), axis=1)[half:]
    second = fed(joined, both, first=half)[:, :, :SERIES]
    np.testing.assert_array_equal(np.concatenate((first, second), axis=1), alone)


@pytest.mark.parametrize("name", NAMES)
def test_a_restored_snapshot_goes_on_to_the_bit(name: str) -> None:
    values, half = lively(ROUNDS, SERIES), ROUNDS // 2 + 3
    detector = made(name, SERIES)
    fed(detector, values[:half])
    state = detector.export_state()
    expected = fed(detector, values[half:], first=half)
    restored = DETECTORS[name].make()
    restored.restore(state)
    got = fed(restored, values[half:], first=half)
    assert got.tobytes() == expected.tobytes()
    assert same_state(restored.export_state(), detector.export_state())


@pytest.mark.parametrize("name", NAMES)
def test_a_snapshot_is_no_window_into_the_state(name: str) -> None:
    values = lively(60, SERIES)
    detector = made(name, SERIES)
    fed(detector, values[:30])
    state, again = detector.export_state(), detector.export_state()
    fed(detector, values[30:], first=30)
    assert same_state(state, again)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(name: str) -> None:
    detector = made(name, SERIES)
    fed(detector, lively(60, SERIES))
    before = detector.export_state()
    for wrong in (
        {},
        {**before, "format": 99},
        {**before, "lines": before["lines"][:-1]},
        {**before, "lines": before["lines"].astype(np.float32)},
        {**before, "facts": ["other"]},
    ):
        with pytest.raises(ValueError, match=r"."):
            detector.restore(wrong)
    assert same_state(detector.export_state(), before)


@pytest.mark.parametrize("name", NAMES)
def test_memory_grows_with_series_and_not_with_samples(name: str) -> None:
    detector = made(name, SERIES)
    before = detector.nbytes
    fed(detector, lively(ROUNDS, SERIES))
    assert detector.nbytes == before
    grow(detector, 2 * SERIES)
    assert detector.nbytes == 2 * before
    detector.resize(SERIES)
    assert detector.nbytes == 2 * before
    assert before / SERIES < 2048


@pytest.mark.parametrize("name", NAMES)
def test_what_the_border_leaves_out_reaches_no_state(name: str) -> None:
    """NaN, infinities, duplicates, repetitions and backward times between sound samples."""
    values = lively(ROUNDS, SERIES)
    clean, dirty, border = made(name, SERIES), made(name, SERIES), Border()
    border.resize(SERIES)
    expected = fed(clean, values)
    row, learn = np.arange(SERIES), np.ones(SERIES, np.bool_)
    noise = (np.nan, np.inf, -np.inf, 1e300, 7.0)
    for number, value in enumerate(values):
        now_s = START_S + number * INTERVAL_S
        bad_s = now_s if number % 2 else now_s - 2.5 * INTERVAL_S
        bad = np.full(SERIES, noise[number % len(noise)])
        rows = np.concatenate((row, row, row))
        times = np.repeat([now_s, bad_s, now_s], SERIES)
        for round_ in border.admit(rows, times, np.concatenate((value, bad, value))):
            if len(round_.samples.row):
                got = dirty.score(round_.samples, learn)
                np.testing.assert_array_equal(got.score, expected[0, number])
    assert set(border.dropped) == {
        "not_finite",
        "too_large",
        "repeated",
        "duplicate",
        "backward",
    }


@pytest.mark.parametrize("name", NAMES)
def test_gaps_and_irregular_times_leave_scores_finite_and_state_sound(name: str) -> None:
    values = lively(ROUNDS, SERIES)
    random = np.random.default_rng(6)
    steps = random.choice([0.001, 1.0, 15.0, 15.0, 15.0, 44.0, 3600.0, 1e6], ROUNDS)
    detector = made(name, SERIES)
    scores = fed(detector, values, times=START_S + np.cumsum(steps))
    assert not np.isinf(scores).any()
    later = fed(detector, lively(ROUNDS, SERIES, seed=8), first=10**9)
    assert np.isfinite(later[:, -1]).all()


@pytest.mark.parametrize("name", NAMES)
def test_values_at_the_border_of_what_is_finite_do_not_poison_the_state(name: str) -> None:
    values = lively(ROUNDS, SERIES)
    values[200, ::2], values[201, ::2], values[202, ::2] = 1e140, -1e140, 0.0
    detector = made(name, SERIES)
    scores = fed(detector, values)
    assert not np.isinf(scores).any()
    assert np.isfinite(scores[0, -1]).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_row_that_is_forgotten_is_a_new_series(name: str) -> None:
    values = lively(ROUNDS, SERIES)
    used, fresh = made(name, SERIES), made(name, SERIES)
    fed(used, lively(ROUNDS, SERIES, seed=4))
    used.forget(np.arange(SERIES))
    assert same_state(used.export_state(), fresh.export_state())
    np.testing.assert_array_equal(fed(used, values, first=ROUNDS), fed(fresh, values, first=ROUNDS))


@pytest.mark.parametrize("name", NAMES)
def test_a_forgotten_row_leaves_the_others_as_they_were(name: str) -> None:
    """Of other groups: among peers one member less is a difference."""
    values = lively(ROUNDS, SERIES)
    detector, other = made(name, SERIES), made(name, SERIES)
    for each in (detector, other):
        fed(each, values[:200])
    detector.forget(np.arange(GROUP))
    got = fed(detector, values[200:], first=200)[:, :, GROUP:]
    np.testing.assert_array_equal(got, fed(other, values[200:], first=200)[:, :, GROUP:])


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_known_at_first(name: str) -> None:
    scores = fed(made(name, SERIES), lively(3, SERIES))
    assert np.isnan(scores[0]).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0.0, 1.0, -3.7e9, 1e-12])
def test_a_constant_and_the_last_bit_of_it_are_no_anomaly(name: str, value: float) -> None:
    values = np.full((ROUNDS, SERIES), value)
    values[300, ::3] = np.nextafter(value, np.inf) if value else 0.0
    values[340:, ::3] = np.nextafter(value, -np.inf) if value else 0.0
    scores = fed(made(name, SERIES), values)
    assert np.nanmax(np.abs(scores[0])) <= BODY
    assert np.isfinite(scores[:, -1]).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_change_below_the_floor_of_the_unit_is_no_anomaly(name: str) -> None:
    values = np.zeros((ROUNDS, SERIES))
    values[300:, ::3] = 0.5
    detector = made(name, SERIES)
    assert isinstance(detector, RowDetector)
    detector.set_floor(np.arange(SERIES), np.ones(SERIES))
    assert np.nanmax(np.abs(fed(detector, values)[0])) <= BODY


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("power", [-30, 30])
def test_the_unit_does_not_matter(name: str, power: int) -> None:
    values, scale = lively(ROUNDS, SERIES), 2.0**power  # about 1e-9 and 1e9, without rounding
    found = []
    for by in (1.0, scale):
        detector = made(name, SERIES)
        assert isinstance(detector, RowDetector)
        detector.set_floor(np.arange(SERIES), np.full(SERIES, 0.01 * by))
        found.append(fed(detector, values * by))
    plain, scaled = found
    np.testing.assert_array_equal(scaled[0], plain[0])
    np.testing.assert_array_equal(scaled[1:], plain[1:] * scale)


@pytest.mark.parametrize("name", NAMES)
def test_muted_time_teaches_nothing(name: str) -> None:
    values = lively(ROUNDS, SERIES)
    detector = made(name, SERIES)
    fed(detector, values[:300])
    before = detector.export_state()
    muted = fed(detector, values[300:] + 1e3, first=300, learn=np.zeros(SERIES, np.bool_))
    assert same_state(detector.export_state(), before)
    assert not np.isinf(muted).any()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_muted_is_no_concern_of_the_others(name: str) -> None:
    values = lively(ROUNDS, SERIES)
    plain, mixed = made(name, SERIES), made(name, SERIES)
    learn = np.arange(SERIES) >= GROUP
    expected = fed(plain, values)
    got = fed(mixed, values, learn=learn)
    np.testing.assert_array_equal(got[:, :, GROUP:], expected[:, :, GROUP:])
    assert np.isnan(got[0, :, :GROUP]).all()


@pytest.mark.parametrize("name", NAMES)
def test_one_series_and_a_hundred_thousand_score_alike(name: str) -> None:
    few, many = GROUP, 100_000
    values = lively(40, few)
    small, large = made(name, few), made(name, many)
    expected = fed(small, values)
    got = fed(large, np.tile(values, many // few))
    assert many > 2 * BLOCK_ROWS
    np.testing.assert_array_equal(got[:, :, :few], expected)
    np.testing.assert_array_equal(got[:, :, -few:], expected)
    if name != "peers":
        one = fed(made(name, 1), values[:, :1])
        np.testing.assert_array_equal(one[:, :, 0], expected[:, :, 0])


@pytest.mark.parametrize("name", NAMES)
def test_no_samples_give_no_scores(name: str) -> None:
    empty = np.zeros(0)
    scores = made(name, SERIES).score(
        Samples(np.zeros(0, np.int64), empty, empty), np.zeros(0, np.bool_)
    )
    assert [len(column) for column in scores] == [0, 0, 0]
