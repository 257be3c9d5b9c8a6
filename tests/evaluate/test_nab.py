"""NAB's scorer: the published vectors, a brute force, and the controls on the given files."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.evaluate.nab import PROFILES, Corpus, Profile, Result, row_weights
from pipeline.evaluate.naive import blind, difference, expanding_z, one_liner
from pipeline.evaluate.sets import Curve
from pipeline.model import Floats, Int64s
from tests.evaluate.curves import curve

STANDARD = PROFILES[0]
HAND = curve(np.zeros(1000), windows=[(500, 599)])


@pytest.mark.parametrize(
    ("row", "weight"),
    [(500, 1.0), (549, 0.86675), (599, 0.02533)],
)
def test_a_hit_is_worth_more_the_earlier_it_is_in_its_window(row: int, weight: float) -> None:
    weights, window = row_weights(1000, HAND.windows)
    assert weights[row] == pytest.approx(weight, abs=5e-6)
    assert window[row] == 0
    assert fire(row).raw == pytest.approx(weight, abs=5e-6)


@pytest.mark.parametrize(
    ("row", "cost"),
    [(499, -0.11), (600, -0.00278), (624, -0.06149), (700, -0.10867), (896, -0.11)],
)
def test_a_false_row_costs_less_the_closer_it_follows_a_window(row: int, cost: float) -> None:
    assert fire(row).raw == pytest.approx(cost - STANDARD.miss, abs=5e-6)
    assert fire(row).false_rows == 1


def fire(*rows: int) -> Result:
    score = np.zeros(1000)
    score[list(rows)] = 1.0
    return Corpus([HAND]).at([score], 0.5, STANDARD)


def test_rows_on_probation_count_for_nothing() -> None:
    assert fire(149).false_rows == 0
    assert fire(150).false_rows == 1
    late = curve(np.zeros(10_000))
    score = np.zeros(10_000)
    score[[749, 750]] = 1.0
    assert Corpus([late]).at([score], 0.5, STANDARD).false_rows == 1


def test_a_window_of_one_row_is_hit_by_it_and_shadows_nothing() -> None:
    weight, _ = row_weights(100, np.array([[50, 50]]))
    assert (weight[50], weight[49]) == (pytest.approx(1.0), -1.0)
    assert weight[54] == -1.0


def test_scores_that_are_not_known_are_never_detected_and_infinite_ones_are() -> None:
    score = np.full(1000, np.nan)
    score[500] = np.inf
    best = Corpus([HAND]).best([score], STANDARD)
    assert (best.value, best.hit_windows, best.false_rows) == (100.0, 1, 0)
    assert math.isfinite(best.threshold)


def test_equal_scores_enter_together() -> None:
    score = np.zeros(1000)
    score[500] = score[200:220] = 1.0
    best = Corpus([HAND]).best([score], STANDARD)
    assert (best.threshold, best.hit_windows, best.false_rows) == (math.inf, 0, 0)


def brute(curves: list[Curve], scores: list[Floats], threshold: float, profile: Profile) -> float:
    """The definition, row by row."""

    def shape(x: float) -> float:
        return 2 / (1 + math.exp(5 * x)) - 1 if x <= 3 else -1.0

    raw, windows = 0.0, 0
    for each, score in zip(curves, scores, strict=True):
        best: dict[int, float] = {}
        for i in range(each.n):
            if i < min(int(0.15 * each.n), 750) or score[i] < threshold:
                continue
            ended = [(b, a) for a, b in each.windows.tolist() if b < i]
            held = [k for k, (a, b) in enumerate(each.windows.tolist()) if a <= i <= b]
            if held:
                a, b = each.windows[held[0]].tolist()
                weight = shape(-(b - i + 1) / (b - a + 1)) / shape(-1)
                best[held[0]] = max(best.get(held[0], 0.0), weight)
            elif ended:
                b, a = max(ended)
                raw += profile.false * shape((i - b) / (b - a))
            else:
                raw -= profile.false
        windows += len(each.windows)
        raw += profile.hit * sum(best.values()) - profile.miss * (len(each.windows) - len(best))
    return raw


@st.composite
def corpora(draw: st.DrawFn) -> tuple[list[Curve], list[Floats]]:
    curves, scores = [], []
    for category in draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=4)):
        n = draw(st.integers(10, 40))
        bounds = sorted(draw(st.sets(st.integers(0, n - 1), max_size=6)))
        pairs = [(a, b) for a, b in zip(bounds[0::2], bounds[1::2], strict=False) if a < b]
        curves.append(curve(np.zeros(n), windows=pairs, category=category))
        values = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 7.0])
        scores.append(np.array(draw(st.lists(values, min_size=n, max_size=n))))
    return curves, scores


def candidates(scores: list[Floats]) -> list[float]:
    return [math.inf, *np.unique(np.concatenate(scores)).tolist()]


@given(corpora(), st.sampled_from(PROFILES))
def test_scores_equal_those_of_the_definition_at_every_threshold(
    corpus: tuple[list[Curve], list[Floats]], profile: Profile
) -> None:
    curves, scores = corpus
    for threshold in candidates(scores):
        expected = brute(curves, scores, threshold, profile)
        assert Corpus(curves).at(scores, threshold, profile).raw == pytest.approx(expected)


@given(corpora(), st.sampled_from(PROFILES))
def test_the_best_threshold_is_as_good_as_the_best_by_brute_force(
    corpus: tuple[list[Curve], list[Floats]], profile: Profile
) -> None:
    curves, scores = corpus
    best = max(brute(curves, scores, each, profile) for each in candidates(scores))
    found = Corpus(curves).best(scores, profile)
    assert found.raw == pytest.approx(best)
    assert brute(curves, scores, found.threshold, profile) == pytest.approx(best)


@given(corpora(), st.sampled_from(PROFILES))
def test_a_category_left_out_is_scored_at_the_best_threshold_of_the_others(
    corpus: tuple[list[Curve], list[Floats]], profile: Profile
) -> None:
    curves, scores = corpus
    raw = 0.0
    for category in {each.category for each in curves}:
        parts: list[tuple[list[Curve], list[Floats]]] = [([], []), ([], [])]
        for each, score in zip(curves, scores, strict=True):
            own, values = parts[each.category == category]
            own.append(each)
            values.append(score)
        (others, other_scores), (mine, my_scores) = parts
        threshold = math.inf
        if others:
            threshold = Corpus(others).best(other_scores, profile).threshold
        raw += brute(mine, my_scores, threshold, profile)
    assert Corpus(curves).left_out(scores, profile).raw == pytest.approx(raw)


def values(corpus: Corpus, scores: list[Floats]) -> list[float]:
    return [corpus.best(scores, profile).value for profile in PROFILES]


def columns(curves: list[Curve], control: Callable[[Floats], Floats]) -> list[Floats]:
    return [control(each.value)[:, 0] for each in curves]


def marked(curves: list[Curve], rows: Callable[[Curve], Int64s]) -> list[Floats]:
    scores = [np.zeros(each.n) for each in curves]
    for score, each in zip(scores, curves, strict=True):
        score[rows(each)] = 1.0
    return scores


def test_nothing_and_the_first_row_of_every_window_are_the_ends_of_the_scale(
    given_nab: list[Curve],
) -> None:
    corpus = Corpus(given_nab)
    nothing = [np.zeros(each.n) for each in given_nab]
    firsts = marked(given_nab, lambda each: each.windows[:, 0])
    for profile in PROFILES:
        assert corpus.at(nothing, 0.5, profile).value == 0.0
        assert corpus.at(firsts, 0.5, profile).value == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("late", "standard", "low_fp", "low_fn"),
    [
        (0, 92.71, 92.71, 95.14),
        (1, 92.30, 92.30, 94.87),
        (12, 84.31, 84.31, 88.91),
        (24, 69.75, 69.43, 74.80),
    ],
)
def test_firing_at_the_labels_scores_the_causal_ceiling(
    given_nab: list[Curve], late: int, standard: float, low_fp: float, low_fn: float
) -> None:
    """One label lies so close to its file's end that there is no row left to be late at."""
    scores = marked(given_nab, lambda c: c.instants[c.instants + late < c.n] + late)
    found = values(Corpus(given_nab), scores)
    assert found == pytest.approx([standard, low_fp, low_fn], abs=0.01)


@pytest.mark.parametrize(
    ("control", "expected"),
    [
        (blind, [16.26, 0.00, 37.25]),
        (one_liner, [55.21, 50.85, 58.19]),
        (expanding_z, [37.70, 32.72, 40.86]),
        (lambda value: expanding_z(difference(value)), [31.48, 18.01, 42.89]),
    ],
    ids=["blind", "one-liner", "expanding z", "expanding z of difference"],
)
def test_controls_score_as_published_on_the_given_files(
    given_nab: list[Curve], control: Callable[[Floats], Floats], expected: list[float]
) -> None:
    scores = columns(given_nab, control)
    assert values(Corpus(given_nab), scores) == pytest.approx(expected, abs=0.01)


def test_the_one_liner_hits_34_of_53_windows_with_42_false_rows(given_nab: list[Curve]) -> None:
    corpus, scores = Corpus(given_nab), columns(given_nab, one_liner)
    best = corpus.best(scores, STANDARD)
    assert best.threshold == pytest.approx(0.008457, abs=1e-6)
    assert (best.hit_windows, best.false_rows) == (34, 42)
    assert best.raw == pytest.approx(5.5215, abs=1e-4)
    assert corpus.left_out(scores, STANDARD).value == pytest.approx(53.7, abs=0.06)
