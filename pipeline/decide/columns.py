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


MAX_NUMBER = 1e18
"""Nanoseconds of thirty years; nothing that is kept is larger."""


class Columns:
    """Arrays of one length, one row a slot. Subclasses set `BLANK` and annotate the arrays."""

    BLANK: ClassVar[Blanks] = {}
    WIDTH: ClassVar[Mapping[str, int]] = {}
    """Arrays that are [n, width]; the others are [n]."""

    def __init__(self) -> None:
        """Start with no slots."""
        self.n = 0
        for name in self.BLANK:
            setattr(self, name, self._blanks(name, 0))

    def _blanks(self, name: str, n: int) -> npt.NDArray[Any]:
        dtype, blank = self.BLANK[name]
        return np.full((n, self.WIDTH[name]) if name in self.WIDTH else n, blank, dtype)

    def resize(self, n: int) -> None:
        """Grow to `n` slots; never shrinks."""
        if n <= self.n:
            return
        for name in self.BLANK:
            grown = self._blanks(name, n)
            grown[: self.n] = getattr(self, name)
            setattr(self, name, grown)
        self.n = n

    def forget(self, slots: npt.NDArray[np.integer[Any]] | Int64s) -> None:
        """Set the slots back to unknown."""
        for name, (_, blank) in self.BLANK.items():
            getattr(self, name)[slots] = blank

    def can_hold(self, name: str, values: list[Any]) -> bool:
        """Whether `values` are of the array's type and of a size that arithmetic survives.

        Raises what numpy raises for values of another type. Unknown names hold anything.
        """
        if name not in self.BLANK:
            return True
        dtype, blank = self.BLANK[name]
        found = np.array(values, dtype)
        if found.dtype.kind != "f":
            return True
        usable = np.isnan(found) | (np.abs(found) <= MAX_NUMBER) | (found == blank)
        return bool(usable.all())

    def restore_row(self, slot: int, row: Mapping[str, object]) -> None:
        """Take one slot's values back; unknown names and wrong types are left out."""
        for name in self.BLANK:
            value = row.get(name)
            if _fits(value, self.WIDTH.get(name)):
                getattr(self, name)[slot] = value


def _fits(value: object, width: int | None) -> bool:
    """Whether a value read from a file is a number, or `width` of them."""
    if width is None:
        return isinstance(value, int | float)
    return isinstance(value, list) and len(value) == width and all(_fits(x, None) for x in value)
