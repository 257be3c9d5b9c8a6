from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from pipeline.fold.key_rows import LAST_ROW, MAX_OVERFLOWS, NO_GROUP, KeyRows

EXPIRE_S = 100
MAX_KEYS = 3


def ask(rows: KeyRows, pairs: list[tuple[int, int]], second: int = 0) -> tuple[Any, int]:
    groups = np.array([group for group, _ in pairs], np.int64)
    keys = np.array([key for _, key in pairs], np.uint64)
    return rows.rows(groups, keys, second)


def held(rows: KeyRows) -> list[tuple[int, int]]:
    groups, keys = rows.keys(rows.held())
    return list(zip(groups.tolist(), keys.tolist(), strict=True))


def test_each_key_of_each_group_has_a_row_of_its_own() -> None:
    rows = KeyRows(8, EXPIRE_S)
    row, refused = ask(rows, [(0, 7), (1, 7), (0, 7), (-1, 7), (0, 2**64 - 1)])
    assert row[0] == row[2]
    assert len({*row.tolist()}) == 4
    assert LAST_ROW not in row
    assert refused == 0
    again, _ = ask(rows, [(0, 7)], second=5)
    assert again[0] == row[0]
    assert rows.size == 5
    assert len(rows) == 4


def test_rows_come_out_in_the_order_of_group_and_key() -> None:
    rows = KeyRows(8, EXPIRE_S)
    ask(rows, [(1, 7), (0, 2**63 + 1), (0, 7), (1, 3)])
    assert held(rows) == [(NO_GROUP, 0), (0, 7), (0, 2**63 + 1), (1, 3), (1, 7)]


def test_a_full_table_keeps_its_keys_and_new_ones_share_their_groups_overflow() -> None:
    rows = KeyRows(2, EXPIRE_S)
    first, _ = ask(rows, [(0, 5), (1, 5)])
    row, refused = ask(rows, [(0, 5), (0, 6), (0, 7), (1, 6), (1, 5), (0, 0)])
    assert refused == 3
    assert row[[0, 4]].tolist() == first.tolist()
    assert row[1] == row[2] == row[5]
    assert row[3] not in {row[1], LAST_ROW}
    assert held(rows) == [(NO_GROUP, 0), (0, 0), (0, 5), (1, 0), (1, 5)]
    again, refused = ask(rows, [(0, 6)])
    assert (again[0], refused) == (row[1], 1)


def test_requests_without_a_key_are_not_counted_as_refused() -> None:
    rows = KeyRows(2, EXPIRE_S)
    row, refused = ask(rows, [(0, 0), (NO_GROUP, 0)])
    assert refused == 0
    assert row[1] == LAST_ROW != row[0]
    assert len(rows) == 0


def test_a_key_that_is_not_heard_of_goes_and_its_row_serves_another() -> None:
    rows = KeyRows(1, EXPIRE_S)
    row, _ = ask(rows, [(0, 5)], second=10)
    rows.expire(10 + EXPIRE_S)
    assert (0, 5) in held(rows)
    rows.expire(11 + EXPIRE_S)
    assert held(rows) == [(NO_GROUP, 0)]
    other, refused = ask(rows, [(0, 6)], second=11 + EXPIRE_S)
    assert (other.tolist(), refused) == (row.tolist(), 0)
    assert rows.size == 2


def test_what_is_heard_of_keeps_its_row_and_the_last_row_never_goes() -> None:
    rows = KeyRows(4, EXPIRE_S)
    row, _ = ask(rows, [(0, 5), (0, 0)])
    for second in range(50, 1000, 50):
        ask(rows, [(0, 5)], second)
        rows.expire(second)
    assert held(rows) == [(NO_GROUP, 0), (0, 5)]
    assert ask(rows, [(0, 5)])[0] == row[0]


def test_groups_beyond_all_bounds_share_the_last_row() -> None:
    rows = KeyRows(1, EXPIRE_S)
    n = MAX_OVERFLOWS + 20
    pairs = [(group, 0) for group in range(n)]
    row, refused = ask(rows, pairs)
    assert refused == 0
    assert (row == LAST_ROW).sum() == 20
    assert rows.size == MAX_OVERFLOWS + 1
    assert ask(rows, [(0, 9)])[0] == MAX_OVERFLOWS + 1  # a key still finds its place


def test_no_rows_are_fine() -> None:
    rows = KeyRows(1, EXPIRE_S)
    row, refused = ask(rows, [])
    assert (len(row), refused) == (0, 0)


PAIR = st.tuples(st.integers(-1, 1), st.integers(0, 6))
STEPS = st.lists(
    st.tuples(st.sampled_from([0, 30, EXPIRE_S + 1]), st.lists(PAIR, max_size=8)), max_size=6
)


@given(STEPS, st.randoms(use_true_random=False))
def test_which_keys_are_kept_depends_neither_on_order_nor_on_anything_but_their_bounds(
    steps: list[tuple[int, list[tuple[int, int]]]], random: Any
) -> None:
    rows, shuffled = KeyRows(MAX_KEYS, EXPIRE_S), KeyRows(MAX_KEYS, EXPIRE_S)
    second = 0
    for wait_s, pairs in steps:
        second += wait_s
        other = list(pairs)
        random.shuffle(other)
        for table in (rows, shuffled):
            table.expire(second)
        row, refused = ask(rows, pairs, second)
        _, refused_of_other = ask(shuffled, other, second)
        assert held(rows) == held(shuffled)
        assert refused == refused_of_other
        assert len(rows) <= MAX_KEYS
        check(rows, row, pairs, refused)


def check(
    rows: KeyRows, row: npt.NDArray[np.int64], pairs: list[tuple[int, int]], refused: int
) -> None:
    """Every request is in its own row, or counted and in its group's overflow row."""
    groups, keys = rows.keys(row)
    found = list(zip(groups.tolist(), keys.tolist(), strict=True))
    lost = 0
    for pair, place in zip(pairs, found, strict=True):
        if place != pair:
            assert place == (pair[0], 0)
            lost += 1
    assert lost == refused
