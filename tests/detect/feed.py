"""Series for detectors, and detectors fed with them; everything seeded."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from pipeline.detect import DETECTORS
from pipeline.detect.episodes import Episodes
from pipeline.detect.peers import Peers
from pipeline.detect.protocol import Detector, Samples, Scores
from pipeline.model import Bools, Floats, Int32s, Int64s

NAMES = list(DETECTORS)
START_S = 1_700_000_000.0
INTERVAL_S = 15.0
GROUP = 8
"""Members of a group of peers."""
STATISTICS = ("score", "expected", "band")


def made(name: str, n: int, groups: Int32s | None = None) -> Detector:
    """The detector at its defaults, with room for n series; peers in groups of eight."""
    detector = DETECTORS[name].make()
    grow(detector, n, groups)
    return detector


def grow(detector: Detector, n: int, groups: Int32s | None = None) -> None:
    detector.resize(n)
    if isinstance(detector, Peers):
        detector.set_groups(grouped(n) if groups is None else groups)


def grouped(n: int) -> Int32s:
    return (np.arange(n) // GROUP).astype(np.int32)


def fed(
    detector: Detector,
    values: Floats,
    *,
    first: int = 0,
    rows: Int64s | None = None,
    times: Floats | None = None,
    learn: Bools | None = None,
) -> Floats:
    """float64[3, rounds, k] score, expected and band of `values` float64[rounds, k]."""
    out = np.empty((3, *values.shape))
    row = np.arange(values.shape[1]) if rows is None else rows
    mask = np.ones(len(row), np.bool_) if learn is None else learn
    for number, value in enumerate(values):
        time_s = START_S + (first + number) * INTERVAL_S if times is None else times[number]
        samples = Samples(row, np.full(len(row), time_s), value)
        out[:, number] = detector.score(samples, mask)
    return out


def edges(
    episodes: Episodes, scores: Floats, values: Floats, *, first: int = 0
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(round, row) of all that fired and of all that resolved."""
    row = np.arange(values.shape[1])
    fired: list[tuple[int, int]] = []
    resolved: list[tuple[int, int]] = []
    for number, value in enumerate(values):
        time_s = np.full(len(row), START_S + (first + number) * INTERVAL_S)
        found = episodes.update(Samples(row, time_s, value), Scores(*scores[:, number]))
        fired += [(number, int(each)) for each in found.fired]
        resolved += [(number, int(each)) for each in found.resolved]
    return fired, resolved


def noise(rounds: int, n: int, seed: int = 1) -> Floats:
    """float64[rounds, n] independent, standard normal."""
    return np.random.default_rng(seed).normal(size=(rounds, n))


def ar1(rounds: int, n: int, rho: float = 0.9, seed: int = 2) -> Floats:
    """float64[rounds, n] autoregressive, of unit variance."""
    values = noise(rounds, n, seed)
    values[1:] *= np.sqrt(1.0 - rho * rho)
    for number in range(1, rounds):
        values[number] += rho * values[number - 1]
    return values


def lively(rounds: int, n: int, seed: int = 3) -> Floats:
    """Noise about a wave, with steps, spikes and stretches that do not move."""
    values = 50.0 + noise(rounds, n, seed)
    values += 5.0 * np.sin(np.arange(rounds) / 40.0)[:, None]
    random = np.random.default_rng(seed + 1)
    for column in range(n):
        at = int(random.integers(rounds // 2, rounds))
        values[at:, column] += 20.0 * random.normal()
        values[rounds // 4 : rounds // 4 + 20, column] = values[rounds // 4, column]
        values[int(random.integers(0, rounds)), column] += 40.0
    return values


def parts(k: int, seed: int) -> Iterator[Int64s]:
    """A cut of k places into up to four ascending parts."""
    random = np.random.default_rng(seed)
    of = random.integers(0, random.integers(1, 5), size=k)
    for each in np.unique(of):
        yield np.flatnonzero(of == each)


def same_state(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Equal to the bit, NaN included."""
    return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    return bool(a == b)
