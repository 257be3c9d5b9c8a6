from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.model import Dictionary
from pipeline.symbols import MAX_KEY_BYTES, Symbols, hash64

TEXTS = st.lists(st.binary(max_size=12), unique=True, max_size=20)
ALIKE: Final = 7


def dictionary(keys: list[bytes], hashes: list[int] | None = None) -> Dictionary:
    offsets = np.cumsum([0, *map(len, keys)]).astype(np.int32)
    chosen = [hash64(key) for key in keys] if hashes is None else hashes
    return Dictionary(b"".join(keys), offsets, np.array(chosen, np.uint64))


@given(TEXTS, TEXTS)
def test_columns_find_exactly_the_strings_that_are_held(
    held: list[bytes], asked: list[bytes]
) -> None:
    symbols = Symbols(100)
    ids = {key: symbols.add(key) for key in held}
    codes = np.array([*range(len(asked)), -1], np.int32)
    expected = [*(ids.get(key, -1) for key in asked), -1]
    assert symbols.find(dictionary(asked), codes).tolist() == expected


def test_equal_hashes_with_different_keys_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.symbols.hash64", lambda _: ALIKE)
    symbols = Symbols(10)
    ids = [symbols.add(key) for key in (b"one", b"two", b"six")]
    asked = dictionary([b"six", b"two", b"ten", b"one"], [ALIKE] * 4)
    found = symbols.find(asked, np.arange(4, dtype=np.int32))
    assert found.tolist() == [ids[2], ids[1], -1, ids[0]]


def test_a_full_table_refuses_new_strings_counts_them_and_keeps_the_old() -> None:
    symbols = Symbols(2)
    first = symbols.add(b"a")
    symbols.add(b"b")
    assert symbols.add(b"c") == -1
    assert symbols.add(b"a") == first
    assert symbols.refused == 1
    assert len(symbols) == 2


def test_a_string_that_is_too_long_is_refused() -> None:
    symbols = Symbols(2)
    assert symbols.add(b"x" * (MAX_KEY_BYTES + 1)) == -1
    assert symbols.refused == 1


def test_unused_strings_expire_and_their_ids_are_given_again() -> None:
    symbols = Symbols(2, expire_after_ns=100)
    old = symbols.add(b"old", now_ns=0)
    symbols.add(b"young", now_ns=50)
    assert symbols.expire(now_ns=120) == [old]
    assert symbols.get(b"old") == -1
    assert symbols.text(old) == ""
    assert symbols.add(b"new", now_ns=120) == old
    found = symbols.find(dictionary([b"old", b"new"]), np.array([0, 1], np.int32))
    assert found.tolist() == [-1, old]


def test_a_string_that_is_added_again_does_not_expire() -> None:
    symbols = Symbols(2, expire_after_ns=100)
    symbols.add(b"a", now_ns=0)
    symbols.add(b"a", now_ns=90)
    assert symbols.expire(now_ns=150) == []


def test_discarding_frees_room() -> None:
    symbols = Symbols(1)
    symbols.discard(symbols.add(b"a"))
    assert symbols.add(b"b") >= 0
    assert symbols.text(symbols.get(b"b")) == "b"
    assert symbols.text(-1) == ""
