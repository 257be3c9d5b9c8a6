from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from ddsketch import DDSketch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.fold.sketch import HIGHEST, LOWEST, LogBuckets, LogSketch

VALUES = st.lists(st.floats(LOWEST, HIGHEST), min_size=1, max_size=200)
QUANTILES = (0.0, 0.5, 0.9, 0.99, 1.0)


def sketch_of(values: list[float]) -> LogSketch:
    sketch = LogSketch(1)
    sketch.add(np.array(values), np.zeros(len(values), np.intp))
    return sketch


@given(VALUES, st.floats(0.0, 1.0))
def test_quantiles_are_within_the_relative_error_of_numpys(values: list[float], q: float) -> None:
    exact = np.quantile(values, q, method="lower")
    assert sketch_of(values).quantile(q)[0] == pytest.approx(exact, rel=0.0100001)


@given(VALUES)
def test_quantiles_agree_with_the_ddsketch_package(values: list[float]) -> None:
    oracle = DDSketch(0.01)
    for value in values:
        oracle.add(value)
    for q in QUANTILES:
        expected: Any = oracle.get_quantile_value(q)
        assert sketch_of(values).quantile(q)[0] == pytest.approx(expected, rel=0.0201)


@given(VALUES, VALUES)
def test_merging_equals_adding_everything_to_one_in_any_order(
    left: list[float], right: list[float]
) -> None:
    merged = sketch_of(right)
    merged.merge(sketch_of(left))
    np.testing.assert_array_equal(merged.counts, sketch_of(left + right).counts)


def test_values_outside_the_range_go_to_its_ends_and_nan_nowhere() -> None:
    sketch = sketch_of([0.0, -1.0, 1e-9, 1e9, np.inf, np.nan])
    assert sketch.total().tolist() == [5]
    assert sketch.counts[0, 0] == 3
    assert sketch.counts[0, -1] == 2


def test_rows_are_apart_and_a_row_without_samples_has_no_quantile() -> None:
    sketch = LogSketch(3)
    sketch.add(np.array([1.0, 2.0, 3.0]), np.array([0, 2, 2]))
    median = sketch.quantile(0.5)
    assert median[0] == pytest.approx(1.0, rel=0.01)
    assert np.isnan(median[1])
    assert median[2] == pytest.approx(2.0, rel=0.01)


def test_no_rows_and_no_values_are_fine() -> None:
    sketch = LogSketch(0)
    sketch.add(np.zeros(0), np.zeros(0, np.intp))
    assert sketch.quantile(0.5).shape == (0,)


@given(st.floats(0.005, 0.3))
def test_neighbouring_buckets_meet_for_every_error(relative_error: float) -> None:
    buckets = LogBuckets(relative_error, 1e-3, 600.0)
    index = buckets.index(buckets.values)
    assert index.tolist() == list(range(buckets.n))
    assert all(low < high for low, high in pairwise(buckets.values.tolist()))
