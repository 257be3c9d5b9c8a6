"""GPU faults by XID class: the gauge shows the last code for ever, so only a change is a fault."""

from typing import ClassVar

import numpy as np

from pipeline.clock import NS_PER_S
from pipeline.decide.columns import Blanks, Columns
from pipeline.decide.config import FaultConfig
from pipeline.model import Bools, Floats, Int64s
from pipeline.signals import SIGNAL_INDEX


class Faults(Columns):
    """Remembers each endpoint's last XID code and what its newest change costs."""

    BLANK: ClassVar[Blanks] = {
        "code": ("float64", np.nan),
        "cost": ("float64", 0.0),
        "until_ns": ("int64", 0),
    }
    code: Floats
    cost: Floats
    until_ns: Int64s

    def __init__(self, config: FaultConfig) -> None:
        """Start without slots."""
        super().__init__()
        self._config = config

    def update(self, signals: Floats, now_ns: int) -> Floats:
        """Take the codes of float64[signals, n]; returns the cost of faults, float64[n].

        The first code seen is where an endpoint starts from, not a fault.
        """
        code = signals[SIGNAL_INDEX["gpu_xid_last"]]
        seen = ~np.isnan(code)
        changed = seen & ~np.isnan(self.code) & (code != self.code) & (code > 0)
        self.code = np.where(seen, code, self.code)
        if changed.any():
            self._remember(code, changed, now_ns)
        return np.where(now_ns < self.until_ns, self.cost, 0.0)

    def _remember(self, code: Floats, changed: Bools, now_ns: int) -> None:
        config = self._config
        cost = np.where(np.isin(code, config.device_lost), config.device_lost_cost, 0.0)
        known = np.isin(code, config.device_lost + config.application)
        cost = np.where(known, cost, config.other_cost)
        self.cost = np.where(changed, cost, self.cost)
        until_ns = now_ns + round(config.memory_s * NS_PER_S)
        self.until_ns = np.where(changed, until_ns, self.until_ns)
