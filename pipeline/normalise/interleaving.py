"""Tells when two machines report under one weak name: their reports alternate."""

from typing import Final

from pipeline.clock import NS_PER_S

WITHIN_NS: Final = 180 * NS_PER_S
SWITCHES: Final = 3
"""A restart of one sender switches once; A, B, A, B does it three times."""


class Interleaving:
    """The last source of each slot and its recent switches."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._seen: dict[int, tuple[object, list[int]]] = {}

    def alternates(self, slot: int, source: object, mono_ns: int) -> bool:
        """Whether sources have taken turns, `source` being the newest."""
        last, switches = self._seen.get(slot, (source, []))
        recent = [at for at in switches if mono_ns - at < WITHIN_NS]
        switched = last != source
        if switched:
            recent = [*recent, mono_ns][-SWITCHES:]
        self._seen[slot] = source, recent
        return switched and len(recent) >= SWITCHES

    def forget(self, slot: int) -> None:
        """The slot goes to another endpoint."""
        self._seen.pop(slot, None)
