import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.fingerprint.places import Places

KEYS = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 30), max_size=80)


@given(st.lists(KEYS, max_size=5))
def test_what_is_known_is_never_confused(batches: list[list[int]]) -> None:
    places, told = Places(3), {0: 0}
    for number, batch in enumerate(batches):
        keys = np.array(batch, np.uint64)
        ids, is_known = places.find(keys)
        for key, found, known in zip(batch, ids.tolist(), is_known.tolist(), strict=True):
            assert not known or found == told[key]
        told |= {key: number + 1 for key in batch if key}
        places.put(keys, np.array([told[key] for key in batch], np.int32))


def test_no_key_has_no_id_whatever_else_is_put() -> None:
    places = Places(1)
    keys = np.arange(1, 100, dtype=np.uint64)
    places.put(keys, np.ones(99, np.int32))
    ids, is_known = places.find(np.zeros(1, np.uint64))
    assert (ids.tolist(), is_known.tolist()) == ([0], [True])


def test_most_keys_are_still_known_when_the_places_are_a_quarter_full() -> None:
    places = Places(12)
    keys = np.random.default_rng(1).integers(1, 2**63, 1024).astype(np.uint64)
    places.put(keys, np.arange(1024, dtype=np.int32))
    assert places.find(keys)[1].mean() > 0.8
    places.clear()
    assert not places.find(keys)[1].any()
