import math
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from ddsketch import DDSketch
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint

from pipeline.fold.sketch import ExponentialHistograms, LogBuckets

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


# merging

COUNTS = st.lists(st.integers(0, 2**40), min_size=12, max_size=12).map(np.array)
FEW = LogBuckets(0.3, 0.01, 10.0)


@given(COUNTS, COUNTS, COUNTS)
def test_merging_is_associative_and_commutative_and_has_a_neutral_element(
    a: Any, b: Any, c: Any
) -> None:
    assert FEW.n == 12
    merge = FEW.merge
    np.testing.assert_array_equal(merge(merge(a, b), c), merge(a, merge(b, c)))
    np.testing.assert_array_equal(merge(a, b, c), merge(c, a, b))
    np.testing.assert_array_equal(merge(a, merge()), a)


@given(VALUES, VALUES)
def test_a_merged_sketch_has_the_quantiles_of_everything_together(
    left: list[float], right: list[float]
) -> None:
    merged = BUCKETS.merge(counts_of(left), counts_of(right))
    exact = np.quantile(left + right, QUANTILES, method="lower")
    np.testing.assert_allclose(BUCKETS.quantiles(merged, QUANTILES)[:, 0], exact, rtol=0.0100001)


@pytest.mark.parametrize("other", [np.zeros(3, np.int64), np.zeros((2, 12), np.int64)])
def test_counts_of_other_buckets_are_not_merged(other: Any) -> None:
    with pytest.raises(ValueError, match="are not of these 12 buckets"):
        FEW.merge(np.zeros(12, np.int64), other)


# exponential buckets and leaving as exponential histograms

EXPONENTIAL = LogBuckets(0.05, 1e-4, 3600.0, is_exponential=True)
PLAIN = LogBuckets(0.055, 1e-3, 600.0)
LATENCIES = st.lists(st.floats(1.1e-3, 590.0), min_size=1, max_size=60)


def points_of(histograms: ExponentialHistograms) -> list[ExponentialHistogramDataPoint]:
    """Through the wire and back."""
    points = []
    for row in range(len(histograms.count)):
        at = slice(histograms.starts[row], histograms.starts[row + 1])
        point = ExponentialHistogramDataPoint(
            count=int(histograms.count[row]),
            sum=float(histograms.sum[row]),
            scale=histograms.scale,
            zero_count=int(histograms.zero_count[row]),
            zero_threshold=histograms.zero_threshold,
            positive=ExponentialHistogramDataPoint.Buckets(
                offset=int(histograms.offset[row]), bucket_counts=histograms.counts[at].tolist()
            ),
        )
        points.append(ExponentialHistogramDataPoint.FromString(point.SerializeToString()))
    return points


def borders_of(point: ExponentialHistogramDataPoint) -> list[tuple[float, float, int]]:
    """(above, up to, how many) of each bucket, as the data model defines them."""
    base = 2.0 ** (2.0**-point.scale)
    first = point.positive.offset
    return [
        (base ** (first + i), base ** (first + i + 1), count)
        for i, count in enumerate(point.positive.bucket_counts)
    ]


def quantile_of(point: ExponentialHistogramDataPoint, q: float) -> float:
    """As a reader of the data model finds it: the value in the middle of the bucket's error."""
    rank = math.floor(q * (point.count - 1))
    seen = point.zero_count
    if rank < seen:
        return point.zero_threshold
    for above, up_to, count in borders_of(point):
        seen += count
        if rank < seen:
            return 2 * above * up_to / (above + up_to)
    raise AssertionError("the counts do not add up")


def leave(buckets: LogBuckets, *rows: list[float]) -> list[ExponentialHistogramDataPoint]:
    counts = [np.bincount(buckets.index(np.array(row)), minlength=buckets.n) for row in rows]
    sums = np.array([math.fsum(row) for row in rows])
    return points_of(buckets.exponential(np.array(counts), sums))


@given(LATENCIES, st.sampled_from(QUANTILES))
def test_an_exponential_histogram_has_the_quantiles_of_numpy_within_the_sketchs_error(
    values: list[float], q: float
) -> None:
    (point,) = leave(EXPONENTIAL, values)
    exact = np.quantile(values, q, method="lower")
    assert quantile_of(point, q) == pytest.approx(exact, rel=0.05)
    assert point.scale == 3
    assert point.count == len(values)
    assert point.sum == math.fsum(values)


@given(LATENCIES, st.sampled_from(QUANTILES))
def test_a_sketch_of_other_buckets_leaves_with_a_tenth_more_error(
    values: list[float], q: float
) -> None:
    (point,) = leave(PLAIN, values)
    exact = np.quantile(values, q, method="lower")
    assert quantile_of(point, q) == pytest.approx(exact, rel=0.055 * 1.11)
    assert point.count == len(values)


@given(LATENCIES)
def test_each_value_lies_in_a_bucket_of_the_histogram_that_holds_it(values: list[float]) -> None:
    (point,) = leave(EXPONENTIAL, values)
    for above, up_to, count in borders_of(point):
        slack = 1e-12  # powers of the base are rounded
        assert sum(above * (1 + slack) < v <= up_to * (1 - slack) for v in values) <= count
        assert sum(above * (1 - slack) < v <= up_to * (1 + slack) for v in values) >= count


@given(LATENCIES)
def test_an_exponential_histogram_agrees_with_the_ddsketch_package(values: list[float]) -> None:
    (point,) = leave(EXPONENTIAL, values)
    oracle = DDSketch(0.05)
    for value in values:
        oracle.add(value)
    for q in QUANTILES:
        expected: Any = oracle.get_quantile_value(q)
        assert quantile_of(point, q) == pytest.approx(expected, rel=0.11)


def test_powers_of_two_are_the_upper_ends_of_their_buckets() -> None:
    for power in range(-9, 10):
        (point,) = leave(EXPONENTIAL, [2.0**power])
        assert point.positive.offset == power * 8 - 1
        assert list(point.positive.bucket_counts) == [1]


def test_values_below_the_range_are_the_histograms_zeros_and_empty_ends_are_cut() -> None:
    low, empty, wide = leave(EXPONENTIAL, [0.0, 1e-5, 1.0], [], [0.5, 64.0, 64.0])
    assert low.zero_count == 2
    assert 1e-4 <= low.zero_threshold <= 1.1e-4
    assert low.count == 3
    assert (empty.count, empty.zero_count, len(empty.positive.bucket_counts)) == (0, 0, 0)
    assert list(wide.positive.bucket_counts) == [1, *[0] * 55, 2]


@pytest.mark.parametrize("buckets", [EXPONENTIAL, PLAIN])
def test_leaving_loses_no_count_whatever_is_in_the_buckets(buckets: LogBuckets) -> None:
    counts = np.arange(2 * buckets.n).reshape(2, -1)
    left = buckets.exponential(counts, np.zeros(2))
    assert left.count.tolist() == counts.sum(axis=1).tolist()
    for row in range(2):
        kept = left.counts[left.starts[row] : left.starts[row + 1]]
        assert kept[kept > 0].tolist() == counts[row, 1:].tolist()
        assert left.zero_count[row] == counts[row, 0]


@pytest.mark.parametrize("error", [0.005, 0.02, 0.05, 0.2])
def test_exponential_buckets_are_the_widest_within_the_error(error: float) -> None:
    buckets = LogBuckets(error, 1e-3, 600.0, is_exponential=True)
    base = 2.0 ** (2.0**-buckets.scale)
    assert (base - 1) / (base + 1) <= error < (base**2 - 1) / (base**2 + 1)
    assert buckets.index(buckets.values).tolist() == list(range(buckets.n))


def test_no_rows_leave_as_no_points() -> None:
    assert points_of(EXPONENTIAL.exponential(np.zeros((0, EXPONENTIAL.n), int), np.zeros(0))) == []
