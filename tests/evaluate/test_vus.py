"""VUS-PR against its definition, row by row."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.evaluate.events import runs
from pipeline.evaluate.vus import buffer_rows, vus_pr
from pipeline.model import Bools, Floats


def blurred(label: Bools, length: int) -> list[float]:
    """Labels with buffers of `length` // 2 rows on both sides."""
    weight = [0.0] * len(label)
    for first, last in zip(*(each.tolist() for each in runs(label)), strict=True):
        for i in range(len(label)):
            distance = max(first - i, i - last, 0)
            if distance <= length // 2:
                weight[i] += math.sqrt(1 - distance / length) if distance else 1.0
    return [min(each, 1.0) for each in weight]


def merged(label: Bools, side: int) -> list[tuple[int, int]]:
    """Segments with their buffers; those that meet are one."""
    found: list[tuple[int, int]] = []
    for first, last in zip(*(each.tolist() for each in runs(label)), strict=True):
        if found and found[-1][1] >= first - side:
            found[-1] = (found[-1][0], last + side)
        else:
            found.append((first - side, last + side))
    return found


def brute(score: Floats, label: Bools, longest: int, thresholds: int) -> float:
    ordered = sorted(score.tolist(), reverse=True)
    ranks = [int(each) for each in np.linspace(0, len(score) - 1, thresholds)]
    areas = []
    for length in range(longest + 1):
        weight, spans = blurred(label, length), merged(label, length // 2)
        area, before = 0.0, 0.0
        for rank in ranks:
            flag = score >= ordered[rank]
            true = sum(w for w, is_flagged in zip(weight, flag, strict=True) if is_flagged)
            core = int((flag & label).sum())
            positives = (label.sum() + label.sum() + true - core) / 2
            touched = sum(bool(flag[max(a, 0) : b + 1].any()) for a, b in spans) / len(spans)
            recall = min(true / positives, 1.0) * touched
            area += (recall - before) * true / flag.sum()
            before = recall
        areas.append(area)
    return sum(areas) / len(areas)


@st.composite
def scored(draw: st.DrawFn) -> tuple[Floats, Bools]:
    n = draw(st.integers(1, 40))
    label = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    label[draw(st.integers(0, n - 1))] = True
    score = draw(st.lists(st.integers(0, 6), min_size=n, max_size=n))
    return np.array(score, np.float64), label


@given(scored(), st.integers(0, 12), st.sampled_from([2, 7, 250]))
def test_the_area_is_that_of_the_definition(
    curve: tuple[Floats, Bools], longest: int, thresholds: int
) -> None:
    score, label = curve
    expected = brute(score, label, longest, thresholds)
    assert vus_pr(score, label, longest, thresholds) == pytest.approx(expected, abs=1e-9)


@given(scored(), st.integers(0, 12))
def test_it_lies_within_0_and_1_and_depends_on_the_order_of_scores_only(
    curve: tuple[Floats, Bools], longest: int
) -> None:
    score, label = curve
    found = vus_pr(score, label, longest)
    assert 0.0 <= found <= 1.0 + 1e-9
    assert vus_pr(np.exp(score), label, longest) == found


def test_scores_that_are_the_labels_are_perfect_without_buffers() -> None:
    label = np.zeros(1000, np.bool_)
    label[100:120] = label[700:705] = True
    assert vus_pr(label.astype(np.float64), label, 0) == pytest.approx(1.0)


def test_a_near_miss_is_worth_something_only_within_the_buffers() -> None:
    label = np.zeros(1000, np.bool_)
    label[500:510] = True
    late = np.roll(label, 15).astype(np.float64)
    assert vus_pr(late, label, 0) < 0.02
    assert vus_pr(late, label, 100) > 0.3


def test_curves_without_a_label_have_no_area_and_unknown_scores_come_last() -> None:
    score = np.array([np.nan, 1.0, 2.0, np.nan])
    assert math.isnan(vus_pr(score, np.zeros(4, np.bool_), 4))
    assert vus_pr(score, np.array([False, False, True, False]), 0) == pytest.approx(1.0)


def test_a_day_is_the_longest_buffer_up_to_400_rows() -> None:
    assert [buffer_rows(step_s) for step_s in (300.0, 60.0, 3600.0, 0.0)] == [288, 400, 24, 0]
