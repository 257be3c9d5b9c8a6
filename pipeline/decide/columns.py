"""State kept per slot: arrays that grow with the directory, forget slots and go to disk by id.

A `Columns` subclass names its arrays with the value of a slot that nothing is known about.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from pipeline.model import Int64s

Blanks: TypeAlias = Mapping[str, tuple[str, float | int | bool]]
"""Array name -> (numpy dtype, value of an unknown slot)."""


class Columns:
    """Arrays of one length, one row a slot. Subclasses set `BLANK` and annotate the arrays."""

    BLANK: ClassVar[Blanks] = {}

    def __init__(self) -> None:
        """Start with no slots."""
        self.n = 0
        for name, (dtype, blank) in self.BLANK.items():
            setattr(self, name, np.full(0, blank, dtype))

    def resize(self, n: int) -> None:
        """Grow to `n` slots; never shrinks."""
        if n <= self.n:
            return
        for name, (dtype, blank) in self.BLANK.items():
            grown = np.full(n, blank, dtype)
            grown[: self.n] = getattr(self, name)
            setattr(self, name, grown)
        self.n = n

    def forget(self, slots: npt.NDArray[np.integer[Any]] | Int64s) -> None:
        """Set the slots back to unknown."""
        for name, (_, blank) in self.BLANK.items():
            getattr(self, name)[slots] = blank

    def export_row(self, slot: int) -> dict[str, float | int | bool]:
        """One slot's values as plain numbers."""
        return {name: getattr(self, name)[slot].item() for name in self.BLANK}

    def restore_row(self, slot: int, row: Mapping[str, object]) -> None:
        """Take one slot's values back; unknown names and wrong types are left out."""
        for name in self.BLANK:
            value = row.get(name)
            if isinstance(value, int | float):
                getattr(self, name)[slot] = value
