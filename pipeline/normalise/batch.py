"""One batch's attribute columns, with old and new names coalesced and strings judged once each.

Most keys occur in no row of most batches: what is absent is None, so that nobody works on it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from pipeline.model import Attributes, Bools, Bytes, Dictionary, Floats, Int32s

MAX_JUDGED: Final = 8192
"""Distinct strings of one kind judged per batch; senders choose them."""

Indices = npt.NDArray[np.intp]

_Column = TypeVar("_Column", bound=npt.NDArray[Any])


class Batch:
    """Attribute columns of some rows, old and new names coalesced, judged per distinct string."""

    def __init__(
        self,
        attributes: Attributes,
        resources: Attributes,
        resource: Int32s,
        strings: Dictionary,
        rows: Indices | None = None,
    ) -> None:
        """`resource` is the row of `resources` behind each item; `rows` None = all of them."""
        self.attributes = attributes
        self.resources = resources
        self.strings = strings
        self.n = attributes.n if rows is None else len(rows)
        self._all_resources = resource
        self._rows = rows

    def only(self, rows: Indices) -> "Batch":
        """Some of the rows of this batch."""
        picked = rows if self._rows is None else self._rows[rows]
        return Batch(self.attributes, self.resources, self._all_resources, self.strings, picked)

    def cut(self, column: _Column) -> _Column:
        """The batch's rows of a column of all items."""
        return column if self._rows is None else column[self._rows]  # type: ignore[return-value]

    @property
    def resource(self) -> Int32s:
        """The row of `resources` behind each row."""
        return self.cut(self._all_resources)

    def code(self, key: str) -> Int32s | None:
        """The code of a key, -1 without; None when no item carries it."""
        column = self.attributes.text.get(key)
        return None if column is None else self.cut(column)

    def first(self, keys: Sequence[str]) -> Int32s | None:
        """The code of the first key that a row has, -1 without; None when no item has any."""
        result = None
        for key in keys:
            column = self.code(key)
            if column is not None:
                result = column if result is None else np.where(result >= 0, result, column)
        return result

    def number(self, keys: Sequence[str]) -> Floats | None:
        """The number of the first key that a row has, NaN without; None when no item has any."""
        result = None
        for key in keys:
            whole = self.attributes.number.get(key)
            if whole is not None:
                column = self.cut(whole)
                result = column if result is None else np.where(np.isnan(result), column, result)
        return result

    def has_any(self, keys: Sequence[str]) -> Bools:
        """Whether a row has one of the keys."""
        result: Bools | None = None
        for key in keys:
            column = self.code(key)
            if column is None:
                continue
            present: Bools = column >= 0
            result = present if result is None else result | present
            if np.count_nonzero(result) == self.n:
                break
        return np.zeros(self.n, np.bool_) if result is None else result

    def judge(
        self, codes: Int32s | None, verdict: Callable[[str], int], beyond: int = 0
    ) -> Bytes | None:
        """uint8[len(codes)]: the verdict on each string, 0 for absent ones; None = all are 0.

        At most MAX_JUDGED distinct strings are looked at; the rest are given `beyond`.
        """
        if codes is None:
            return None
        distinct = self.distinct(codes)
        judged = distinct[:MAX_JUDGED].tolist()
        verdicts = [verdict(self.strings.text(code)) for code in judged]
        is_beyond = beyond and len(judged) < len(distinct)
        if not any(verdicts) and not is_beyond:
            return None
        table = np.zeros(len(self.strings) + 1, np.uint8)
        table[judged] = verdicts
        table[distinct[MAX_JUDGED:]] = beyond
        return table.take(codes)

    def distinct(self, codes: Int32s) -> Indices:
        """The codes that occur, ascending, without -1."""
        occurs = np.zeros(len(self.strings) + 1, np.bool_)
        occurs[codes.astype(np.intp)] = True  # which indexes faster
        return occurs[:-1].nonzero()[0]

    def is_set(self, key: str) -> Bools | None:
        """Whether an item or its resource carries a flag that is not false; None = none does."""
        own = self.judge(self.code(key), _is_true)
        flags = None if own is None else own > 0
        if key not in self.resources.text or not self.resources.n:
            return flags
        theirs = self.judge(self.resources.codes(key), _is_true)
        if theirs is None:
            return flags
        inherited: Bools = (theirs > 0)[self.resource]
        return inherited if flags is None else flags | inherited


def _is_true(text: str) -> bool:
    return text.strip().lower() not in {"", "false", "0", "no"}
