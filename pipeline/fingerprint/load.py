"""The load fingerprint of endpoints, and how far CPU and GPU wait for each other.

Coupling C = 0.4 z(cpu_busy) + 0.3 z(gpu_stall) + 0.3 corr64(fp16, mem_bw), clipped to [0, 1], where
z(x) is Phi((x - mean) / deviation) against the endpoint's hardware class over 24 h, gpu_stall is
`cuda_stream_block_ratio` and corr64 Pearson's correlation over the last 64 samples. Where an input
is absent, does not vary or has too few samples, C is absent (NaN). Arrays are indexed by slot.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

import numpy as np

from pipeline.clock import NS_PER_S, Instant
from pipeline.model import Bools, Bytes, Directory, Floats, Int32s, Int64s, SignalMatrix
from pipeline.signals import SIGNAL_INDEX

WINDOW: Final = 64
"""Samples of a correlation."""
MIN_SAMPLES: Final = 16
"""Of an endpoint, below which a correlation says nothing: its own error is above 0.25."""
MIN_CLASS_SAMPLES: Final = 64
HOURS: Final = 24
MAX_CLASSES: Final = 1024
"""Pools times roles times engines; endpoints of further ones have no coupling."""
SAMPLE_GAP_S: Final = 0.05
"""Agents report at most twenty times a second; what is nearer is the same sample."""
FINGERPRINT: Final = (
    "fp16_ratio",
    "mem_bandwidth_ratio",
    "cpu_preprocess_s",
    "kernel_launch_interval_s",
)
"""Signals that tell kinds of load apart."""
LOOSE_BELOW: Final = 0.3
TIGHT_ABOVE: Final = 0.7
HYSTERESIS: Final = 0.05
"""A band is left only this far beyond its border."""

_WEIGHTS: Final = (0.4, 0.3, 0.3)
_CLASS_SIGNALS: Final = ("cpu_busy_ratio", "cuda_stream_block_ratio")
_PAIR: Final = ("fp16_ratio", "mem_bandwidth_ratio")
_HOUR_NS: Final = 3600 * NS_PER_S


class Band(IntEnum):
    """How tight the coupling is."""

    ABSENT = 0
    LOOSE = 1
    MEDIUM = 2
    TIGHT = 3


ADVICE: Final[Mapping[Band, str]] = {
    Band.ABSENT: "",
    Band.LOOSE: "CPU and GPU work apart; nothing to do",
    Band.MEDIUM: "CPU work shows in GPU waits; give pre-processing its own cores before adding "
    "load",
    Band.TIGHT: "CPU and GPU wait for each other; move tokenisation and pre-processing off the "
    "engine's cores, pin it near its GPU, or raise its CPU limit",
}


def normal_cdf(z: Floats) -> Floats:
    """Phi by Abramowitz and Stegun 26.2.17; the error is below 7.5e-8.

    >>> normal_cdf(np.array([0.0, 1.96, -1.96])).round(3).tolist()
    [0.5, 0.975, 0.025]
    """
    t = 1.0 / (1.0 + 0.2316419 * np.abs(z))
    series = np.zeros_like(t)
    for factor in (1.330274429, -1.821255978, 1.781477937, -0.356563782, 0.319381530):
        series = (series + factor) * t
    upper = series * np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    found: Floats = np.where(z >= 0, 1.0 - upper, upper)
    return found


def correlation(x: Floats, y: Floats, is_there: Bools) -> Floats:
    """float64[n]: Pearson's r of the rows of x, y [n, k] where `is_there`; NaN where one is flat.

    >>> x = np.array([[1.0, 2.0, 3.0], [1.0, 1.0, 1.0]])
    >>> correlation(x, x * 2, np.ones((2, 3), bool)).round(6).tolist()
    [1.0, nan]
    """
    count = np.maximum(np.add.reduce(is_there, axis=1), 1)[:, None]
    x, y = np.where(is_there, x, 0.0), np.where(is_there, y, 0.0)
    dx = np.where(is_there, x - np.add.reduce(x, axis=1)[:, None] / count, 0.0)
    dy = np.where(is_there, y - np.add.reduce(y, axis=1)[:, None] / count, 0.0)
    of_x, of_y = np.add.reduce(dx * dx, axis=1), np.add.reduce(dy * dy, axis=1)
    flat = (of_x <= 1e-12) | (of_y <= 1e-12)
    both = np.sqrt(np.where(flat, 1.0, of_x * of_y))
    return np.where(flat, np.nan, np.add.reduce(dx * dy, axis=1) / both)


def next_bands(coupling: Floats, before: Bytes) -> Bytes:
    """uint8[n] of `Band`: where coupling is, left only beyond a border; unchanged where absent.

    >>> [Band(band).name for band in next_bands(np.array([0.1, 0.68]), np.array([2, 3], np.uint8))]
    ['LOOSE', 'TIGHT']
    """
    margin = np.where(before == Band.ABSENT, 0.0, HYSTERESIS)
    low = LOOSE_BELOW + np.where(before == Band.LOOSE, margin, -margin)
    high = TIGHT_ABOVE + np.where(before == Band.TIGHT, -margin, margin)
    with np.errstate(invalid="ignore"):
        band = np.where(coupling < low, Band.LOOSE, Band.MEDIUM)
        band = np.where(coupling > high, Band.TIGHT, band)
    return np.where(np.isnan(coupling), before, band).astype(np.uint8)


class LoadFingerprints:
    """Coupling of every endpoint; `resize` comes first, then `observe` at ticks."""

    def __init__(self) -> None:
        """No slots, no classes."""
        self._pairs = np.zeros((0, 2, WINDOW))
        self._n = np.zeros(0, np.int64)
        self._seen_s = np.zeros(0)
        self._band = np.zeros(0, np.uint8)
        self._last_band = np.zeros(0, np.uint8)
        self.fingerprint: Floats = np.zeros((len(FINGERPRINT), 0))
        """float64[4, n]: the newest value of each signal of `FINGERPRINT`, NaN = absent."""
        self.coupling: Floats = np.zeros(0)
        """float64[n]: C, NaN = absent."""
        self._classes = _Classes()
        self._of: Int32s = np.zeros(0, np.int32)
        self._version = -1

    @property
    def band(self) -> Bytes:
        """uint8[n] of `Band`, with hysteresis."""
        return self._band

    def resize(self, n_slots: int) -> None:
        """Make room for `n_slots` endpoints; it never shrinks."""
        missing = n_slots - len(self._n)
        if missing <= 0:
            return
        self._pairs = np.concatenate((self._pairs, np.zeros((missing, 2, WINDOW))))
        self._n = np.concatenate((self._n, np.zeros(missing, np.int64)))
        self._seen_s = np.concatenate((self._seen_s, np.full(missing, -np.inf)))
        self._band = np.concatenate((self._band, np.zeros(missing, np.uint8)))
        self._last_band = np.concatenate((self._last_band, np.zeros(missing, np.uint8)))
        self.coupling = np.concatenate((self.coupling, np.full(missing, np.nan)))
        unknown = np.full((len(FINGERPRINT), missing), np.nan)
        self.fingerprint = np.concatenate((self.fingerprint, unknown), axis=1)

    def forget(self, slots: Int32s) -> None:
        """Empty the slots, for other endpoints."""
        self._n[slots] = 0
        self._seen_s[slots] = -np.inf
        self._band[slots] = self._last_band[slots] = Band.ABSENT
        self.coupling[slots] = np.nan
        self.fingerprint[:, slots] = np.nan

    def observe(self, signals: SignalMatrix, directory: Directory, now: Instant) -> Int64s:
        """Take in new samples; the slots whose band is another than the last one known."""
        self.fingerprint = signals.value[[SIGNAL_INDEX[name] for name in FINGERPRINT]]
        rows = [SIGNAL_INDEX[name] for name in (*_CLASS_SIGNALS, *_PAIR)]
        values, age_s = signals.value[rows], np.max(signals.age_s[rows], axis=0)
        is_whole = ~np.isnan(values).any(axis=0) & np.isfinite(age_s) & directory.known
        self.coupling = np.where(is_whole, self.coupling, np.nan)
        if is_whole.any():
            at_s = now.mono_ns / NS_PER_S - age_s
            fresh = np.flatnonzero(is_whole & (at_s > self._seen_s + SAMPLE_GAP_S))
            self._learn(values, at_s, fresh, directory, now)
            self._couple(values, np.flatnonzero(is_whole))
        return self._move_bands()

    def _learn(
        self, values: Floats, at_s: Floats, fresh: Int64s, directory: Directory, now: Instant
    ) -> None:
        if directory.version != self._version or len(self._of) != directory.n:
            self._of, self._version = self._classes.of(directory), directory.version
        if not len(fresh):
            return
        self._seen_s[fresh] = at_s[fresh]
        self._pairs[fresh, :, self._n[fresh] % WINDOW] = values[2:, fresh].T
        self._n[fresh] += 1
        self._classes.learn(self._of[fresh], values[:2, fresh], now)

    def _couple(self, values: Floats, slots: Int64s) -> None:
        n = np.minimum(self._n[slots], WINDOW)
        is_there = np.arange(WINDOW) < n[:, None]
        pairs = self._pairs[slots]
        r = correlation(pairs[:, 0], pairs[:, 1], is_there)
        r[n < MIN_SAMPLES] = np.nan
        busy, stall = normal_cdf(self._classes.z(self._of[slots], values[:2, slots]))
        whole = _WEIGHTS[0] * busy + _WEIGHTS[1] * stall + _WEIGHTS[2] * r
        self.coupling[slots] = np.clip(whole, 0.0, 1.0)

    def _move_bands(self) -> Int64s:
        """A coupling that is absent for a while comes back to the band that it had."""
        before, self._last_band = self._last_band, next_bands(self.coupling, self._last_band)
        is_absent = np.isnan(self.coupling)
        self._band = np.where(is_absent, np.uint8(Band.ABSENT), self._last_band)
        return np.flatnonzero(self._last_band != before)

    def export_state(self) -> dict[str, Any]:
        """What classes were like in each hour; endpoints start anew."""
        return self._classes.export_state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up exported state; `ValueError` when it does not fit."""
        self._classes.restore(state)


class _Classes:
    """Mean and deviation of hardware classes over a day, kept by the hour."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, ...], int] = {}
        self._sums = np.zeros((0, HOURS, 2, 3))
        """[class, hour of the day, signal, (samples, sum, sum of squares)]"""
        self._hour = np.zeros((0, HOURS), np.int64)
        """Hours since the epoch that the sums are of."""
        self._now_hour = 0

    def of(self, directory: Directory) -> Int32s:
        """int32[n]: the class of each slot, -1 = none."""
        found = np.full(directory.n, -1, np.int32)
        for slot in np.flatnonzero(directory.known).tolist():
            place = int(directory.pool[slot])
            pool = directory.pools[place] if place >= 0 else ""
            name = (pool, str(directory.role[slot]), directory.engine[slot])
            if name not in self._ids and len(self._ids) < MAX_CLASSES:
                self._add(name)
            found[slot] = self._ids.get(name, -1)
        return found

    def _add(self, name: tuple[str, ...]) -> None:
        self._ids[name] = len(self._ids)
        self._sums = np.concatenate((self._sums, np.zeros((1, HOURS, 2, 3))))
        self._hour = np.concatenate((self._hour, np.zeros((1, HOURS), np.int64)))

    def learn(self, classes: Int32s, values: Floats, now: Instant) -> None:
        """Add samples, float64[2, k] of `classes` int32[k], to this hour."""
        self._now_hour = now.wall_ns // _HOUR_NS
        place = self._now_hour % HOURS
        old = np.flatnonzero(self._hour[:, place] != self._now_hour)
        self._sums[old, place] = 0.0
        self._hour[old, place] = self._now_hour
        known = classes >= 0
        classes, values = classes[known], values[:, known]
        moments = np.stack((np.ones_like(values), values, values * values), axis=-1)
        np.add.at(self._sums[:, place], classes, np.swapaxes(moments, 0, 1))

    def z(self, classes: Int32s, values: Floats) -> Floats:
        """float64[2, k]: deviations from the mean of the class; NaN where it says too little."""
        is_recent = (self._hour > self._now_hour - HOURS) & (self._hour <= self._now_hour)
        sums = np.add.reduce(np.where(is_recent[:, :, None, None], self._sums, 0.0), axis=1)
        sums = np.concatenate((sums, np.zeros((1, 2, 3))))[classes]  # the last one is for none
        n = np.maximum(sums[..., 0], 1.0).T
        mean = sums[..., 1].T / n
        variance = sums[..., 2].T / n - mean * mean
        too_little = (n < MIN_CLASS_SAMPLES) | (variance <= 1e-12)
        deviation = np.sqrt(np.where(too_little, 1.0, variance))
        return np.where(too_little, np.nan, (values - mean) / deviation)

    def export_state(self) -> dict[str, Any]:
        return {
            "names": [list(name) for name in self._ids],
            "hours": self._hour.tolist(),
            "sums": self._sums.tolist(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        names = [tuple(str(part) for part in name) for name in state["names"]]
        hours = np.array(state["hours"], np.int64).reshape(-1, HOURS)
        sums = np.array(state["sums"], np.float64).reshape(-1, HOURS, 2, 3)
        if not len(names) == len(hours) == len(sums) <= MAX_CLASSES or len(set(names)) < len(names):
            raise ValueError("hardware classes do not fit")
        if not np.isfinite(sums).all():
            raise ValueError("sums of hardware classes are no numbers")
        self._ids = {name: i for i, name in enumerate(names)}
        self._hour, self._sums = hours, sums
