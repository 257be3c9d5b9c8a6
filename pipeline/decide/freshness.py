"""How far each endpoint's data is trusted now, and which pools have lost all telemetry.

Age counts in multiples of the endpoint's own report interval. Silence counts only beside peers that
are heard: when a whole pool falls silent the fault is on our side and nothing in it ages.
"""

from typing import ClassVar, NamedTuple

import numpy as np

from pipeline.decide.columns import Blanks, Columns
from pipeline.decide.config import FreshnessConfig
from pipeline.decide.groups import Groups
from pipeline.model import Bools, Floats, Int32s, Int64s, Observation
from pipeline.signals import SIGNAL_INDEX

GAP_MEMORY_S = 600.0  # a pause that was normal ten minutes ago says little about now
MAX_GAP_S = 60.0  # an outage must not teach that outages are normal
HEARTBEATS = np.array(
    [
        SIGNAL_INDEX[name]
        for name in ("engine_up", "running", "queue_depth", "output_tokens_per_s", "gpu_power_w")
    ]
)
"""Signals that scrapes and agents report by the clock."""
STEPS = np.array([1.0, 0.5, 0.25, 0.0])  # confidence at trusted, drifted, capped, silent


class Fresh(NamedTuple):
    """One tick's view of the age of data, per slot; `frozen` per pool."""

    news: Bools
    """Something arrived since the last tick: only then may targets move"""
    interval_s: Floats
    silence: Floats
    """Intervals of silence while the pool was heard; 0 when never heard"""
    confidence: Floats
    frozen: Bools


class Freshness(Columns):
    """Tracks report intervals and silence."""

    BLANK: ClassVar[Blanks] = {
        "last_age_s": ("float64", np.inf),
        "gap_s": ("float64", 0.0),
        "heard": ("bool", False),
    }
    last_age_s: Floats
    gap_s: Floats
    heard: Bools

    def __init__(self, config: FreshnessConfig) -> None:
        """Start without slots and pools."""
        super().__init__()
        self._config = config
        self._frozen = np.zeros(0, np.bool_)
        self._thawed_s = np.zeros(0)

    def update(self, observation: Observation, groups: Groups, dt_s: float) -> Fresh:
        """Take one tick's ages. `dt_s` is the time since the last tick."""
        age = observation.heard_age_s
        pool = observation.directory.pool
        news = np.isfinite(age) & ((age <= self.last_age_s + 0.5 * dt_s) | ~self.heard)
        interval = self._interval(observation, news, dt_s)
        self.heard |= news
        self.last_age_s = np.where(np.isfinite(age), age, np.inf)
        absolute = np.where(self.heard & np.isfinite(age), age, np.inf) / interval
        frozen = self._freeze(pool, groups, absolute, dt_s)
        confidence = np.where(self.heard, self._confidence(absolute), 0.0)
        silence = self._silence(age, pool, groups) / interval
        return Fresh(news & ~observation.catching_up, interval, silence, confidence, frozen)

    def _interval(self, observation: Observation, news: Bools, dt_s: float) -> Floats:
        """The rhythm of what reports by itself; requests come when they come.

        Without such a source: the fastest one, but not below the default, and never below the
        pauses that the endpoint has shown to be usual.
        """
        config = self._config
        signals = observation.signals
        seen = np.isfinite(signals.age_s[HEARTBEATS])
        rhythm = np.fmin.reduce(np.where(seen, signals.interval_s[HEARTBEATS], np.nan), axis=0)
        by_request = np.fmax(observation.report_interval_s, config.default_interval_s)
        interval = np.where(np.isnan(rhythm), by_request, rhythm)
        gap = np.where(np.isfinite(self.last_age_s), self.last_age_s + dt_s, 0.0)
        self.gap_s *= np.exp(-dt_s / GAP_MEMORY_S)
        longer = np.maximum(self.gap_s, np.minimum(gap, MAX_GAP_S))
        self.gap_s = np.where(news, longer, self.gap_s)
        return np.maximum(np.maximum(interval, config.min_interval_s), self.gap_s)

    def _freeze(self, pool: Int32s, groups: Groups, absolute: Floats, dt_s: float) -> Bools:
        """A pool is frozen when everyone in it who was ever heard is past trust."""
        pools = int(pool.max(initial=-1)) + 1
        heard = groups.slots[self.heard[groups.slots]]
        trusted = heard[absolute[heard] <= self._config.trusted]
        any_heard = np.bincount(pool[heard], minlength=pools) > 0
        frozen: Bools = any_heard & (np.bincount(pool[trusted], minlength=pools) == 0)
        before = np.zeros(pools, np.bool_)
        thawed_s = np.full(pools, np.inf)
        known = min(pools, len(self._frozen))
        before[:known], thawed_s[:known] = self._frozen[:known], self._thawed_s[:known] + dt_s
        thawed_s[before & ~frozen] = 0.0
        self._frozen, self._thawed_s = frozen, thawed_s
        return frozen

    def _silence(self, age: Floats, pool: Int32s, groups: Groups) -> Floats:
        """Seconds of silence beyond the pool's newest sign of life, counted from the last thaw."""
        newest = np.full(len(self._frozen), np.inf)
        heard = groups.slots[self.heard[groups.slots]]
        np.minimum.at(newest, pool[heard], age[heard])
        silence = np.zeros(self.n)
        behind = age[heard] - np.where(np.isfinite(newest), newest, 0.0)[pool[heard]]
        silence[heard] = np.clip(behind, 0.0, self._thawed_s[pool[heard]])
        return np.where(np.isfinite(silence), silence, np.float64(1e9))

    def rest(self, dt_s: float) -> None:
        """Time passes without any endpoint."""
        self._thawed_s += dt_s

    def _confidence(self, intervals: Floats) -> Floats:
        config = self._config
        steps = np.array([config.trusted, config.drifted, config.capped, config.silent])
        confidence: Floats = np.interp(intervals, steps, STEPS)
        return confidence

    def restored(self, slots: Int64s | int) -> None:
        """Slots restored from disk: not heard yet in this life."""
        self.heard[slots] = False
        self.last_age_s[slots] = np.inf
