"""What a series means: everything about its points that its name and labels decide.

Thousands of series share a shape (a fleet of one engine shows some hundred), so a shape is kept
once, as a row of columns, and a series points at it. The table is bounded: shapes beyond live until
the next batch is read.
"""

from typing import Final

import numpy as np

from pipeline.model import Floats, Int64s, UInt64s
from pipeline.normalise.engines import ENGINES

OTHER: Final = len(ENGINES)
"""Engine number of an endpoint that named itself but is of no engine we know."""
NO_ENGINE: Final = OTHER + 1
REASONS: Final = ("", "foreign_metric", "unknown_metric", "type_mismatch", "unused_metric")
"""Why nothing is read from a series, by number."""


class Flag:
    """What is special about a series; plain numbers, since every batch is asked for all of them."""

    UNUSED: Final = 1
    """Nothing is read from it."""
    CLASH: Final = 2
    """Its unit contradicts its name."""
    RATIO: Final = 4
    INFO: Final = 8
    """Its labels are the value."""
    NODE: Final = 16
    """About a node or a GPU, whoever reports it."""
    GUEST: Final = 32
    """From beside an engine: GenAI conventions, the agent."""
    PRIORITY: Final = 64
    """One priority's part of a total."""
    DELTA: Final = 128
    SUMMARY: Final = 256
    HELP: Final = 512
    """Its help text matters."""
    MODEL_NAME: Final = 1024
    """Its model comes from the label that is preferred."""
    CODE: Final = 2048
    """A code goes along with its value."""


COLUMNS: Final = {
    "flags": np.int64,
    "reason": np.int64,
    "engine": np.int64,
    "model": np.int64,  # numbers of texts, 0 = says nothing
    "role": np.int64,
    "value": np.float64,  # INFO: what the labels spell
    "code": np.float64,  # what goes along as a count
    "help": np.uint64,  # hash of the help text, where it matters
}


class Shapes:
    """Distinct shapes as columns; at most `max_shapes` stay."""

    flags: Int64s
    reason: Int64s
    engine: Int64s
    model: Int64s
    role: Int64s
    value: Floats
    code: Floats
    help: UInt64s

    def __init__(self, max_shapes: int) -> None:
        """Empty."""
        self.max_shapes = max_shapes
        self._ids: dict[bytes, int] = {}
        self._free: list[int] = []
        self._n = 0
        self._beyond: dict[bytes, int] = {}
        self.has_help = False
        """Whether the help text of some shape matters."""
        for name, dtype in COLUMNS.items():
            setattr(self, name, np.zeros(64, dtype))

    def __len__(self) -> int:
        """How many shapes stay."""
        return len(self._ids)

    def add(self, columns: dict[str, np.ndarray[tuple[int], np.dtype[np.generic]]]) -> Int64s:
        """int64[k]: the shapes of k series, given as `COLUMNS`; `max_shapes` and up do not stay."""
        self._beyond.clear()
        self.has_help |= bool((columns["flags"].astype(np.int64) & Flag.HELP).any())
        rows = np.stack(
            [columns[name].astype(dtype).view(np.uint64) for name, dtype in COLUMNS.items()], axis=1
        )
        found = np.empty(len(rows), np.int64)
        for i, row in enumerate(rows):
            key = row.tobytes()
            shape = self._ids.get(key, self._beyond.get(key, -1))
            found[i] = self._put(key, row) if shape < 0 else shape
        return found

    def clear(self) -> None:
        """Forget all."""
        self._ids.clear()
        self._free.clear()
        self._n = 0

    def keep_only(self, used: Int64s) -> None:
        """Forget all shapes but `used`."""
        kept = set(used.tolist())
        for key, shape in list(self._ids.items()):
            if shape not in kept:
                del self._ids[key]
                self._free.append(shape)

    def _put(self, key: bytes, row: UInt64s) -> int:
        if len(self._ids) >= self.max_shapes:
            shape = self.max_shapes + len(self._beyond)
            self._beyond[key] = shape
        else:
            shape = self._free.pop() if self._free else self._n
            self._n = max(self._n, shape + 1)
            self._ids[key] = shape
        if shape >= len(self.flags):
            self._grow(2 * shape)
        for name, value in zip(COLUMNS, row, strict=True):
            column = getattr(self, name)
            column[shape] = value.view(column.dtype)
        return shape

    def _grow(self, size: int) -> None:
        for name in COLUMNS:
            column = getattr(self, name)
            grown = np.zeros(size, column.dtype)
            grown[: len(column)] = column
            setattr(self, name, grown)
