"""How complete the telemetry of each pool is: "no traffic" is not "no telemetry".

An endpoint is expected to report from the time that its interval is known until it is retired; it
is heard while no more than a few of its own intervals have passed. Sources that report every second
and every minute are thereby judged alike.
"""

from typing import Final

import numpy as np

from pipeline.model import Floats, Int32s

PATIENCE_INTERVALS: Final = 3.0
"""One lost report is an accident, and the next one may be late; three are a silence."""


def completeness(heard_age_s: Floats, interval_s: Floats, pool: Int32s, n_pools: int) -> Floats:
    """float64[n_pools]: the share of expected endpoints that are heard; NaN where none is expected.

    `heard_age_s` (inf = never), `interval_s` (NaN = not known yet) and `pool` (-1 = none) are [n].

    >>> pools = np.array([0, 0, 1, -1], np.int32)
    >>> completeness(np.array([1.0, 9.0, 9.0, 1.0]), np.array([1.0, 1.0, 15.0, 1.0]), pools, 3)
    array([0.5, 1. , nan])
    """
    is_expected = ~np.isnan(interval_s) & (pool >= 0)
    is_heard = is_expected & (heard_age_s <= PATIENCE_INTERVALS * interval_s)
    expected = np.bincount(pool[is_expected], minlength=n_pools)
    heard = np.bincount(pool[is_heard], minlength=n_pools)
    return np.where(expected > 0, heard / np.maximum(expected, 1), np.nan)
