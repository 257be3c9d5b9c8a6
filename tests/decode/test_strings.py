"""The dictionary of a batch."""

import numpy as np
import xxhash

from pipeline.decode.strings import Column, Strings
from pipeline.model import Int32s


def ids(*values: int) -> Int32s:
    return np.array(values, np.int32)


def test_codes_are_numbered_by_first_use_column_after_column() -> None:
    strings = Strings()
    a, b, c = (strings.id(text) for text in (b"aa", b"b", b"cccc"))
    dictionary, (first, second) = strings.dictionary([ids(c, 0, c, a), ids(b, a, 0)])
    assert dictionary.texts() == ["cccc", "aa", "b"]
    assert (first.tolist(), second.tolist()) == ([0, -1, 0, 1], [2, 1, -1])
    assert dictionary.hashes.tolist() == [
        xxhash.xxh3_64_intdigest(text) for text in (b"cccc", b"aa", b"b")
    ]


def test_no_columns_or_empty_ones_give_an_empty_dictionary() -> None:
    strings = Strings()
    dictionary, columns = strings.dictionary([ids(), ids(0)])
    assert len(dictionary) == 0
    assert [column.tolist() for column in columns] == [[], [-1]]


def test_strings_that_differ_only_in_invalid_bytes_become_one() -> None:
    strings = Strings()
    assert strings.id(b"x\xff") == strings.id(b"x\xfe") == strings.id("x\ufffd".encode())
    assert strings.invalid([b"x\xff", b"x\xfe", "x\ufffd".encode(), b"x"]) == 2


def test_a_column_grows_and_keeps_its_rows() -> None:
    column = Column(np.int64)
    for i in range(1000):
        column.append(i)
        if i % 100 == 0:
            assert column.array().tolist() == list(range(i + 1))
    assert len(column) == 1000
    assert column.array().tolist() == list(range(1000))
