"""Numbers for the few texts that series say about their engines: models and roles."""

from collections.abc import Iterable
from typing import Final

MAX_TEXTS: Final = 65_536
"""A fleet shows some hundred models; further ones count as unreadable until others go."""
UNREADABLE: Final = 1


class Texts:
    """Text by number; 0 = nothing was said, 1 = it is no name."""

    def __init__(self) -> None:
        """Only the two without text."""
        self._numbers: dict[str, int] = {"": UNREADABLE}
        self._texts: list[str] = ["", ""]
        self._free: list[int] = []

    def __getitem__(self, number: int) -> str:
        """The text of a number."""
        return self._texts[number]

    def __len__(self) -> int:
        """How many numbers are in use."""
        return len(self._numbers)

    def number(self, text: str) -> int:
        """The number of a text, newly given if need be."""
        number = self._numbers.get(text, -1)
        if number >= 0:
            return number
        if len(self._numbers) >= MAX_TEXTS:
            return UNREADABLE
        if self._free:
            number = self._free.pop()
            self._texts[number] = text
        else:
            number = len(self._texts)
            self._texts.append(text)
        self._numbers[text] = number
        return number

    def keep_only(self, used: Iterable[int]) -> None:
        """Forget all texts but those with a number in `used`."""
        kept = {*used, UNREADABLE}
        for text, number in list(self._numbers.items()):
            if number not in kept:
                del self._numbers[text]
                self._free.append(number)
