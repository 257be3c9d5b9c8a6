"""Sentences for a person and counts by reason, until the next batch carries them on.

Both are bounded: a sentence is told once for its key, and keys are forgotten when there are many.
"""

from collections import Counter
from typing import Final

from pipeline.normalise.endpoint import MAX_NAME, is_name

MAX_PENDING: Final = 64
MAX_KEYS: Final = 4096


class Notes:
    """What identity wants a person to know."""

    def __init__(self) -> None:
        """Start with nothing to tell."""
        self._pending: list[str] = []
        self._counts: Counter[str] = Counter()
        self._told: set[tuple[str, ...]] = set()

    def count(self, reason: str, n: int = 1) -> None:
        """Add to a reason's count."""
        self._counts[reason] += n

    def is_new(self, *key: str) -> bool:
        """Whether `key` is met for the first time."""
        if key in self._told:
            return False
        if len(self._told) >= MAX_KEYS:
            self._told.clear()
        self._told.add(key)
        return True

    def tell(self, text: str, *key: str) -> None:
        """Tell `text`, once for `key`."""
        if self.is_new(*key) and len(self._pending) < MAX_PENDING:
            self._pending.append(text)

    def name(self, key: str, text: str) -> str:
        """`text`, the value of `key`, if it may name something; else "", counted `bad_name`."""
        if is_name(text):
            return text
        self.count("bad_name")
        self.tell(
            f"{key} {text[:80]!r} is ignored: longer than {MAX_NAME} characters or not printable",
            "bad_name",
            key,
        )
        return ""

    def take(self) -> tuple[str, ...]:
        """The sentences since the last call."""
        taken = tuple(self._pending)
        self._pending.clear()
        return taken

    def take_counts(self) -> dict[str, int]:
        """The counts since the last call."""
        taken = {reason: n for reason, n in self._counts.items() if n}
        self._counts.clear()
        return taken
