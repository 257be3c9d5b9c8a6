"""What one client may use: requests and bytes a second, and its share of the bytes in flight.

Token buckets, refilled by the time that passed. The table of clients is bounded: the one that was
idle longest makes room and starts anew when it comes back.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

MAX_CLIENTS: Final = 4096
"""Remembered at once."""
_LOOKED_AT: Final = 16
"""Oldest clients that are tried when one has to make room; those with bytes in flight stay."""


class ClientBounds(NamedTuple):
    """Rates per second (0 = no limit), bursts and the most bytes in flight of one client."""

    requests_per_s: float
    bytes_per_s: float
    burst_bytes: float
    """What may come at once after a pause: a second's worth, at least one largest request."""
    in_flight_bytes: float


class _Used:
    __slots__ = ("at_s", "bytes", "in_flight", "requests")

    def __init__(self, requests: float, size: float, at_s: float) -> None:
        self.requests = requests
        self.bytes = size
        self.at_s = at_s
        self.in_flight = 0


class ClientLimiter:
    """Buckets by client. Every `take` that returned 0 is followed by one `release`."""

    def __init__(self, bounds: ClientBounds, max_clients: int = MAX_CLIENTS) -> None:
        """Nobody has used anything yet."""
        self._bounds = bounds
        self._max_clients = max_clients
        self._burst_requests = max(1.0, bounds.requests_per_s)
        self._clients: OrderedDict[str, _Used] = OrderedDict()

    def __len__(self) -> int:
        """How many clients are remembered."""
        return len(self._clients)

    def take(self, key: str, size: int, now_s: float) -> float | None:
        """0 when one request of `size` bytes was taken from the buckets of `key`.

        Else nothing was taken, and it is the time in seconds after which it would be, or None when
        that depends on the client's own bytes in flight, or on room in the table.
        """
        used = self._find(key, now_s)
        if used is None:
            return None
        if used.in_flight and used.in_flight + size > self._bounds.in_flight_bytes:
            return None
        self._refill(used, now_s)
        wait_s = max(
            _missing_s(1.0, used.requests, self._bounds.requests_per_s),
            _missing_s(size, used.bytes, self._bounds.bytes_per_s),
        )
        if wait_s > 0:
            return wait_s
        used.requests -= 1.0
        used.bytes -= size
        used.in_flight += size
        return 0.0

    def release(self, key: str, size: int) -> None:
        """`size` bytes of `key` are no longer in flight."""
        self._clients[key].in_flight -= size

    def undo(self, key: str, size: int) -> None:
        """As if `take` had not been: the request was refused for another reason."""
        used = self._clients[key]
        used.in_flight -= size
        used.requests += 1.0
        used.bytes += size

    def _find(self, key: str, now_s: float) -> _Used | None:
        used = self._clients.get(key)
        if used is not None:
            self._clients.move_to_end(key)
            return used
        if len(self._clients) >= self._max_clients and not self._make_room():
            return None
        used = _Used(self._burst_requests, self._bounds.burst_bytes, now_s)
        self._clients[key] = used
        return used

    def _make_room(self) -> bool:
        for _ in range(min(_LOOKED_AT, len(self._clients))):
            key, used = next(iter(self._clients.items()))
            if not used.in_flight:
                del self._clients[key]
                return True
            self._clients.move_to_end(key)
        return False

    def _refill(self, used: _Used, now_s: float) -> None:
        passed_s = max(0.0, now_s - used.at_s)
        used.at_s = now_s
        bounds = self._bounds
        used.requests = min(self._burst_requests, used.requests + passed_s * bounds.requests_per_s)
        used.bytes = min(bounds.burst_bytes, used.bytes + passed_s * bounds.bytes_per_s)


def _missing_s(wanted: float, there: float, per_s: float) -> float:
    """Seconds until `wanted` are there; 0 without a limit."""
    return max(0.0, wanted - there) / per_s if per_s else 0.0
