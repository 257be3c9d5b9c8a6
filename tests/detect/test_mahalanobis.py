"""Many signals of one endpoint: how unusual, and which of them."""

from typing import Any

import numpy as np
import pytest

from pipeline.detect.mahalanobis import Mahalanobis, Vectors, VectorScores
from pipeline.model import Bools, Floats
from tests.detect.feed import INTERVAL_S, START_S, parts, same_state

M, N, ROUNDS = 8, 12, 500


def made(n: int = N, m: int = M, **settings: Any) -> Mahalanobis:
    detector = Mahalanobis(signals=m, **settings)
    detector.resize(n)
    return detector


def correlated(rounds: int, n: int = N, m: int = M, seed: int = 1) -> Floats:
    """float64[rounds, n, m]: half of every signal's variance is the endpoint's load."""
    random = np.random.default_rng(seed)
    load = random.normal(size=(rounds, n, 1))
    values: Floats = 50.0 + (load + random.normal(size=(rounds, n, m))) / np.sqrt(2.0)
    return values


def fed(
    detector: Mahalanobis, values: Floats, first: int = 0, learn: Bools | None = None
) -> VectorScores:
    """Columns with a leading axis of rounds."""
    n = values.shape[1]
    mask = np.ones(n, np.bool_) if learn is None else learn
    found = [
        detector.score(
            Vectors(np.arange(n), np.full(n, START_S + (first + i) * INTERVAL_S), value), mask
        )
        for i, value in enumerate(values)
    ]
    return VectorScores(*(np.stack(column) for column in zip(*found, strict=True)))


def same(a: VectorScores, b: VectorScores) -> None:
    for left, right in zip(a, b, strict=True):
        np.testing.assert_array_equal(left, right)


def test_contributions_add_up_to_the_distance() -> None:
    scores = fed(made(), correlated(ROUNDS))
    np.testing.assert_allclose(scores.contributions.sum(axis=2), scores.distance, rtol=1e-9)
    assert (scores.distance[200:] > 0.0).all()


@pytest.mark.parametrize("is_difference", [True, False])
def test_the_injected_culprit_ranks_first(is_difference: bool) -> None:
    values = correlated(ROUNDS)
    values[400, 5, 3] += 30.0
    values[400, 7, 6] -= 30.0
    scores = fed(made(is_difference=is_difference), values)
    assert (scores.score[400, [5, 7]] > 5.0).all()
    assert scores.contributions[400, [5, 7]].argmax(axis=1).tolist() == [3, 6]
    others = np.delete(scores.score[400], [5, 7])
    assert (others < 4.0).all()


def test_a_broken_correlation_shows_though_each_signal_is_usual() -> None:
    """Two that always move together move apart, by two sigma each."""
    random = np.random.default_rng(3)
    values = random.normal(size=(1500, N, M))
    values[:, :, 1] = values[:, :, 0] + 0.05 * random.normal(size=(1500, N))
    quiet = values.copy()
    values[1400, :, 0], values[1400, :, 1] = 2.0, -2.0
    quiet[1400, :, 0], quiet[1400, :, 1] = 2.0, 2.0
    apart, joint = (
        np.median(fed(made(is_difference=False, shrinkage=0.1), each).distance[1400])
        for each in (values, quiet)
    )
    assert apart > joint + 10.0


def test_a_move_of_all_together_is_less_unusual_than_of_as_many_apart() -> None:
    values = correlated(ROUNDS)
    signs = (-1.0) ** np.arange(M)
    together, apart = values.copy(), values.copy()
    together[450] += 3.0
    apart[450] += 3.0 * signs
    first, second = (np.median(fed(made(), each).distance[450]) for each in (together, apart))
    assert second > 1.5 * first


def test_the_inverse_is_the_inverse_of_the_shrunk_correlation() -> None:
    detector = made(shrinkage=0.3, refresh=1.0)
    fed(detector, correlated(ROUNDS))
    state = detector.export_state()
    for endpoint in range(N):
        learned = state["correlation"][:, endpoint].astype(np.float64)
        root = np.sqrt(np.diagonal(learned))
        shrunk = 0.7 * learned / np.outer(root, root)
        np.fill_diagonal(shrunk, 1.0)
        expected = np.linalg.inv(shrunk)
        np.testing.assert_allclose(state["inverse"][:, endpoint], expected, atol=1e-4)


def test_scores_hold_their_rate_on_noise() -> None:
    scores = fed(made(100), correlated(1500, 100)).score[700:]
    assert (scores > 3.0).mean() <= 2e-3


def test_missing_signals_neither_score_nor_teach() -> None:
    values = correlated(ROUNDS)
    values[300:350, :, 2] = np.nan
    values[:, :, 5] = np.nan
    scores = fed(made(), values)
    assert np.isfinite(scores.score[200:]).all()
    assert (scores.contributions[300:350, :, 2] == 0.0).all()
    assert (scores.z[:, :, 5] == 0.0).all()
    assert scores.score[340:].max() < 8.0


def test_constants_and_their_last_bit_are_no_anomaly() -> None:
    values = np.full((ROUNDS, N, M), 1234.5)
    values[400:, ::2] = np.nextafter(1234.5, 2e3)
    assert np.nanmax(fed(made(), values).score) <= 0.3


def test_a_floor_of_the_unit_keeps_small_changes_quiet() -> None:
    values = np.zeros((ROUNDS, N, M))
    values[400:, :, 1] = 0.5
    detector = made()
    detector.set_floor(np.arange(N), np.ones(M))
    assert np.nanmax(fed(detector, values).score) <= 0.3


def test_no_difference_is_taken_across_a_gap() -> None:
    values = correlated(ROUNDS)
    values[400:] += 100.0
    detector = made()
    fed(detector, values[:400])
    after = fed(detector, values[400:], first=10_000)
    assert np.nanmax(after.score) < 6.0


def test_a_cut_round_and_another_order_score_the_same() -> None:
    values = correlated(ROUNDS)
    whole, cut = made(), made()
    expected = fed(whole, values)
    for number, value in enumerate(values):
        for part in parts(N, number):
            times = np.full(len(part), START_S + number * INTERVAL_S)
            got = cut.score(Vectors(part, times, value[part]), np.ones(len(part), np.bool_))
            for left, right in zip(got, expected, strict=True):
                np.testing.assert_array_equal(left, right[number, part])
    assert same_state(whole.export_state(), cut.export_state())
    order = np.random.default_rng(5).permutation(N)
    moved = fed(made(), values[:, order])
    np.testing.assert_array_equal(moved.score, expected.score[:, order])


def test_a_restored_snapshot_goes_on_to_the_bit() -> None:
    values = correlated(ROUNDS)
    detector, other = made(), Mahalanobis(signals=M)
    fed(detector, values[:250])
    state = detector.export_state()
    expected = fed(detector, values[250:], first=250)
    other.restore(state)
    same(fed(other, values[250:], first=250), expected)
    for wrong in ({}, {**state, "inverse": state["inverse"][:-1]}, {**state, "lines": None}):
        with pytest.raises(ValueError, match=r"."):
            other.restore(wrong)


def test_muted_time_teaches_nothing_and_a_forgotten_endpoint_is_new() -> None:
    values = correlated(ROUNDS)
    detector = made()
    fed(detector, values[:300])
    before = detector.export_state()
    fed(detector, values[300:] + 1e6, first=300, learn=np.zeros(N, np.bool_))
    assert same_state(detector.export_state(), before)
    detector.forget(np.arange(N))
    assert same_state(detector.export_state(), made().export_state())


def test_memory_grows_with_endpoints_and_the_square_of_signals() -> None:
    detector = made(10, 20)
    before = detector.nbytes
    assert before / 10 <= 8 * (11 + 12 * 20) + 2 * 4 * 20 * 20
    fed(detector, correlated(50, 10, 20))
    assert detector.nbytes == before
    detector.resize(20)
    assert detector.nbytes == 2 * before
