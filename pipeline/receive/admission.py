"""Admission by bytes: a budget for what is in flight, a brief wait for a little more, then refusal.

Waiting first keeps senders from rebuilding their connections at every peak; the refusal is
retryable and its delay random, so that refused senders do not come back together.
"""

import asyncio
import random
from collections import deque
from typing import NamedTuple

from pipeline.errors import Overloaded


class Limits(NamedTuple):
    """The bounds of one `Admission`."""

    in_flight_bytes: int
    waiting_bytes: int
    wait_s: float
    retry_min_s: float = 1.0
    retry_max_s: float = 5.0


class Admission:
    """Bytes in flight and waiting, first come first served. For one event loop.

    Every `admit` that returned is followed by one `release` of the same size.
    """

    def __init__(self, limits: Limits, jitter: random.Random) -> None:
        """`jitter` draws the retry delays and nothing else."""
        self._limits = limits
        self._jitter = jitter
        self._in_flight = 0
        self._waiting = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def in_flight_bytes(self) -> int:
        """Admitted and not yet released."""
        return self._in_flight

    @property
    def waiting_bytes(self) -> int:
        """Neither admitted nor refused yet."""
        return self._waiting

    def retry_after_s(self) -> float:
        """A random delay to ask a refused sender for."""
        return self._jitter.uniform(self._limits.retry_min_s, self._limits.retry_max_s)

    async def admit(self, size: int, remaining_s: float | None = None) -> None:
        """Take `size` bytes of the budget, after a wait if need be; `Overloaded` when refused.

        The wait is at most `wait_s` and half of `remaining_s`, the time the sender still has.
        """
        if not self._queue and self._fits(size):
            self._in_flight += size
            return
        if self._waiting + size > self._limits.waiting_bytes:
            raise Overloaded("bytes_in_flight", self.retry_after_s())
        wait_s = self._limits.wait_s
        if remaining_s is not None:
            wait_s = min(wait_s, remaining_s / 2)
        await self._wait(size, wait_s)

    def release(self, size: int) -> None:
        """Give `size` bytes back and admit who waits and now fits."""
        self._in_flight -= size
        self._admit_waiting()

    async def _wait(self, size: int, wait_s: float) -> None:
        admitted = asyncio.get_running_loop().create_future()
        entry = (size, admitted)
        self._queue.append(entry)
        self._waiting += size
        try:
            await asyncio.wait({admitted}, timeout=wait_s)
        except asyncio.CancelledError:
            if admitted.done():
                self.release(size)
            raise
        finally:
            if not admitted.done():
                self._queue.remove(entry)
                self._waiting -= size
                self._admit_waiting()  # the one behind may be smaller
        if not admitted.done():
            raise Overloaded("bytes_in_flight", self.retry_after_s())

    def _admit_waiting(self) -> None:
        while self._queue and self._fits(self._queue[0][0]):
            size, admitted = self._queue.popleft()
            self._waiting -= size
            self._in_flight += size
            admitted.set_result(None)

    def _fits(self, size: int) -> bool:
        return self._in_flight + size <= self._limits.in_flight_bytes
