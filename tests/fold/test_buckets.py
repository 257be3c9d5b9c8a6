from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.fold.buckets import BucketRing

LENGTH, ROWS, WIDTH = 8, 3, 2
ROW = st.tuples(
    st.integers(0, LENGTH - 1), st.integers(0, ROWS - 1), st.integers(0, 1), st.integers(1, 9)
)
STEPS = st.lists(st.tuples(st.integers(0, 5) | st.just(20), st.lists(ROW, max_size=6)), max_size=8)


def ring_of(dtype: Any) -> BucketRing[Any]:
    ring: BucketRing[Any] = BucketRing(LENGTH, WIDTH, dtype)
    ring.grow(ROWS)
    return ring


def total(added: list[tuple[int, int, int, int]], head: int, buckets: int) -> list[list[int]]:
    """[rows][width] by brute force."""
    sums = [[0] * WIDTH for _ in range(ROWS)]
    for bucket, row, column, amount in added:
        if head - buckets < bucket <= head:
            sums[row][column] += amount
    return sums


@given(STEPS, st.booleans())
def test_windows_are_the_sums_of_their_buckets_at_any_time(
    steps: list[tuple[int, list[tuple[int, int, int, int]]]], one_each: bool
) -> None:
    ring = ring_of(np.uint16 if one_each else np.int64)
    head = 100
    ring.advance(head)
    added: list[tuple[int, int, int, int]] = []
    for wait, rows in steps:
        head += wait
        ring.advance(head)
        placed = [(head - back, r, c, 1 if one_each else n) for back, r, c, n in rows]
        added += placed
        if placed:
            bucket, row, column, amount = (np.array(part) for part in zip(*placed, strict=True))
            spots = ring.spots(bucket, row, int(bucket.min()))
            if one_each:
                ring.count(spots, column.astype(np.int32))
            else:
                ring.add(spots, column.astype(np.int32), amount)
        for buckets in (1, 2, 5, LENGTH):
            assert ring.window(buckets).tolist() == total(added, head, buckets)
        expected = [row[1] for row in total(added, head, 3)]
        assert ring.column(3, 1).tolist() == expected


def test_a_bound_far_below_the_oldest_bucket_changes_nothing() -> None:
    near, far = ring_of(np.int64), ring_of(np.int64)
    bucket, row = np.array([7, 5, 7]), np.array([0, 0, 2])
    for ring, oldest in ((near, 5), (far, 0)):
        ring.advance(7)
        ring.window(2)
        ring.add(ring.spots(bucket, row, oldest), 1, 4)
    np.testing.assert_array_equal(near.window(2), far.window(2))
    assert near.window(2).tolist() == [[0, 4], [0, 0], [0, 4]]


def test_of_the_same_spots_some_can_count_more() -> None:
    ring = ring_of(np.int64)
    ring.advance(7)
    spots = ring.spots(np.array([7, 7, 6]), np.array([0, 1, 1]), 6)
    ring.add(spots, 0, 1)
    ring.add(spots.pick(np.array([0, 2])), 1, np.array([5, 6]))
    assert ring.window(2).tolist() == [[1, 5], [2, 6], [0, 0]]


@given(STEPS, st.integers(0, 2))
def test_a_ring_without_running_sums_gives_the_same_windows(
    steps: list[tuple[int, list[tuple[int, int, int, int]]]], max_windows: int
) -> None:
    ring: BucketRing[Any] = BucketRing(LENGTH, WIDTH, np.uint32, max_windows)
    ring.grow(ROWS)
    head = 100
    ring.advance(head)
    added: list[tuple[int, int, int, int]] = []
    for wait, rows in steps:
        head += wait
        ring.advance(head)
        placed = [(head - back, r, c, n) for back, r, c, n in rows]
        added += placed
        if placed:
            bucket, row, column, amount = (np.array(part) for part in zip(*placed, strict=True))
            spots = ring.spots(bucket, row, int(bucket.min()))
            ring.count(spots, column.astype(np.int32), amount)
        for buckets in (1, 2, 5, LENGTH):
            assert ring.window(buckets).tolist() == total(added, head, buckets)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(1, 9)), max_size=8),
    st.integers(1, LENGTH),
)
def test_whole_buckets_are_added_where_they_belong(
    steps: list[tuple[int, int, int]], buckets: int
) -> None:
    ring = ring_of(np.int64)
    head = 50
    ring.advance(head)
    added: list[tuple[int, int, int, int]] = []
    for wait, deep, amount in steps:
        head += wait
        ring.advance(head)
        ring.window(buckets)
        ring.add_newest(np.full((deep, ROWS - 1, WIDTH), amount))
        added += [
            (head - back, row, column, amount)
            for back in range(deep)
            for row in range(ROWS - 1)
            for column in range(WIDTH)
        ]
    assert ring.window(buckets).tolist() == total(added, head, buckets)


def test_a_cell_takes_of_several_what_it_has_room_for_and_counts_the_rest() -> None:
    ring: BucketRing[Any] = BucketRing(LENGTH, WIDTH, np.uint16)
    ring.grow(ROWS)
    ring.advance(7)
    ring.window(3)
    spots = ring.spots(np.array([7, 7, 6]), np.array([1, 1, 1]), 6)
    column = np.zeros(3, np.int32)
    ring.count(spots, column, np.array([40_000, 20_000, 5]))
    assert ring.full == 0
    ring.count(spots, column, np.array([3_000, 3_000, 5]))
    assert ring.full == 66_000 - 65_535
    assert ring.window(1)[1].tolist() == [65_535, 0]
    assert ring.window(3)[1].tolist() == [65_545, 0]
