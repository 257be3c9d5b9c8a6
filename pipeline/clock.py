"""Time as an argument: the service reads a clock once per queue entry, logic never does.

`mono_ns` drives ticks, timers and ages; `wall_ns` is for epochs, display and comparison with the
times in data. Tests move a `HandClock` by hand.
"""

import time
from typing import NamedTuple, Protocol

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


class Instant(NamedTuple):
    """One reading of both clocks, int64 nanoseconds."""

    mono_ns: int
    wall_ns: int

    def plus_s(self, seconds: float) -> "Instant":
        """The instant `seconds` later on both clocks."""
        step_ns = round(seconds * NS_PER_S)
        return Instant(self.mono_ns + step_ns, self.wall_ns + step_ns)


class Clock(Protocol):
    """Anything that tells the time."""

    def now(self) -> Instant:
        """Read both clocks."""


class SystemClock:
    """The machine's monotonic and wall clocks."""

    def now(self) -> Instant:
        """Read both clocks."""
        return Instant(time.monotonic_ns(), time.time_ns())


class HandClock:
    """A clock that moves only when told to.

    >>> clock = HandClock(Instant(0, 5 * NS_PER_S))
    >>> clock.advance(1.5)
    Instant(mono_ns=1500000000, wall_ns=6500000000)
    """

    def __init__(self, start: Instant | None = None) -> None:
        """Start at `start`, else at a fixed moment."""
        self._now = Instant(0, 1_700_000_000 * NS_PER_S) if start is None else start

    def now(self) -> Instant:
        """The instant set last."""
        return self._now

    def advance(self, seconds: float) -> Instant:
        """Move both clocks on by `seconds` and return the new instant."""
        self._now = self._now.plus_s(seconds)
        return self._now
