"""What one more point of a counter or histogram adds, safe against resets; arithmetic only.

Source: OTLP metrics data model, "Resets and Gaps". A reset is a new start time or a value that
fell. A start before the point makes the whole value countable, a start equal to it is unknown.
"""

from typing import Final, NamedTuple

import numpy as np

from pipeline.clock import NS_PER_S
from pipeline.model import Bools, Floats, Int64s

DIFFERENCE: Final = 0
WHOLE: Final = 1
NOTHING: Final = 2


class Change(NamedTuple):
    """How each point relates to the one before it in its series."""

    whole: Bools | None
    """Where the value counts as a whole, since an implicit zero; None = nowhere."""
    elapsed_s: Floats
    """Over which the increase happened; 0 where nothing counts."""
    overlaps: int
    """Deltas that begin before the last one ended: two writers."""


def compare(
    *,
    time_ns: Int64s,
    start_ns: Int64s,
    delta: Bools,
    first: Bools,
    fell: Bools,
    last_time_ns: Int64s,
    last_start_ns: Int64s,
    heard_since_ns: Int64s,
) -> Change:
    """Compare points, all later than their series' last, with it; arrays of one length.

    `first`: nothing to subtract from. The value then counts only if the series began after its
    source was first heard (`heard_since_ns`), and not when it goes on with an old start. Starts of
    0 are missing.
    """
    if not (delta.any() or first.any() or fell.any() or (start_ns != last_start_ns).any()):
        return Change(None, (time_ns - last_time_ns) / NS_PER_S, 0)
    started = start_ns > 0
    true_start = started & (start_ns < time_ns)
    new_start = started & (start_ns != last_start_ns)
    changed = ~first & new_start & (last_start_ns > 0)
    mode = np.where(~first & ~changed & fell, WHOLE, DIFFERENCE)
    mode = np.where(changed, np.where(true_start, WHOLE, NOTHING), mode)
    watched = true_start & new_start & (start_ns >= heard_since_ns)
    mode = np.where(first, np.where(watched, WHOLE, NOTHING), mode)
    overlap = delta & ~first & started & (start_ns < last_time_ns)
    dated = np.where(overlap | (first & ~true_start), NOTHING, WHOLE)
    mode = np.where(delta, dated, mode).astype(np.uint8)
    since_ns = np.where(first, start_ns, last_time_ns)
    elapsed_s = np.where(mode == NOTHING, 0.0, (time_ns - since_ns) / NS_PER_S)
    return Change(mode == WHOLE, elapsed_s, int(overlap.sum()))


def weights(
    elapsed_s: Floats, interval_s: Floats, window_s: float
) -> tuple[Floats, Floats, Floats]:
    """(fade of the old window, weight of the increase, weighted elapsed seconds), each float64[n].

    The window fades with time constant max(`window_s`, two intervals). An increase is spread evenly
    over the elapsed time, so that a long gap weighs no more than the window is long.
    """
    tau_s = np.fmax(window_s, 2.0 * interval_s)
    fade = np.exp(-elapsed_s / tau_s)
    weighted_s = tau_s * (1.0 - fade)
    weight = np.zeros(len(fade))
    np.divide(weighted_s, elapsed_s, out=weight, where=elapsed_s > 0.0)
    return fade, weight, weighted_s
