import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.fold.amounts import ONE, fixed_point, sums, weighted_tokens, whole_requests

CELLS = 4


@given(st.lists(st.tuples(st.integers(0, CELLS - 1), st.integers(0, 2**58)), max_size=12))
def test_sums_are_exact_for_small_amounts_and_for_those_beyond_what_floats_hold(
    rows: list[tuple[int, int]],
) -> None:
    expected = [sum(amount for cell, amount in rows if cell == i) for i in range(CELLS)]
    cell = np.array([cell for cell, _ in rows], np.int64)
    amount = np.array([amount for _, amount in rows], np.int64)
    assert sums(cell, amount, CELLS).tolist() == expected
    small = amount % 2**49
    expected = [sum(small[cell == i].tolist()) for i in range(CELLS)]
    assert sums(cell, small.astype(np.float64), CELLS).tolist() == expected
    assert sums(cell, 7, CELLS).tolist() == (7 * np.bincount(cell, minlength=CELLS)).tolist()


def test_absurd_weights_and_tokens_are_bounded() -> None:
    weight = fixed_point(np.array([-1.0, 1e9, 1.0]))
    assert isinstance(weight, np.ndarray)
    assert weight.tolist() == [0, 10_000 * ONE, ONE]
    assert whole_requests(weight).tolist() == [1, 10_000, 1]  # type: ignore[union-attr]
    tokens = weighted_tokens(np.array([-5.0, 1e300, 3.0]), ONE)
    assert tokens.tolist() == [0, 1e7 * ONE, 3 * ONE]
