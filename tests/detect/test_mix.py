"""Whether a pool serves other kinds of requests than usual."""

import numpy as np
import pytest

from pipeline.detect.mix import Mix, MixScores, Window
from pipeline.model import Floats
from tests.detect.feed import parts, same_state

KINDS, POOLS, ROUNDS = 6, 10, 300
USUAL = np.array([0.5, 0.25, 0.15, 0.07, 0.03, 0.0])


def calls(rounds: int, per_window: float, share: Floats = USUAL, seed: int = 1) -> Floats:
    """float64[rounds, pools, kinds]."""
    random = np.random.default_rng(seed)
    return random.poisson(per_window * share, (rounds, POOLS, KINDS)).astype(np.float64)


def made() -> Mix:
    mix = Mix(kinds=KINDS)
    mix.resize(POOLS)
    return mix


def fed(mix: Mix, windows: Floats) -> MixScores:
    row, learn = np.arange(POOLS), np.ones(POOLS, np.bool_)
    found = [mix.score(Window(row, window), learn) for window in windows]
    return MixScores(*(np.stack(column) for column in zip(*found, strict=True)))


def test_a_new_kind_is_found_and_named() -> None:
    windows = calls(ROUNDS, 400.0)
    windows[200:, 3] = calls(ROUNDS - 200, 400.0, np.array([0.4, 0.2, 0.12, 0.05, 0.03, 0.2]))[:, 3]
    scores = fed(made(), windows)
    assert scores.score[200, 3] > 6.0
    assert scores.contributions[200, 3].argmax() == 5
    assert np.nanmax(np.delete(scores.score, 3, axis=1)) < 6.0
    np.testing.assert_allclose(scores.share[200, 3].sum(), 1.0)


def test_more_of_the_same_is_no_change() -> None:
    windows = calls(ROUNDS, 400.0)
    windows[200:] = calls(ROUNDS - 200, 4000.0)
    assert np.nanmax(fed(made(), windows).score) < 6.0


def test_a_new_mix_is_accepted_in_bounded_time() -> None:
    windows = calls(ROUNDS, 400.0)
    windows[150:] = calls(ROUNDS - 150, 400.0, USUAL[::-1])
    scores = fed(made(), windows).score
    assert (scores[150:170] > 6.0).all()
    assert np.abs(scores[200:]).max() < 6.0


def test_few_calls_wait_until_there_are_enough() -> None:
    mix = made()
    scores = fed(mix, calls(ROUNDS, 20.0))
    is_judged = np.isfinite(scores.divergence)
    assert 0.1 < is_judged.mean() < 0.25, "a hundred calls are about five windows"
    assert (is_judged == (scores.contributions != 0.0).any(axis=2)).all()


def test_two_calls_of_a_new_kind_among_few_are_silent() -> None:
    windows = calls(ROUNDS, 150.0)
    windows[200, :, 5] = 2.0
    assert np.nanmax(fed(made(), windows).score) < 6.0


def test_the_rate_holds_on_bursts_too() -> None:
    """Each call counts five times: G alone would be beside itself."""
    scores = fed(made(), 5.0 * calls(3000, 100.0)).score[500:]
    assert np.nanmean(scores > 3.0) <= 2e-3


def test_the_divergence_agrees_with_its_definition() -> None:
    mix = made()
    fed(mix, np.repeat(calls(1, 1000.0), 20, axis=0))
    now = calls(1, 1000.0, USUAL[::-1], seed=3)
    scores = fed(mix, now)
    usual = (scores.share[0] + 1e-3) / (1.0 + KINDS * 1e-3)
    share = now[0] / now[0].sum(axis=1, keepdims=True)
    middle = 0.5 * (usual + share)
    with np.errstate(divide="ignore", invalid="ignore"):
        parts_ = np.nan_to_num(share * np.log(share / middle)) + usual * np.log(usual / middle)
    np.testing.assert_allclose(scores.divergence[0], 0.5 * parts_.sum(axis=1), rtol=1e-9)


def test_a_cut_round_scores_the_same() -> None:
    windows = calls(ROUNDS, 60.0)
    whole, cut = made(), made()
    expected = fed(whole, windows)
    for number, window in enumerate(windows):
        for part in parts(POOLS, number):
            got = cut.score(Window(part, window[part]), np.ones(len(part), np.bool_))
            np.testing.assert_array_equal(got.score, expected.score[number, part])
    assert same_state(whole.export_state(), cut.export_state())


def test_a_restored_snapshot_goes_on_to_the_bit() -> None:
    windows = calls(ROUNDS, 60.0)
    mix, other = made(), Mix(kinds=KINDS)
    fed(mix, windows[:150])
    other.restore(mix.export_state())
    np.testing.assert_array_equal(fed(other, windows[150:]).score, fed(mix, windows[150:]).score)
    with pytest.raises(ValueError, match="another"):
        Mix(kinds=KINDS + 1).restore(mix.export_state())


def test_muted_time_teaches_nothing_and_a_forgotten_pool_is_new() -> None:
    mix = made()
    fed(mix, calls(100, 400.0))
    before = mix.export_state()
    mix.score(Window(np.arange(POOLS), calls(1, 400.0)[0]), np.zeros(POOLS, np.bool_))
    assert same_state(mix.export_state(), before)
    size = mix.nbytes
    mix.forget(np.arange(POOLS))
    assert same_state(mix.export_state(), made().export_state())
    assert mix.nbytes == size
