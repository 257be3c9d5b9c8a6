import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from pipeline.normalise.among import _FACTORS, among

IDS = st.lists(st.integers(1, 2**64 - 1) | st.integers(1, 20), max_size=60)


def ids(values: list[int]) -> npt.NDArray[np.uint64]:
    return np.array(values, np.uint64)


@given(IDS, IDS)
def test_it_finds_what_sorting_finds(left: list[int], right: list[int]) -> None:
    expected = [value in set(right) for value in left]
    assert among(ids(left), ids(right)).tolist() == expected
    assert among(ids(left + right), ids(right)).tolist() == expected + [True] * len(right)


def test_ids_made_to_share_their_place_in_every_table_are_found_all_the_same() -> None:
    drawn = np.random.default_rng(5).integers(1, 2**63, 2_000_000).astype(np.uint64)
    places = [(drawn * factor) >> np.uint64(64 - 6) for factor in _FACTORS]
    together = places[0] * np.uint64(4096) + places[1] * np.uint64(64) + places[2]
    alike = drawn[together == np.bincount(together.astype(np.int64)).argmax()][:7]
    assert len(alike) == 7
    assert among(alike, alike).all()
    assert among(alike, alike[:5]).tolist() == [True] * 5 + [False] * 2
