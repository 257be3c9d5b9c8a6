"""State of a detector as columns: a fact is a line of one matrix, a series a column of it.

Enters: rows of a round. Leaves: their facts, a view where the rows follow each other without a
hole (a whole round, a block of it), else a copy that is written back. Invariant: a row that does
not learn keeps its state to the bit.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.detect.protocol import Samples, Scores
from pipeline.model import Bools, Floats, Int64s

BLOCK_ROWS: Final = 12_288
"""Rows scored at once: their temporaries stay in the second-level cache and below the size at
which malloc asks the kernel for pages."""
FORMAT: Final = 1
"""Of exported states."""

Array = npt.NDArray[Any]


class Part(NamedTuple):
    """Samples, and where they teach."""

    row: Int64s
    time_s: Floats
    value: Floats
    learn: Bools


class Slots(NamedTuple):
    """Further state of a row that is too large for float64: `depth` entries of a smaller type."""

    depth: int
    dtype: type[np.generic]


class Table:
    """Facts float64[facts, n] and slots dtype[depth, n] by name."""

    def __init__(self, facts: Mapping[str, float], slots: Mapping[str, Slots]) -> None:
        """No rows yet; `facts` gives what a fresh row holds, slots start at 0."""
        self.n = 0
        self._names = list(facts)
        self._blank = np.array(list(facts.values()), np.float64)[:, None]
        self.lines: Floats = np.zeros((len(facts), 0))
        self.slots: dict[str, Array] = {
            name: np.zeros((slot.depth, 0), slot.dtype) for name, slot in slots.items()
        }

    def resize(self, n: int) -> None:
        """Room for n rows; fewer than there are changes nothing."""
        more = n - self.n
        if more <= 0:
            return
        self.n = n
        self.lines = np.concatenate((self.lines, np.repeat(self._blank, more, axis=1)), axis=1)
        for name, slot in self.slots.items():
            room = np.zeros((len(slot), more), slot.dtype)
            self.slots[name] = np.concatenate((slot, room), axis=1)

    def forget(self, rows: Int64s) -> None:
        """Make `rows` blank."""
        self.lines[:, rows] = self._blank
        for slot in self.slots.values():
            slot[:, rows] = 0

    def fact(self, name: str) -> Floats:
        """float64[n], a view."""
        line: Floats = self.lines[self._names.index(name)]
        return line

    def read(self, row: Int64s, learn: Bools) -> tuple[Floats, bool]:
        """float64[facts, k] of `row`, and whether it is a view, to be changed in place."""
        if len(row) and row[-1] - row[0] + 1 == len(row) and learn.all():
            return self.lines[:, row[0] : row[0] + len(row)], True
        return self.lines.take(row, axis=1), False

    def write(self, row: Int64s, learn: Bools, lines: Floats) -> None:
        """Put back what `read` copied, where `learn`."""
        if learn.all():
            self.lines[:, row] = lines
        elif learn.any():
            self.lines[:, row[learn]] = lines[:, learn]

    @property
    def nbytes(self) -> int:
        """Bytes of state."""
        return self.lines.nbytes + sum(slot.nbytes for slot in self.slots.values())

    def export_state(self) -> dict[str, Any]:
        """A copy of everything."""
        slots = {name: slot.copy() for name, slot in self.slots.items()}
        return {"format": FORMAT, "facts": list(self._names), "lines": self.lines.copy(), **slots}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over an export; `ValueError` when it is of another shape."""
        if state.get("format") != FORMAT or list(state.get("facts", ())) != self._names:
            raise ValueError("the state is of another format or another detector")
        n = -1
        taken: dict[str, Array] = {}
        for name, like in {"lines": self.lines, **self.slots}.items():
            taken[name] = taken_array(state, name, like)
            n = taken[name].shape[1] if n < 0 else n
            if taken[name].shape != (like.shape[0], n):
                raise ValueError(f"{name}: shape {taken[name].shape}")
        self.n = n
        self.lines = taken.pop("lines")
        self.slots = taken


def taken_array(state: Mapping[str, Any], name: str, like: Array) -> Array:
    """A copy of `state[name]`; `ValueError` unless it is an array of the kind of `like`."""
    array = state.get(name)
    if not isinstance(array, np.ndarray) or array.dtype != like.dtype or array.ndim != like.ndim:
        raise ValueError(f"{name}: no {like.dtype} array of {like.ndim} dimensions")
    return array.copy()


def picked(samples: Samples, at: Int64s | slice) -> Samples:
    """The samples at some places."""
    return Samples(samples.row[at], samples.time_s[at], samples.value[at])


class RowDetector(ABC):
    """A detector whose rows do not look at each other: blocks of a round are scored in turn."""

    name: str

    def __init__(
        self, facts: Mapping[str, float], slots: Mapping[str, Slots] | None = None
    ) -> None:
        """`facts` and `slots` as in `Table`; a fact "floor" is the absolute floor of the scale."""
        self._table = Table(facts, slots or {})

    @property
    def nbytes(self) -> int:
        """Bytes of state."""
        return self._table.nbytes

    def resize(self, n: int) -> None:
        """Have room for n series; never shrinks."""
        self._table.resize(n)

    def forget(self, rows: Int64s) -> None:
        """Let `rows` start afresh, their floor too."""
        self._table.forget(rows)

    def set_floor(self, rows: Int64s, floor: Floats) -> None:
        """No scale of `rows` is taken to be smaller than `floor` float64[k] > 0, in their unit."""
        self._table.fact("floor")[rows] = floor

    def score(self, samples: Samples, learn: Bools) -> Scores:
        """Score, then learn where `learn`; no samples give no scores."""
        k = len(samples.row)
        if k <= BLOCK_ROWS:
            return self._block(samples, learn)
        scores = Scores(np.empty(k), np.empty(k), np.empty(k))
        blocks = -(-k // BLOCK_ROWS)
        for number in range(blocks):  # of about one length
            part = slice(k * number // blocks, k * (number + 1) // blocks)
            block = picked(samples, part)
            for column, found in zip(scores, self._block(block, learn[part]), strict=True):
                column[part] = found
        return scores

    def export_state(self) -> dict[str, Any]:
        """The state as numpy arrays and plain values."""
        return self._table.export_state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from an exported state; `ValueError` when it does not fit."""
        self._table.restore(state)

    def _block(self, samples: Samples, learn: Bools) -> Scores:
        lines, is_view = self._table.read(samples.row, learn)
        with np.errstate(all="ignore"):  # NaN is "not known", and floors bound what is divided by
            scores = self._score(lines, Part(*samples, learn))
        if not is_view:
            self._table.write(samples.row, learn, lines)
        return scores

    @abstractmethod
    def _score(self, lines: Floats, samples: Part) -> Scores:
        """Score with `lines` float64[facts, k], then change them as if every row learned.

        Slots are the detector's own to change, where rows learn.
        """
