"""What the demo shows, in numbers: when trouble was noticed and what it did to latency.

Enters: acts of the story, decisions as they are heard, finished attempts and requests, each with
its moment in seconds of one clock. Leaves: an `Outcome`. Pure; a phase is a stretch of the story.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from pipeline.demo.story import PHASE_OF, TROUBLE, Act, Phase
from pipeline.demo.traffic import Attempt, Request
from pipeline.model import State
from pipeline.pick import Endpoint

NOTICED_RATIO: Final = 0.5
"""A slow engine counts as noticed below this share of the weight that it had before."""
BACK_RATIO: Final = 0.5
"""A restarted one counts as back when it is HEALTHY again with this share."""
MAX_KEPT: Final = 100_000
"""Durations kept of one phase; an hour makes about as many. Later ones are only counted."""
RECENT_S: Final = 5.0
MAX_RECENT: Final = 4_096
MIN_ATTEMPTS: Final = 40
"""From so many attempts on, a share means something."""
MIN_UPDATES_PER_S: Final = 5.0
MAX_OPEN_S: Final = 3.0


@dataclass(slots=True)
class PhaseCount:
    """Requests and attempts of one phase."""

    requests: int = 0
    failed: int = 0
    retried: int = 0
    durations_s: list[float] = field(default_factory=list)
    attempts: Counter[str] = field(default_factory=Counter)
    """By address."""

    def share(self, address: str) -> float | None:
        """The part of the attempts that went to `address`; None without any."""
        total = self.attempts.total()
        return self.attempts[address] / total if total else None


class Row(NamedTuple):
    """One phase in the summary; latencies in ms, None without requests."""

    phase: Phase
    requests: int
    share: float | None
    p50_ms: float | None
    p99_ms: float | None
    retried: int
    failed: int


class Outcome(NamedTuple):
    """The whole demo; None is what could not be seen."""

    endpoints: int
    epochs: int
    updates_per_s: float
    slow_noticed_s: float | None
    share_of_slow_before: float | None
    share_of_slow_after: float | None
    killed_open_s: float | None
    recovered_s: float | None
    requests: int
    retried_requests: int
    failed_requests: int
    p99_ms_before: float | None
    p99_ms_during: float | None
    p99_ms_after: float | None
    telemetry: str
    """What brought the engines' metrics: collector or scraper."""

    def shortfalls(self) -> list[str]:
        """What the demo set out to show and did not, one plain sentence each."""
        claims = {
            "No endpoint was ever published.": self.endpoints > 0,
            f"Fewer than {MIN_UPDATES_PER_S:g} decisions were made a second.": (
                self.updates_per_s >= MIN_UPDATES_PER_S
            ),
            "The slow engine was not noticed while it was slow.": self.slow_noticed_s is not None,
            "The slow engine was noticed, but kept more than half of its traffic.": (
                self.share_of_slow_before is None
                or self.share_of_slow_after is None
                or self.share_of_slow_after < self.share_of_slow_before / 2
            ),
            "The circuit of the killed engine did not open while it was down.": (
                self.killed_open_s is not None
            ),
            f"The circuit of the killed engine opened later than after {MAX_OPEN_S:g} s.": (
                self.killed_open_s is None or self.killed_open_s <= MAX_OPEN_S
            ),
            "The restarted engine was not back before the end.": self.recovered_s is not None,
        }
        return [sentence for sentence, holds in claims.items() if not holds]


class Measure:
    """Collects; `target` is the address of the engine that things happen to."""

    def __init__(self, target: str) -> None:
        """Nothing has happened; the phase is the warm-up."""
        self.phase = Phase.WARM_UP
        self.phases = {phase: PhaseCount() for phase in Phase}
        self.endpoints = 0
        self.slow_noticed_s: float | None = None
        self.killed_open_s: float | None = None
        self.recovered_s: float | None = None
        self._target = target
        self._weight = 0
        self._state = State.UNKNOWN
        self._weight_before = 0
        self._acted_s: dict[Act, float] = {}

    def acted(self, act: Act, at_s: float) -> None:
        """An act of the story begins."""
        self._acted_s[act] = at_s
        self.phase = PHASE_OF.get(act, self.phase)
        if act is Act.SLOW:
            self._weight_before = self._weight

    def heard(self, endpoints: Iterable[Endpoint], at_s: float) -> None:
        """The decisions in force at `at_s`."""
        by_address = {endpoint.address: endpoint for endpoint in endpoints}
        self.endpoints = max(self.endpoints, len(by_address))
        found = by_address.get(self._target)
        if found is None:
            return
        self._weight, self._state = found.weight, found.state
        if self.phase is Phase.UNNOTICED and found.weight < NOTICED_RATIO * self._weight_before:
            self.slow_noticed_s = at_s - self._acted_s[Act.SLOW]
            self.phase = Phase.NOTICED
        elif self.phase is Phase.DOWN and found.state is State.OPEN:
            self.killed_open_s = _first(self.killed_open_s, at_s - self._acted_s[Act.KILL])
        elif self.phase is Phase.AFTER and self._is_back(found):
            self.recovered_s = _first(self.recovered_s, at_s - self._acted_s[Act.RESTART])

    def attempt(self, phase: Phase, attempt: Attempt) -> None:
        """An attempt that began in `phase` ended."""
        self.phases[phase].attempts[attempt.address] += 1

    def request(self, phase: Phase, request: Request) -> None:
        """A request that began in `phase` ended."""
        count = self.phases[phase]
        count.requests += 1
        count.failed += request.failed
        count.retried += request.retried
        if len(count.durations_s) < MAX_KEPT:
            count.durations_s.append(request.duration_s)

    def has_seen(self, act: Act) -> bool:
        """Whether what is to be seen before `act` was seen; a kill needs a closed circuit."""
        match act:
            case Act.UNSLOW:
                return self.phases[Phase.NOTICED].attempts.total() >= MIN_ATTEMPTS
            case Act.KILL:
                return self._state in (State.HEALTHY, State.DEGRADED)
            case Act.RESTART:
                return self.killed_open_s is not None
            case Act.END:
                return self.recovered_s is not None
        return True

    def at_s(self, act: Act) -> float | None:
        """When `act` began, None if it did not."""
        return self._acted_s.get(act)

    def rows(self) -> list[Row]:
        """The phases that saw requests, in the order of the story."""
        return [
            Row(
                phase,
                count.requests,
                count.share(self._target),
                quantile_ms(count.durations_s, 0.5),
                quantile_ms(count.durations_s, 0.99),
                count.retried,
                count.failed,
            )
            for phase, count in self.phases.items()
            if count.requests
        ]

    def outcome(self, *, epochs: int, seconds: float, telemetry: str) -> Outcome:
        """The end of it: `epochs` were decided in `seconds`."""
        counts = self.phases.values()
        return Outcome(
            endpoints=self.endpoints,
            epochs=epochs,
            updates_per_s=round(epochs / seconds, 2),
            slow_noticed_s=_rounded(self.slow_noticed_s),
            share_of_slow_before=_rounded(self.phases[Phase.BEFORE].share(self._target)),
            share_of_slow_after=_rounded(self.phases[Phase.NOTICED].share(self._target)),
            killed_open_s=_rounded(self.killed_open_s),
            recovered_s=_rounded(self.recovered_s),
            requests=sum(count.requests for count in counts),
            retried_requests=sum(count.retried for count in counts),
            failed_requests=sum(count.failed for count in counts),
            p99_ms_before=self._p99_ms(Phase.BEFORE),
            p99_ms_during=self._p99_ms(*TROUBLE),
            p99_ms_after=self._p99_ms(Phase.AFTER),
            telemetry=telemetry,
        )

    def _is_back(self, found: Endpoint) -> bool:
        return (
            self.killed_open_s is not None
            and found.state is State.HEALTHY
            and found.weight >= BACK_RATIO * self._weight_before
        )

    def _p99_ms(self, *phases: Phase) -> float | None:
        return quantile_ms([s for phase in phases for s in self.phases[phase].durations_s], 0.99)


class Recent:
    """Attempts of the last `RECENT_S` seconds, for the live view."""

    def __init__(self) -> None:
        """Empty."""
        self._attempts: deque[tuple[float, str, float]] = deque(maxlen=MAX_RECENT)

    def add(self, attempt: Attempt, at_s: float) -> None:
        """An attempt ended at `at_s`."""
        self._attempts.append((at_s, attempt.address, attempt.duration_s))

    def durations_s(self, at_s: float) -> Mapping[str, list[float]]:
        """Durations by address of what ended within the window before `at_s`."""
        while self._attempts and self._attempts[0][0] < at_s - RECENT_S:
            self._attempts.popleft()
        found: dict[str, list[float]] = {}
        for _, address, duration_s in self._attempts:
            found.setdefault(address, []).append(duration_s)
        return found


def quantile_ms(durations_s: list[float], q: float) -> float | None:
    """The `q` quantile in milliseconds, linear between neighbours; None of nothing.

    >>> quantile_ms([0.010, 0.020, 0.030], 0.5)
    20.0
    """
    return round(float(np.quantile(durations_s, q)) * 1000, 1) if durations_s else None


def _first(known: float | None, now: float) -> float:
    return now if known is None else known


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
