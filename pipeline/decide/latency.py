"""How slow each endpoint is beside its peers, at equal work and load, and beside its own past.

Enters: request windows, engine means, learned capacity. Leaves: the excess, 1 = as its peers. Peers
are those who do their full part: one that hardly has work is fast without being better. No data
holds the last excess; long without data while the endpoint is alive lets it fade, so that one
without traffic is tried again.
"""

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np

from pipeline.decide.columns import Blanks, Columns
from pipeline.decide.config import LatencyConfig
from pipeline.decide.groups import ByRow, Groups, known_or
from pipeline.model import Bools, Floats, Int32s, Int64s, RequestWindow
from pipeline.signals import SIGNAL_INDEX

ROWS = ("window_ttft_p50_s", "window_duration_p50_s", "ttft_mean_s", "itl_mean_s", "e2e_mean_s")
"""The latencies that are compared, by canonical name."""
SMALL_GROUP = 3  # up to here "the median of the others" is one or two endpoints
SAFE_SAMPLES = 16  # a median of fewer is noisier than the tolerance
LOAD_EXCUSE = 1.5  # more load than the peers' explains at most this much
WORK_EXCUSE = 2.0  # and longer requests at most this much
HALF_LOAD = 8.0  # requests beside which a difference in load begins to count
FULL_PART = 0.25  # of the usual number of requests: with fewer an endpoint is no measure for others
PAST_S = 3600.0  # what an endpoint's own past means
PAST_SAMPLES = 30
LEVEL_S = 5.0  # time constant of the own level while as the peers'; load comes and goes for all
ODD_LEVEL_S = 120.0  # and while beyond theirs: slower hardware becomes usual, a fault must not
ODD_LEVEL = 2.0  # nor does what is this many times slower than the peers, however long it lasts


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
        "mean": ("float64", 1.0),
        "variance": ("float64", 0.0),
        "p99": ("float64", 1.0),
        "samples": ("int64", 0),
        "traffic_s": ("float64", -1.0),
        "level_s": ("float64", np.nan),
    }
    WIDTH: ClassVar[Mapping[str, int]] = {"level_s": len(ROWS)}
    excess: Floats
    row: Int64s
    unmeasured_s: Floats
    mean: Floats
    variance: Floats
    p99: Floats
    samples: Int64s
    traffic_s: Floats
    """For how long it has been measured without a long pause; -1 = not now"""
    level_s: Floats
    """[n, rows] each latency's usual height while HEALTHY"""

    def __init__(self, config: LatencyConfig) -> None:
        """Start without slots."""
        super().__init__()
        self._config = config
        self._peers = ByRow(lambda groups, rows: groups.peers(groups.rank(rows), SMALL_GROUP))

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
        established: Bools,
    ) -> Slowness:
        """Compare once. `dt_s` float64[n] is the time since the endpoint's last news.

        Only endpoints with `news` move; the past is learned where `healthy`; only `established`
        ones, which get their full share of requests, are a measure for others.
        """
        values, samples = self._values(signals, window, interval_s)
        measure = established & ~_hardly_used(signals, window, groups)
        loads = self._loads(signals, window)
        rows = np.where(measure, np.vstack([values, loads]), np.nan)
        peers = self._peers(groups, rows)
        measured = np.zeros(self.n, np.bool_)
        if news.any():
            own = _excused(values, loads, peers[len(ROWS) :])
            ratio = own / peers[: len(ROWS)] * np.minimum(capacity, 1.0)
            compared = np.isfinite(ratio)
            measured = news & compared.any(axis=0)
            ripe = measured & self._settled(measured, dt_s)
            excess = np.where(compared, self._beyond(ratio, own, samples, groups), -np.inf)
            self._learn(np.where(compared, ratio, -np.inf).max(axis=0), ripe & healthy, dt_s)
            self._learn_level(own, ratio, measured & healthy, dt_s)
            worst = np.maximum(excess.max(axis=0), 1.0)
            self.excess = np.where(ripe, worst, self.excess)
            self.row = np.where(measured, np.argmax(excess, axis=0), self.row)
        self._fade(measured, news, dt_s, interval_s)
        return Slowness(self.excess, self.row, values, peers[: len(ROWS)])

    def _settled(self, measured: Bools, dt_s: Floats) -> Bools:
        """Where there has been traffic for long enough to judge by; counts on."""
        lasting = np.where(self.traffic_s < 0, 0.0, self.traffic_s + dt_s)
        self.traffic_s = np.where(measured, lasting, self.traffic_s)
        settled: Bools = self.traffic_s >= self._config.settle_s
        return settled

    def _beyond(self, ratio: Floats, own: Floats, samples: Floats, groups: Groups) -> Floats:
        """The part of the ratios that nothing excuses, float64[rows, n].

        Few samples pull towards 1. In a small group the best other may just be lucky, so that the
        endpoint must be slower than its own past, too.
        """
        small = groups.spread(groups.sizes.astype(np.float64), 0.0) <= SMALL_GROUP
        if small.any():
            past = known_or(own / self.level_s.T, np.inf)
            ratio = np.where(small, np.minimum(ratio, past), ratio)
        pull = np.minimum(samples, SAFE_SAMPLES) / SAFE_SAMPLES
        return np.where(ratio > 1, 1 + (ratio - 1) * pull, ratio) - self._config.tolerance

    def _values(
        self, signals: Floats, window: RequestWindow | None, interval_s: Floats
    ) -> tuple[Floats, Floats]:
        """Latencies worth comparing and how many requests each is from, float64[rows, n]."""
        values = np.full((len(ROWS), self.n), np.nan)
        samples = np.empty((len(ROWS), self.n))
        span_s = np.maximum(interval_s, self._config.window_s)
        finished = signals[SIGNAL_INDEX["requests_per_s"]] * span_s
        if window is not None:
            values[0], values[1] = window.ttft_p50_s, window.duration_p50_s
            samples[0], samples[1] = window.ttft_n, window.duration_n
            # Engines that do not count requests: their callers do, if anybody does.
            called = np.where(window.calls > 0, window.calls, np.nan)
            finished = np.where(np.isnan(finished), called, finished)
        for row, name in enumerate(ROWS[2:], start=2):
            values[row] = signals[SIGNAL_INDEX[name]]
        samples[2:] = known_or(finished, SAFE_SAMPLES)
        few = (samples < self._config.min_samples) | ~(values > 0)
        return np.where(few, np.nan, values), samples

    def _loads(self, signals: Floats, window: RequestWindow | None) -> Floats:
        """What excuses latency, float64[3, n]: requests at a time, prompt and output length."""
        running = signals[SIGNAL_INDEX["running"]] + HALF_LOAD
        prompt = output = np.full(self.n, np.nan)
        if window is not None:
            calls = np.where(window.calls > 0, window.calls, np.nan)
            prompt, output = window.prompt_tokens / calls, window.output_tokens / calls
        return np.stack([running, prompt, output])

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

    def _learn_level(self, own: Floats, ratio: Floats, learn: Bools, dt_s: Floats) -> None:
        """Follow the own latencies [rows, n]: soon where they are as the peers', else slowly.

        Before there was traffic for long enough the newest is the best guess.
        """
        at = np.flatnonzero(learn)
        if not len(at):
            return
        level, own, ratio, dt_s = self.level_s[at].T, own[:, at], ratio[:, at], dt_s[at]
        odd = ratio > 1 + self._config.tolerance
        pace = np.where(odd, -np.expm1(-dt_s / ODD_LEVEL_S), -np.expm1(-dt_s / LEVEL_S))
        new = np.isnan(level) | (self.traffic_s[at] < self._config.settle_s)
        moved = np.where(new, own, level + pace * (own - level))
        self.level_s[at] = np.where(ratio < ODD_LEVEL, moved, level).T

    def _fade(self, measured: Bools, news: Bools, dt_s: Floats, interval_s: Floats) -> None:
        """Without samples hold, then fade; without news of any kind only hold."""
        self.unmeasured_s = np.where(measured, 0.0, self.unmeasured_s + np.where(news, dt_s, 0.0))
        hold_s = np.maximum(self._config.hold_s, 3 * interval_s)
        paused = self.unmeasured_s > hold_s
        self.traffic_s = np.where(paused, -1.0, self.traffic_s)
        fading = news & paused
        kept = np.exp(-np.where(fading, dt_s, 0.0) / self._config.fade_s)
        self.excess = 1 + (self.excess - 1) * kept

    def past_limit(self) -> Floats:
        """What the endpoint's own past explains: p99 + 1.5 sigma; 0 while too little is known."""
        limit = self.p99 + 1.5 * np.sqrt(self.variance)
        return np.where(self.samples >= PAST_SAMPLES, limit, 0.0)

    def reset(self, slots: Int64s | Int32s) -> None:
        """Forget the present excess, not the past: the endpoint starts anew."""
        self.excess[slots], self.row[slots], self.unmeasured_s[slots] = 1.0, -1, 0.0
        self.traffic_s[slots] = -1.0


def _excused(values: Floats, loads: Floats, peers: Floats) -> Floats:
    """`values` less what `loads` beyond those of the peers excuse, float64[rows, n]."""
    with np.errstate(invalid="ignore", divide="ignore"):
        more = loads / peers
    load = np.clip(known_or(np.sqrt(more[0]), 1.0), 1.0, LOAD_EXCUSE)
    longer = np.clip(known_or(more[1:], 1.0), 1.0, WORK_EXCUSE)
    own = values / load
    own[[0, 2]] /= longer[0]
    own[[1, 4]] /= np.maximum(longer[0], longer[1])
    return own


def _hardly_used(signals: Floats, window: RequestWindow | None, groups: Groups) -> Bools:
    """Where requests or tokens are far fewer than is usual in the group, bool[n].

    Usual is the mean, in small groups the most: what one endpoint lacks there, others have more.
    """
    if not len(groups):
        return np.zeros(groups.n, np.bool_)
    names = ("requests_per_s", "output_tokens_per_s")
    calls = np.full(groups.n, np.nan) if window is None else window.calls
    rates = np.stack([calls, *(signals[SIGNAL_INDEX[name]] for name in names)])
    grouped = np.take(rates, groups.slots, axis=1)
    known = np.add.reduceat(~np.isnan(grouped), groups.starts, axis=1, dtype=np.int64)
    most = np.fmax.reduceat(grouped, groups.starts, axis=1)
    total = np.add.reduceat(known_or(grouped, 0.0), groups.starts, axis=1)
    usual = np.where(groups.sizes <= SMALL_GROUP, most, total / np.maximum(known, 1))
    few: Bools = np.any(rates < FULL_PART * groups.spread(usual), axis=0)
    return few
