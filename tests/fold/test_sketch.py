from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from ddsketch import DDSketch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.fold.sketch import LogBuckets

LOWEST, HIGHEST = 1e-6, 1e5
BUCKETS = LogBuckets(0.01, LOWEST, HIGHEST)
VALUES = st.lists(st.floats(LOWEST, HIGHEST), min_size=1, max_size=200)
QUANTILES = (0.0, 0.5, 0.9, 0.99, 1.0)


def counts_of(*rows: list[float]) -> npt.NDArray[np.int64]:
    """[rows, buckets] counts, a row a list of values."""
    return np.array([np.bincount(BUCKETS.index(np.array(r)), minlength=BUCKETS.n) for r in rows])


def quantile(values: list[float], q: float) -> float:
    return float(BUCKETS.quantiles(counts_of(values), (q,))[0, 0])


@given(VALUES, st.floats(0.0, 1.0))
def test_quantiles_are_within_the_relative_error_of_numpys(values: list[float], q: float) -> None:
    exact = np.quantile(values, q, method="lower")
    assert quantile(values, q) == pytest.approx(exact, rel=0.0100001)


@given(VALUES)
def test_quantiles_agree_with_the_ddsketch_package(values: list[float]) -> None:
    oracle = DDSketch(0.01)
    for value in values:
        oracle.add(value)
    for q in QUANTILES:
        expected: Any = oracle.get_quantile_value(q)
        assert quantile(values, q) == pytest.approx(expected, rel=0.0201)


@given(VALUES, VALUES)
def test_adding_counts_equals_counting_everything_together(
    left: list[float], right: list[float]
) -> None:
    np.testing.assert_array_equal(counts_of(left) + counts_of(right), counts_of(left + right))


def test_values_outside_the_range_go_to_its_ends() -> None:
    index = BUCKETS.index(np.array([0.0, -1.0, 1e-9, 1e9, np.inf]))
    assert index.tolist() == [0, 0, 0, BUCKETS.n - 1, BUCKETS.n - 1]


def test_rows_are_apart_and_a_row_without_samples_has_no_quantile() -> None:
    counts = counts_of([1.0], [2.0, 3.0])
    counts = np.insert(counts, 1, 0, axis=0)
    median, highest = BUCKETS.quantiles(counts, (0.5, 1.0))
    assert median[[0, 2]] == pytest.approx([1.0, 2.0], rel=0.01)
    assert highest[[0, 2]] == pytest.approx([1.0, 3.0], rel=0.01)
    assert np.isnan(median[1])
    assert np.isnan(highest[1])


def test_no_rows_and_no_values_are_fine() -> None:
    assert BUCKETS.index(np.zeros(0)).shape == (0,)
    assert BUCKETS.quantiles(np.zeros((0, BUCKETS.n), np.int64), (0.5,)).shape == (1, 0)


@given(st.floats(0.005, 0.3))
def test_neighbouring_buckets_meet_for_every_error(relative_error: float) -> None:
    buckets = LogBuckets(relative_error, 1e-3, 600.0)
    index = buckets.index(buckets.values)
    assert index.tolist() == list(range(buckets.n))
    assert all(low < high for low, high in pairwise(buckets.values.tolist()))
