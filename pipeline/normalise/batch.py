"""One batch's attribute columns, with old and new names coalesced and strings judged once each."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.model import Attributes, Bools, Bytes, Dictionary, Floats, Int32s

MAX_JUDGED: Final = 8192
"""Distinct strings of one kind judged per batch; senders choose them."""

Indices = npt.NDArray[np.intp]


class Batch:
    """Attribute columns with old and new names coalesced, and judgements per distinct string."""

    def __init__(
        self, attributes: Attributes, resources: Attributes, resource: Int32s, strings: Dictionary
    ) -> None:
        """`resource` is the row of `resources` behind each item of `attributes`."""
        self.attributes = attributes
        self.resources = resources
        self.resource = resource
        self.strings = strings

    def code(self, key: str) -> Int32s:
        """The code of a key, -1 without."""
        return self.attributes.codes(key)

    def first(self, keys: Sequence[str]) -> Int32s:
        """The code of the first key that a row has, -1 without."""
        columns = [self.attributes.text[key] for key in keys if key in self.attributes.text]
        if not columns:
            return np.full(self.attributes.n, -1, np.int32)
        result = columns[0]
        for column in columns[1:]:
            result = np.where(result >= 0, result, column)
        return result

    def number(self, keys: Sequence[str]) -> Floats:
        """The number of the first key that a row has, NaN without."""
        columns = [self.attributes.number[key] for key in keys if key in self.attributes.number]
        if not columns:
            return np.full(self.attributes.n, np.nan)
        result = columns[0]
        for column in columns[1:]:
            result = np.where(np.isnan(result), column, result)
        return result

    def judge(self, codes: Int32s, verdict: Callable[[str], int], beyond: int = 0) -> Bytes:
        """uint8[len(codes)]: the verdict on each string, 0 for absent ones.

        At most MAX_JUDGED distinct strings are looked at; the rest are given `beyond`.
        """
        table = np.zeros(len(self.strings) + 1, np.uint8)
        distinct = self.distinct(codes)
        table[distinct[MAX_JUDGED:]] = beyond
        for code in distinct[:MAX_JUDGED].tolist():
            table[code] = verdict(self.strings.text(code))
        return table[codes]

    def distinct(self, codes: Int32s) -> Indices:
        """The codes that occur, ascending, without -1."""
        occurs = np.zeros(len(self.strings) + 1, np.bool_)
        occurs[codes] = True
        return np.flatnonzero(occurs[:-1])

    def is_set(self, key: str) -> Bools:
        """Whether an item or its resource carries a flag that is not false."""
        flags = np.zeros(self.attributes.n, np.bool_)
        if key in self.attributes.text:
            flags |= self.judge(self.code(key), _is_true) > 0
        if key in self.resources.text and self.resources.n:
            flags |= (self.judge(self.resources.codes(key), _is_true) > 0)[self.resource]
        return flags


def _is_true(text: str) -> bool:
    return text.strip().lower() not in {"", "false", "0", "no"}
