import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.model import UInt64s
from pipeline.series import SeriesIndex


def keys(*numbers: int) -> UInt64s:
    """Keys that differ in their first half only, as badly spread as keys can be."""
    return np.array([(n, 7) for n in numbers], np.uint64).reshape(-1, 2)


def test_ids_are_dense_and_given_in_order_of_appearance() -> None:
    index = SeriesIndex(100)
    ids, new, refused = index.add(keys(30, 10, 30, 20, 10))
    assert ids.tolist() == [0, 1, 0, 2, 1]
    assert new.tolist() == [0, 1, 2]
    assert refused == 0


def test_a_known_key_keeps_its_id_and_is_not_new() -> None:
    index = SeriesIndex(100)
    index.add(keys(1, 2))
    ids, new, _ = index.add(keys(2, 3))
    assert ids.tolist() == [1, 2]
    assert new.tolist() == [2]


def test_a_full_index_refuses_new_keys_and_counts_each_of_them_but_keeps_the_old() -> None:
    index = SeriesIndex(2)
    ids, new, refused = index.add(keys(1, 2, 3, 3, 1))
    assert ids.tolist() == [0, 1, -1, -1, 0]
    assert new.tolist() == [0, 1]
    assert refused == 2
    assert index.add(keys(1, 4))[0].tolist() == [0, -1]


def test_the_id_of_a_removed_key_is_reused_and_the_key_is_forgotten() -> None:
    index = SeriesIndex(2)
    index.add(keys(1, 2))
    index.remove(np.array([0], np.int32))
    assert index.find(keys(1, 2)).tolist() == [-1, 1]
    assert index.add(keys(5))[0].tolist() == [0]
    assert len(index) == 2


def test_both_halves_of_a_key_count() -> None:
    index = SeriesIndex(10)
    ids, _, _ = index.add(np.array([(1, 2), (2, 1), (1, 1)], np.uint64))
    assert ids.tolist() == [0, 1, 2]


def test_forty_thousand_packed_keys_keep_their_ids() -> None:
    # Keys need not be hashes: packed (component, slot) pairs differ in few bits.
    index = SeriesIndex(100_000)
    packed = np.array([(c << 32 | s, 0) for c in range(40) for s in range(1000)], np.uint64)
    ids, _, _ = index.add(packed)
    assert ids.tolist() == list(range(40_000))
    assert index.find(packed).tolist() == list(range(40_000))


def test_no_keys_are_no_work() -> None:
    index = SeriesIndex(10)
    ids, new, refused = index.add(keys())
    assert (len(ids), len(new), refused, len(index)) == (0, 0, 0, 0)


@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 40), max_size=12)), max_size=30),
    st.integers(1, 30),
)
def test_it_behaves_like_a_dict_with_a_bound(
    steps: list[tuple[bool, list[int]]], bound: int
) -> None:
    index = SeriesIndex(bound)
    oracle: dict[int, int] = {}
    for is_add, numbers in steps:
        if is_add:
            ids = index.add(keys(*numbers))[0].tolist()
            for number, i in zip(numbers, ids, strict=True):
                if number not in oracle and len(oracle) < bound:
                    assert i not in oracle.values()
                    oracle[number] = i
                assert i == oracle.get(number, -1)
        else:
            held = sorted({n for n in numbers if n in oracle})
            index.remove(np.array([oracle.pop(n) for n in held], np.int32))
    assert len(index) == len(oracle)
    assert index.find(keys(*range(41))).tolist() == [oracle.get(n, -1) for n in range(41)]
    assert sorted(index.ids().tolist()) == sorted(oracle.values())
    assert index.capacity <= bound
