"""From score to weight: capacity (slow) times health (fast), damped, as far as the data is trusted.

Works in natural logarithms of the factor to neutral. Targets move only with news; average, dead
band and maximum step apply to them; circuit states bypass all of it. Silence takes health back to
the capacity prior, then caps.
"""

from typing import ClassVar

import numpy as np

from pipeline.decide.columns import Blanks, Columns
from pipeline.decide.config import FreshnessConfig, WeightsConfig
from pipeline.decide.groups import Groups, known_or
from pipeline.model import Bools, Floats, Int64s

NEUTRAL = 1000
MAX_WEIGHT = 10_000
SETTLED = 0.005  # natural logarithm: half a percent of neutral
MAX_STEP_S = 1.0  # a pause of the loop moves weights no further than this much time would


class Weights(Columns):
    """The damped weight of every endpoint."""

    BLANK: ClassVar[Blanks] = {
        "target": ("float64", 0.0),
        "smooth": ("float64", 0.0),
        "level": ("float64", 0.0),
        "prior": ("float64", np.nan),
        "reference": ("float64", np.nan),
        "ramp": ("float64", 1.0),
    }
    target: Floats
    smooth: Floats
    level: Floats
    prior: Floats
    reference: Floats
    ramp: Floats

    def __init__(self, config: WeightsConfig, freshness: FreshnessConfig) -> None:
        """Start without slots."""
        super().__init__()
        self._config = config
        self._freshness = freshness

    def start(self, slots: Int64s, ramp: float) -> None:
        """Begin anew at the `ramp` share of the prior: for new and recovered endpoints."""
        self.target[slots] = self.smooth[slots] = 0.0
        self.level[slots] = known_or(self.prior[slots], 0.0)
        self.ramp[slots] = ramp

    def aim(self, cost: Floats, capacity: Floats, groups: Groups, move: Bools, dt_s: float) -> None:
        """Set targets where `move` holds. `cost` and `capacity` are float64[n], NaN = unknown."""
        pace = 1 - np.exp(-dt_s / self._config.reference_s)
        now = groups.low_median(cost)
        before = groups.greatest(self.reference)
        reference = np.where(np.isnan(before), now, before + pace * (np.fmax(now, 0.0) - before))
        reference = np.where(np.isnan(reference), before, reference)
        self.reference = groups.spread(reference)
        if move.any():
            health = np.log(self.reference / cost)
            self.target = np.where(move & np.isfinite(health), health, self.target)
        elif not np.isnan(self.prior).any():
            return
        prior = np.log(capacity)
        self.prior = np.where(
            np.isnan(self.prior), prior, self.prior + np.where(move, pace * (prior - self.prior), 0)
        )

    def step(self, hold: Bools, silence: Floats, dt_s: float) -> Floats:
        """Move towards the targets where not on `hold`; returns the weights as float64[n].

        `silence` counts report intervals.
        """
        config = self._config
        dt_s = min(dt_s, MAX_STEP_S)
        move = (1 - np.exp(-dt_s / config.smoothing_s)) * (self.target - self.smooth)
        move = np.clip(move, -config.max_fall_per_s * dt_s, config.max_rise_per_s * dt_s)
        self.smooth = np.where(hold, self.smooth, self.smooth + move)
        # Back in full health: settle at once, instead of a dead band short of it for ever.
        whole = (self.target == 0) & (self.smooth != 0) & (np.abs(self.smooth) < SETTLED)
        self.smooth = np.where(whole & ~hold, 0.0, self.smooth)
        wanted = self.smooth + known_or(self.prior, 0.0)
        far = whole | (np.abs(wanted - self.level) > config.dead_band)
        self.level = np.where(far & ~hold, wanted, self.level)
        if config.slow_start_s > 0:
            grown = np.minimum(self.ramp + dt_s / config.slow_start_s, 1.0)
        else:
            grown = np.ones(self.n)
        self.ramp = np.where(hold, self.ramp, grown)
        return self.present(np.where(hold, 0.0, silence))

    def present(self, silence: Floats | float = 0.0) -> Floats:
        """Weights after drift and cap by silence, and after slow start."""
        fresh = self._freshness
        trust = np.interp(silence, [fresh.trusted, fresh.drifted], [1.0, 0.0])
        level = trust * self.level + (1 - trust) * known_or(self.prior, 0.0)
        cap = np.interp(silence, [fresh.drifted, fresh.capped], [1.0, 0.5])
        factor = np.exp(level)
        factor = np.where(silence > fresh.drifted, np.minimum(factor, cap), factor)
        weight = NEUTRAL * factor * self.ramp
        return np.clip(weight, NEUTRAL * self._config.probe_share, MAX_WEIGHT)
