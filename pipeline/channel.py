"""The one ordered queue: places are taken in admission order and filled in any order.

Producers (the event loop, decode workers) fill places; one consumer, the loop thread, takes entries
strictly in the order of their places. Size is always a decision of the caller. The consumer is
woken only when the entry at the head is there: a wake-up costs more than everything else here.
"""

import threading
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from pipeline.errors import Overloaded

T = TypeVar("T")


class Place(Generic[T]):
    """One position in the queue: empty until filled or abandoned."""

    __slots__ = ("abandoned", "entry")

    def __init__(self) -> None:
        """An empty place."""
        self.entry: T | None = None
        self.abandoned = False


class Channel(Generic[T]):
    """A bounded queue of places; thread-safe, any number of producers, one consumer.

    >>> channel = Channel[str](capacity=2)
    >>> first, second = channel.reserve(), channel.reserve()
    >>> channel.fill(second, "b"); channel.fill(first, "a")
    >>> channel.take(0.0), channel.take(0.0), channel.take(0.0)
    ('a', 'b', None)
    """

    def __init__(self, *, capacity: int, retry_after_s: float = 1.0) -> None:
        """At most `capacity` places at a time; a refused producer is told `retry_after_s`."""
        self._places: deque[Place[T]] = deque()
        self._capacity = capacity
        self._retry_after_s = retry_after_s
        self._lock = threading.Lock()
        self._alarm = threading.Lock()
        """Held by the consumer; released once to end its sleep."""
        self._alarm.acquire()
        self._sleeping = False
        self._woken = False

    def __len__(self) -> int:
        """Places taken, filled or not."""
        return len(self._places)

    def reserve(self) -> Place[T]:
        """Take the next place; `Overloaded` when there is none."""
        with self._lock:
            if len(self._places) >= self._capacity:
                raise Overloaded("queue_full", self._retry_after_s)
            place: Place[T] = Place()
            self._places.append(place)
            return place

    def fill(self, place: Place[T], entry: T) -> None:
        """Put `entry` into its place."""
        with self._lock:
            place.entry = entry
            self._alert()

    def fill_all(self, filled: Iterable[tuple[Place[T], T]]) -> None:
        """`fill` for several places, waking the consumer once."""
        with self._lock:
            for place, entry in filled:
                place.entry = entry
            self._alert()

    def abandon(self, place: Place[T]) -> None:
        """Give a place up; the entries behind it no longer wait for it."""
        with self._lock:
            place.abandoned = True
            self._alert()

    def put(self, entry: T) -> None:
        """Queue an entry that cannot be refused, such as an operator's word, full or not.

        Only for producers that are few and wait for their entry, or are bounded otherwise.
        """
        place: Place[T] = Place()
        place.entry = entry
        with self._lock:
            self._places.append(place)
            self._alert()

    def wake(self) -> None:
        """Make a waiting `take` return now."""
        with self._lock:
            self._woken = True
            self._alert()

    def take(self, timeout_s: float) -> T | None:
        """The next entry in order, or None when none is ready within `timeout_s`."""
        with self._lock:
            if self._head_is_ready() or timeout_s <= 0.0:
                return self._pop()
            self._sleeping = True
        self._alarm.acquire(timeout=timeout_s)
        with self._lock:
            if not self._sleeping:  # someone released the alarm, perhaps just after the time-out
                self._alarm.acquire(blocking=False)
            self._sleeping = False
            return self._pop()

    def _pop(self) -> T | None:
        self._woken = False
        self._drop_abandoned()
        if not self._places or self._places[0].entry is None:
            return None
        place = self._places.popleft()
        entry, place.entry = place.entry, None  # who still holds the place must not hold the entry
        return entry

    def _alert(self) -> None:
        """End the consumer's sleep, if it sleeps and there is something for it."""
        if self._sleeping and self._head_is_ready():
            self._sleeping = False
            self._alarm.release()

    def _drop_abandoned(self) -> None:
        while self._places and self._places[0].abandoned:
            self._places.popleft()

    def _head_is_ready(self) -> bool:
        self._drop_abandoned()
        return self._woken or bool(self._places and self._places[0].entry is not None)
