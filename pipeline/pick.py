"""Which endpoint gets the next request: the agent's own arithmetic over published decisions.

Published weights are joined with what only the agent knows, its own requests in flight. When the
service falls silent nothing is thrown away: after `valid_for` the last weights drift slowly to each
endpoint's own long average, and opened endpoints are tried again one at a time.
"""

import math
import random
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from types import TracebackType
from typing import Final, NamedTuple

from pipeline.clock import NS_PER_MS, NS_PER_S, Clock
from pipeline.model import State
from pipeline.wire import decisions_pb2 as wire

OUT: Final = frozenset({State.OPEN, State.DRAINING})
"""States in which an endpoint gets no new request while any other endpoint can."""
AVERAGE_S: Final = 600.0
"""Time constant of the average that stands for an endpoint's capacity: slower than any incident
that a circuit deals with."""
DRIFT_S: Final = 600.0
"""Time constant of the way from the last weights to that average once the service is silent."""
READMIT_S: Final = 30.0
"""While the service is silent, an opened endpoint is tried again each so many seconds, starting
from `PROBE_SHARE` of its average and rising to all of it until the next one's turn."""
PROBE_SHARE: Final = 0.02
REFRESH_NS: Final = NS_PER_S
"""How often drifting weights are worked out anew."""
STATES: Final = {int(state): state for state in State}


class Endpoint(NamedTuple):
    """One endpoint as an agent routes to it."""

    id: str
    pool: str
    address: str
    """ip:port"""
    zone: str
    weight: int
    state: State
    admission: float


class Picker:
    """Weighted least-request over a view: draw two by weight, take the smaller in-flight/weight.

    In-flight counts are this agent's own (`request`); without them a pick is a draw by weight.
    Thread-safe. Endpoints that are OPEN or DRAINING are picked only when all are.
    """

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        """Nothing to pick from before the first `hear`."""
        self._clock = clock
        self._rng = rng
        self._lock = threading.Lock()
        self._in_flight: dict[str, int] = {}
        self._endpoints: tuple[Endpoint, ...] = ()
        self._known: dict[str, Endpoint] = {}
        self._past: dict[str, _Past] = {}
        self._tables: dict[str, DrawTable] = {}
        self._valid_until_ns = 0
        self._refresh_ns = 0
        self._readmission: _Readmission | None = None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints as published last, by id."""
        return self._endpoints

    def hear(self, snapshot: wire.Snapshot, endpoints: Mapping[str, wire.Endpoint]) -> None:
        """The service is alive: take up `endpoints`, by id, all there are after `snapshot`."""
        now_ns = self._clock.now().mono_ns
        with self._lock:
            if now_ns > self._valid_until_ns:
                for past in self._past.values():
                    past.skip(self._valid_until_ns, now_ns)
            self._valid_until_ns = now_ns + snapshot.valid_for_ms * NS_PER_MS
            was_silent, self._readmission = self._readmission is not None, None
            is_news = snapshot.full or snapshot.endpoints or snapshot.removed
            if is_news:
                self._remember(endpoints, snapshot.endpoints, now_ns)
            if is_news or was_silent:
                self._build(now_ns)

    def pick(self, pool: str = "") -> Endpoint | None:
        """An endpoint of `pool` ("" = any pool) for the next request; None when there is none."""
        now_ns = self._clock.now().mono_ns
        with self._lock:
            if now_ns > self._valid_until_ns and now_ns >= self._refresh_ns:
                self._build(now_ns)
            table = self._tables.get(pool)
            if table is None:
                return None
            first, second = table.draw_two(self._rng)
            if first == second:
                return table.endpoints[first]
            first_load = self._in_flight.get(table.endpoints[first].id, 0) / table.weights[first]
            second_load = self._in_flight.get(table.endpoints[second].id, 0) / table.weights[second]
            return table.endpoints[first if first_load <= second_load else second]

    def request(self, endpoint: Endpoint) -> "Lease":
        """Count a request to `endpoint` as in flight: `with picker.request(endpoint): ...`."""
        return Lease(self, endpoint)

    def in_flight(self, endpoint_id: str) -> int:
        """This agent's requests under way to an endpoint."""
        return self._in_flight.get(endpoint_id, 0)

    def begin(self, endpoint_id: str) -> None:
        """Count one more request under way."""
        with self._lock:
            self._in_flight[endpoint_id] = self._in_flight.get(endpoint_id, 0) + 1

    def end(self, endpoint_id: str, *, is_failed: bool) -> None:
        """Count one less; a failure sends an endpoint that is being tried again to the back."""
        with self._lock:
            left = self._in_flight.get(endpoint_id, 0) - 1
            if left > 0:
                self._in_flight[endpoint_id] = left
            else:
                self._in_flight.pop(endpoint_id, None)
            if is_failed and self._readmission is not None:
                self._readmission.fail(endpoint_id)
                self._refresh_ns = 0

    def weights(self, pool: str = "") -> dict[str, float]:
        """The weights that picks follow now, by endpoint id; those without one get no request."""
        now_ns = self._clock.now().mono_ns
        with self._lock:
            if now_ns > self._valid_until_ns:
                self._build(now_ns)
            table = self._tables.get(pool)
        if table is None:
            return {}
        return {
            endpoint.id: weight
            for endpoint, weight in zip(table.endpoints, table.weights, strict=True)
        }

    def _remember(
        self,
        endpoints: Mapping[str, wire.Endpoint],
        changed: Iterable[wire.Endpoint],
        now_ns: int,
    ) -> None:
        for sent in changed:
            past = self._past.get(sent.id)
            if past is None:
                past = self._past[sent.id] = _Past(now_ns)
            past.turn(_telling_weight(sent), now_ns)
            self._known[sent.id] = _endpoint(sent)
        for gone in self._known.keys() - endpoints.keys():
            del self._past[gone], self._known[gone]
        self._endpoints = tuple(
            self._known[name] for name in sorted(self._known) if self._known[name].address
        )

    def _build(self, now_ns: int) -> None:
        weights = self._weights_now(now_ns)
        pools: dict[str, list[int]] = {}
        for i, endpoint in enumerate(self._endpoints):
            pools.setdefault(endpoint.pool, []).append(i)
        self._tables = {name: self._table(rows, weights, now_ns) for name, rows in pools.items()}
        if self._endpoints:
            self._tables[""] = self._table(range(len(self._endpoints)), weights, now_ns)
        self._refresh_ns = now_ns + REFRESH_NS

    def _table(self, rows: Sequence[int], weights: list[float], now_ns: int) -> "DrawTable":
        usable = [i for i in rows if weights[i] > 0.0]
        if usable and any(self._endpoints[i].state not in OUT for i in rows):
            return DrawTable([self._endpoints[i] for i in usable], [weights[i] for i in usable])
        averages = self._averages(now_ns)
        return DrawTable([self._endpoints[i] for i in rows], [averages[i] for i in rows])

    def _weights_now(self, now_ns: int) -> list[float]:
        weights = [
            0.0 if endpoint.state in OUT else endpoint.weight * endpoint.admission
            for endpoint in self._endpoints
        ]
        silent_ns = now_ns - self._valid_until_ns
        if silent_ns <= 0:
            return weights
        if self._readmission is None:
            opened = [each.id for each in self._endpoints if each.state is State.OPEN]
            self._readmission = _Readmission(opened, self._valid_until_ns)
        self._readmission.advance(now_ns)
        kept = math.exp(-silent_ns / (DRIFT_S * NS_PER_S))
        for i, average in enumerate(self._averages(now_ns)):
            if self._endpoints[i].state in OUT:
                weights[i] = average * self._readmission.share(self._endpoints[i].id, now_ns)
            else:
                weights[i] = average + (weights[i] - average) * kept
        return weights

    def _averages(self, now_ns: int) -> list[float]:
        """Each endpoint's long average; one that never had a telling weight takes the mean.

        Silence adds nothing to it: the last weights must not become the goal of their own drift.
        """
        until_ns = min(now_ns, self._valid_until_ns)
        known = [self._past[endpoint.id].average(until_ns) for endpoint in self._endpoints]
        told = [average for average in known if average > 0.0]
        fallback = sum(told) / len(told) if told else 1.0
        return [average if average > 0.0 else fallback for average in known]


class Lease:
    """One request under way; leaving with an exception counts it as failed."""

    __slots__ = ("_picker", "endpoint")

    def __init__(self, picker: Picker, endpoint: Endpoint) -> None:
        """Counts from `__enter__` to `__exit__`."""
        self._picker = picker
        self.endpoint = endpoint

    def __enter__(self) -> Endpoint:
        self._picker.begin(self.endpoint.id)
        return self.endpoint

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        is_failed = kind is not None and issubclass(kind, Exception)
        self._picker.end(self.endpoint.id, is_failed=is_failed)


class _Past:
    """The time-weighted average of one endpoint's telling weights, forgetting over `AVERAGE_S`."""

    __slots__ = ("_share", "_since_ns", "_sum", "_weight")

    def __init__(self, now_ns: int) -> None:
        self._weight: float | None = None
        self._since_ns = now_ns
        self._sum = 0.0
        self._share = 0.0

    def turn(self, weight: float | None, now_ns: int) -> None:
        """From now on the weight is `weight`; None = it tells nothing of the capacity."""
        self._sum, self._share = self._totals(now_ns)
        self._since_ns = now_ns
        self._weight = weight

    def skip(self, from_ns: int, to_ns: int) -> None:
        """Leave the time between out: nobody said what the weight should have been."""
        self._sum, self._share = self._totals(from_ns)
        self._since_ns = to_ns

    def average(self, now_ns: int) -> float:
        """The average so far; 0.0 when no weight ever told anything."""
        total, share = self._totals(now_ns)
        return total / share if share > 0.0 else self._weight or 0.0

    def _totals(self, now_ns: int) -> tuple[float, float]:
        if self._weight is None:
            return self._sum, self._share
        kept = math.exp(-max(now_ns - self._since_ns, 0) / (AVERAGE_S * NS_PER_S))
        return (
            self._sum * kept + self._weight * (1.0 - kept),
            self._share * kept + (1.0 - kept),
        )


class _Readmission:
    """Whose turn it is, while the service is silent, to be tried again after an open circuit."""

    __slots__ = ("_next_ns", "_since_ns", "_waiting")

    def __init__(self, opened: list[str], from_ns: int) -> None:
        self._waiting = deque(opened)
        self._since_ns: dict[str, int] = {}
        self._next_ns = from_ns

    def advance(self, now_ns: int) -> None:
        """Admit those whose turn has come."""
        while now_ns >= self._next_ns and self._waiting:
            self._since_ns[self._waiting.popleft()] = self._next_ns
            self._next_ns += round(READMIT_S * NS_PER_S)

    def fail(self, endpoint_id: str) -> None:
        """A request to it failed: its turn is over, and comes again after the others'."""
        if self._since_ns.pop(endpoint_id, None) is not None:
            self._waiting.append(endpoint_id)

    def share(self, endpoint_id: str, now_ns: int) -> float:
        """How much of its average it gets: 0 while waiting, then `PROBE_SHARE` rising to 1."""
        since_ns = self._since_ns.get(endpoint_id)
        if since_ns is None:
            return 0.0
        risen = min((now_ns - since_ns) / (READMIT_S * NS_PER_S), 1.0)
        return PROBE_SHARE + (1.0 - PROBE_SHARE) * risen


class DrawTable:
    """Endpoints to draw from, with positive weights; row i is `endpoints[i]`."""

    __slots__ = ("_last", "_sums", "endpoints", "weights")

    def __init__(self, endpoints: Sequence[Endpoint], weights: Sequence[float]) -> None:
        """At least one endpoint, a weight each."""
        self.endpoints = endpoints
        self.weights = weights
        self._sums = list(accumulate(weights))
        self._last = len(weights) - 1

    def draw_two(self, rng: random.Random) -> tuple[int, int]:
        """Two different rows by weight, the second among the others; the same twice if alone."""
        sums = self._sums
        first = min(bisect_right(sums, rng.random() * sums[-1]), self._last)
        weight = self.weights[first]
        others = sums[-1] - weight
        if self._last == 0 or others <= 0.0:
            return first, first
        point = rng.random() * others
        if point >= sums[first] - weight:
            point += weight
        return first, min(bisect_right(sums, point), self._last)


def _endpoint(sent: wire.Endpoint) -> Endpoint:
    state = STATES.get(sent.state, State.UNKNOWN)  # a newer service may know more states
    return Endpoint(sent.id, sent.pool, sent.address, sent.zone, sent.weight, state, sent.admission)


def _telling_weight(sent: wire.Endpoint) -> float | None:
    """A weight that says something of capacity; one held down by a circuit does not."""
    if sent.state in (wire.STATE_OPEN, wire.STATE_DRAINING, wire.STATE_HALF_OPEN):
        return None
    return sent.weight * sent.admission
