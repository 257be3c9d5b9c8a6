"""How slow each endpoint is beside its peers, at equal work and load, and beside its own past.

Enters: request windows, engine means, learned capacity. Leaves: the excess, 1 = as its peers. No
data holds the last excess; long without data while the endpoint is alive lets it fade, so that
one without traffic is tried again.
"""

from typing import ClassVar, NamedTuple

import numpy as np

from pipeline.decide.columns import Blanks, Columns
from pipeline.decide.config import LatencyConfig
from pipeline.decide.groups import Groups, known_or
from pipeline.model import Bools, Floats, Int32s, Int64s, RequestWindow
from pipeline.signals import SIGNAL_INDEX

ROWS = ("window_ttft_p50_s", "window_duration_p50_s", "ttft_mean_s", "itl_mean_s", "e2e_mean_s")
"""The latencies that are compared, by canonical name."""
SMALL_GROUP = 3  # up to here "the median of the others" is one or two endpoints
SAFE_SAMPLES = 16  # a median of fewer is noisier than the tolerance
LOAD_EXCUSE = 1.5  # more load than the peers' explains at most this much
WORK_EXCUSE = 2.0  # and longer requests at most this much
HALF_LOAD = 8.0  # requests beside which a difference in load begins to count
PAST_S = 3600.0  # what an endpoint's own past means
PAST_SAMPLES = 30
HABIT_LIMIT = 2.0  # a habit beyond this would be an excuse for being broken


class Slowness(NamedTuple):
    """The comparison at one tick. `excess` >= 1, float64[n]; `row` int64[n], -1 = not compared."""

    excess: Floats
    row: Int64s
    values: Floats
    """float64[rows, n] in seconds"""
    peers: Floats
    """float64[rows, n]: what they are compared with"""


class Latency(Columns):
    """Holds each endpoint's excess and learns what is usual for it."""

    BLANK: ClassVar[Blanks] = {
        "excess": ("float64", 1.0),
        "row": ("int64", -1),
        "unmeasured_s": ("float64", 0.0),
        "habit": ("float64", 1.0),
        "mean": ("float64", 1.0),
        "variance": ("float64", 0.0),
        "p99": ("float64", 1.0),
        "samples": ("int64", 0),
    }
    excess: Floats
    row: Int64s
    unmeasured_s: Floats
    habit: Floats
    mean: Floats
    variance: Floats
    p99: Floats
    samples: Int64s

    def __init__(self, config: LatencyConfig) -> None:
        """Start without slots."""
        super().__init__()
        self._config = config

    def update(
        self,
        signals: Floats,
        window: RequestWindow | None,
        groups: Groups,
        capacity: Floats,
        *,
        interval_s: Floats,
        news: Bools,
        dt_s: Floats,
        healthy: Bools,
    ) -> Slowness:
        """Compare once. `dt_s` float64[n] is the time since the endpoint's last news.

        Only endpoints with `news` move; the past is learned where `healthy`.
        """
        values, tolerance = self._values(signals, window, interval_s)
        own, peers = self._compare(values, signals, window, groups)
        small = groups.spread(groups.sizes.astype(np.float64), 0.0) <= SMALL_GROUP
        ratio = own / peers * np.minimum(capacity, 1.0)
        raw = np.where(np.isnan(ratio), -np.inf, ratio)
        measured = news & np.isfinite(raw).any(axis=0)
        self._learn(raw.max(axis=0), measured & healthy, dt_s)
        excess = np.where(small, raw / self.habit, raw) - tolerance
        row = np.argmax(excess, axis=0)
        worst = np.maximum(np.take_along_axis(excess, row[None, :], axis=0)[0], 1.0)
        self.excess = np.where(measured, worst, self.excess)
        self.row = np.where(measured, row, self.row)
        self._fade(measured, news, dt_s, interval_s)
        return Slowness(self.excess, self.row, values, peers)

    def _values(
        self, signals: Floats, window: RequestWindow | None, interval_s: Floats
    ) -> tuple[Floats, Floats]:
        """Latencies worth comparing and the tolerance of each, float64[rows, n]."""
        values = np.full((len(ROWS), self.n), np.nan)
        tolerance = np.full((len(ROWS), self.n), self._config.tolerance)
        if window is not None:
            pairs = (window.ttft_p50_s, window.ttft_n), (window.duration_p50_s, window.duration_n)
            for row, (median, n) in enumerate(pairs):
                enough = n >= self._config.min_samples
                values[row] = np.where(enough, median, np.nan)
                noise = np.sqrt(SAFE_SAMPLES / np.clip(n, 1, SAFE_SAMPLES))
                tolerance[row] = self._config.tolerance * noise
        span_s = np.maximum(interval_s, self._config.window_s)
        finished = signals[SIGNAL_INDEX["requests_per_s"]] * span_s
        few = finished < self._config.min_samples
        for row, name in enumerate(ROWS[2:], start=2):
            values[row] = np.where(few, np.nan, signals[SIGNAL_INDEX[name]])
        return np.where(values > 0, values, np.nan), tolerance

    def _compare(
        self, values: Floats, signals: Floats, window: RequestWindow | None, groups: Groups
    ) -> tuple[Floats, Floats]:
        """Values less what load and work excuse, and the peers' values."""
        running = signals[SIGNAL_INDEX["running"]] + HALF_LOAD
        prompt = output = np.full(self.n, np.nan)
        if window is not None:
            calls = np.where(window.calls > 0, window.calls, np.nan)
            prompt, output = window.prompt_tokens / calls, window.output_tokens / calls
        stacked = np.vstack([values, running[None], prompt[None], output[None]])
        peers = groups.peers(groups.rank(stacked), SMALL_GROUP)
        with np.errstate(invalid="ignore", divide="ignore"):
            more = stacked[len(ROWS) :] / peers[len(ROWS) :]
        load = np.clip(known_or(np.sqrt(more[0]), 1.0), 1.0, LOAD_EXCUSE)
        longer = np.clip(known_or(more[1:], 1.0), 1.0, WORK_EXCUSE)
        own = values / load
        own[[0, 2]] /= longer[0]
        own[[1, 4]] /= np.maximum(longer[0], longer[1])
        return own, peers[: len(ROWS)]

    def _learn(self, ratio: Floats, learn: Bools, dt_s: Floats) -> None:
        """Learn mean, deviation and 99th percentile of the ratio over the last hour."""
        at = np.flatnonzero(learn)
        self.samples[at] += 1
        pace = np.maximum(1 - np.exp(-dt_s[at] / PAST_S), 1 / self.samples[at])
        off = ratio[at] - self.mean[at]
        self.mean[at] += pace * off
        self.variance[at] = (1 - pace) * (self.variance[at] + pace * off * off)
        step = np.sqrt(self.variance[at]) * np.where(ratio[at] > self.p99[at], 0.99, -0.01)
        self.p99[at] = np.maximum(self.p99[at] + 0.1 * step, self.mean[at])
        usual = ratio[at] < HABIT_LIMIT
        moved = self.habit[at] + pace * (np.maximum(ratio[at], 1.0) - self.habit[at])
        self.habit[at] = np.where(usual, moved, self.habit[at])

    def _fade(self, measured: Bools, news: Bools, dt_s: Floats, interval_s: Floats) -> None:
        """Without samples hold, then fade; without news of any kind only hold."""
        self.unmeasured_s = np.where(measured, 0.0, self.unmeasured_s + np.where(news, dt_s, 0.0))
        hold_s = np.maximum(self._config.hold_s, 3 * interval_s)
        fading = news & (self.unmeasured_s > hold_s)
        kept = np.exp(-np.where(fading, dt_s, 0.0) / self._config.fade_s)
        self.excess = 1 + (self.excess - 1) * kept

    def past_limit(self) -> Floats:
        """What the endpoint's own past explains: p99 + 1.5 sigma; 0 while too little is known."""
        limit = self.p99 + 1.5 * np.sqrt(self.variance)
        return np.where(self.samples >= PAST_SAMPLES, limit, 0.0)

    def reset(self, slots: Int64s | Int32s) -> None:
        """Forget the present excess, not the past: the endpoint starts anew."""
        self.excess[slots], self.row[slots], self.unmeasured_s[slots] = 1.0, -1, 0.0
