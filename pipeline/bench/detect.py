"""`tailrace bench detect`: what the detectors cost, one by one and all together.

Rounds of every series at once, as after a scrape. The detectors take turns, so that what the
machine does meanwhile meets all of them; the figure is the median of their rounds, in CPU time of
this process. Series are noise about a daily wave with a step now and then: what a detector does
about an anomaly is part of its cost.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pipeline.bench.figures import spread
from pipeline.bench.machine import describe
from pipeline.detect import DETECTORS
from pipeline.detect.mahalanobis import Mahalanobis, Vectors
from pipeline.detect.peers import Peers
from pipeline.detect.protocol import Detector, Samples
from pipeline.model import Bools, Floats

SIZES: Final = (1_000, 10_000, 40_000)
TOGETHER: Final = "all vectorised detectors together"
INTERVAL_S: Final = 15.0
START_S: Final = 1_700_000_000.0
GROUP: Final = 40
"""Members of a group of peers."""
SIGNALS: Final = 20
"""Of an endpoint, for the multivariate detector: its series are endpoints times signals."""
DISTINCT: Final = 64
"""Rounds of values made beforehand."""
STEP_EVERY: Final = 512
"""One series in so many has a step in a round."""
WHOLE: Final = 32
"""Rounds whose mean is one figure: some detectors work harder every 4, 16 or 32 rounds."""
SEED: Final = 7

QUICK: Final = {"warm_rounds": 64, "rounds": 32}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured."""

    sizes: tuple[int, ...] = SIZES
    warm_rounds: int = 320
    """Before any is counted: every detector has scores by then."""
    rounds: int = 160
    """Measured, a detector; in fives of `WHOLE`."""


def run(plan: Plan, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure; a row a detector and size."""
    rows: list[dict[str, Any]] = []
    for size in plan.sizes:
        tell(f"{size:,} series")
        rows += _measure(size, plan)
    return {"rows": rows, "machine": _machine(), "interval_s": INTERVAL_S}


def _measure(size: int, plan: Plan) -> list[dict[str, Any]]:
    subjects = [*_vectorised(size), _multivariate(size)]
    values = _values(size)
    for number in range(plan.warm_rounds):
        for subject in subjects:
            subject.feed(values[number % DISTINCT], number)
    for number in range(plan.warm_rounds, plan.warm_rounds + plan.rounds):
        for subject in subjects:
            begun_s = time.process_time()
            subject.feed(values[number % DISTINCT], number)
            subject.cpu_s.append(time.process_time() - begun_s)
    rows = [subject.row() for subject in subjects]
    return [*rows, _together(size, subjects[:-1])]


class _Subject:
    """One detector that is measured."""

    def __init__(
        self, name: str, size: int, feed: Callable[[Floats, int], object], nbytes: Callable[[], int]
    ) -> None:
        self.name = name
        self.size = size
        self.feed = feed
        self.nbytes = nbytes
        self.cpu_s: list[float] = []

    def row(self) -> dict[str, Any]:
        return _row(self.name, self.size, self.cpu_s, self.nbytes())


def _row(name: str, size: int, cpu_s: list[float], nbytes: int) -> dict[str, Any]:
    means = [statistics.fmean(cpu_s[at : at + WHOLE]) for at in range(0, len(cpu_s), WHOLE)]
    each_s = statistics.median(means)
    return {
        "detector": name,
        "series": size,
        "updates_per_s": round(size / each_s) if each_s > 0 else None,
        "us_per_update": round(each_s / size * 1e6, 4),
        "bytes_per_series": round(nbytes / size),
        "spread": round(spread(means), 3),
    }


def _together(size: int, subjects: list[_Subject]) -> dict[str, Any]:
    """The sum of all in each round."""
    rounds = [sum(each) for each in zip(*(subject.cpu_s for subject in subjects), strict=True)]
    return _row(TOGETHER, size, rounds, sum(subject.nbytes() for subject in subjects))


def _vectorised(size: int) -> Iterator[_Subject]:
    for name, declared in DETECTORS.items():
        detector = declared.make()
        detector.resize(size)
        if isinstance(detector, Peers):
            detector.set_groups((np.arange(size) // GROUP).astype(np.int32))
        yield _Subject(name, size, _Feed(detector, size), lambda d=detector: d.nbytes)  # type: ignore[misc]


class _Feed:
    """Rounds of one sample a series."""

    def __init__(self, detector: Detector, size: int) -> None:
        self._detector = detector
        self._row = np.arange(size)
        self._learn: Bools = np.ones(size, np.bool_)

    def __call__(self, value: Floats, number: int) -> object:
        time_s = np.full(len(value), START_S + number * INTERVAL_S)
        return self._detector.score(Samples(self._row, time_s, value), self._learn)


def _multivariate(size: int) -> _Subject:
    detector, endpoints = Mahalanobis(signals=SIGNALS), size // SIGNALS
    detector.resize(endpoints)
    row, learn = np.arange(endpoints), np.ones(endpoints, np.bool_)

    def feed(value: Floats, number: int) -> object:
        time_s = np.full(endpoints, START_S + number * INTERVAL_S)
        return detector.score(Vectors(row, time_s, value.reshape(endpoints, SIGNALS)), learn)

    return _Subject(detector.name, size, feed, lambda: detector.nbytes)


def _values(size: int) -> Floats:
    """float64[rounds, size], the same in every run."""
    random = np.random.default_rng(SEED)
    values = random.normal(100.0, 5.0, (DISTINCT, size))
    values += 20.0 * np.sin(np.arange(DISTINCT) / DISTINCT * 2.0 * np.pi)[:, None]
    values[random.random((DISTINCT, size)) < 1.0 / STEP_EVERY] += 100.0
    return values


def _machine() -> dict[str, Any]:
    """Without the decoder, which takes no part."""
    return {name: fact for name, fact in describe("none").items() if name != "decoder"}
