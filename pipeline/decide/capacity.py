"""Learned service rate by concurrency, r(c) = r_max * c / (c + h), prefill and decode apart.

A rate is tokens per busy second, so it is learned only while requests run; a token rate may raise
it at any load but lowers it only when the batch was full enough for the engine to be the limit.
Low traffic therefore never looks like low capacity. Young endpoints lean on their hardware class
(same group and engine).
"""

from typing import ClassVar

import numpy as np

from pipeline.decide.columns import Blanks, Columns
from pipeline.decide.config import CapacityConfig
from pipeline.decide.groups import Groups, blocks
from pipeline.model import Bools, Directory, Floats, Int64s, Role
from pipeline.signals import SIGNAL_INDEX

MIN_CURVE_S = 60.0  # busy time behind a curve before its half concurrency is believed
MIN_SPREAD = 0.25  # variance of concurrency below which a curve has no bend to see
H_RANGE = (1.0, 64.0)


class Capacity(Columns):
    """Learns and answers how much work each endpoint can do, relative to its group."""

    BLANK: ClassVar[Blanks] = {
        "decode_rate": ("float64", np.nan),
        "prefill_rate": ("float64", np.nan),
        "busy_s": ("float64", 0.0),
        "prefill_busy_s": ("float64", 0.0),
        "curve_s": ("float64", 0.0),
        "mean_c": ("float64", 0.0),
        "mean_y": ("float64", 0.0),
        "var_c": ("float64", 0.0),
        "cov_cy": ("float64", 0.0),
    }
    decode_rate: Floats
    prefill_rate: Floats
    busy_s: Floats
    prefill_busy_s: Floats
    curve_s: Floats
    mean_c: Floats
    mean_y: Floats
    var_c: Floats
    cov_cy: Floats

    def __init__(self, config: CapacityConfig) -> None:
        """Start without slots."""
        super().__init__()
        self._config = config

    def learn(self, signals: Floats, groups: Groups, dt_s: Floats) -> None:
        """Learn from float64[signals, n] where requests run.

        `dt_s` float64[n] is the time that each endpoint's samples stand for; 0 = no news of it.
        """
        concurrency = mean_concurrency(signals)
        busy = (concurrency > 0) & (dt_s > 0)
        if not busy.any():
            return
        token_s = signals[SIGNAL_INDEX["itl_mean_s"]]
        self._learn_curve(concurrency, token_s, busy & (token_s > 0), dt_s)
        half = self._half_concurrency(groups)
        with np.errstate(divide="ignore", invalid="ignore"):
            stretched = (concurrency + half) / np.where(token_s > 0, token_s, np.nan)
            by_rate = signals[SIGNAL_INDEX["output_tokens_per_s"]] * (1 + half / concurrency)
            prompt_s = signals[SIGNAL_INDEX["prefill_token_s"]]
            prefill = (concurrency + half) / np.where(prompt_s > 0, prompt_s, np.nan)
        full = concurrency >= self._config.busy_concurrency
        full |= signals[SIGNAL_INDEX["queue_depth"]] >= 1
        lower = np.isnan(self.decode_rate) | (by_rate >= self.decode_rate) | full
        by_rate = np.where(lower & (by_rate > 0), by_rate, np.nan)
        decode = np.where(np.isnan(stretched), by_rate, stretched)
        self._blend(self.decode_rate, self.busy_s, np.where(busy, decode, np.nan), dt_s)
        self._blend(self.prefill_rate, self.prefill_busy_s, np.where(busy, prefill, np.nan), dt_s)

    def _blend(self, rate: Floats, busy_s: Floats, sample: Floats, dt_s: Floats) -> None:
        """Average in place: plain over the first samples, exponential later."""
        use = np.flatnonzero(np.isfinite(sample) & (sample > 0))
        busy_s[use] += dt_s[use]
        pace = _pace(dt_s[use], busy_s[use], self._config.learn_s)
        before = np.where(np.isnan(rate[use]), sample[use], rate[use])
        rate[use] = before + pace * (sample[use] - before)

    def _learn_curve(self, c: Floats, y: Floats, use: Bools, dt_s: Floats) -> None:
        """Running regression of seconds per token y = (c + h) / r_max on concurrency c."""
        at = np.flatnonzero(use)
        self.curve_s[at] += dt_s[at]
        pace = _pace(dt_s[at], self.curve_s[at], self._config.learn_s)
        dc, dy = c[at] - self.mean_c[at], y[at] - self.mean_y[at]
        self.mean_c[at] += pace * dc
        self.mean_y[at] += pace * dy
        self.var_c[at] = (1 - pace) * (self.var_c[at] + pace * dc * dc)
        self.cov_cy[at] = (1 - pace) * (self.cov_cy[at] + pace * dc * dy)

    def _half_concurrency(self, groups: Groups) -> Floats:
        """The group's h, float64[n]: the median of those endpoints whose curve shows a bend."""
        bent = (self.curve_s >= MIN_CURVE_S) & (self.var_c >= MIN_SPREAD) & (self.cov_cy > 0)
        default = self._config.half_concurrency
        if not bent.any():
            return np.full(self.n, default)
        with np.errstate(divide="ignore", invalid="ignore"):
            own = np.where(bent, self.mean_y * self.var_c / self.cov_cy - self.mean_c, np.nan)
        half = groups.spread(groups.median(np.clip(own, *H_RANGE)))
        return np.where(np.isnan(half), default, half)

    def relative(self, groups: Groups, classes: Groups) -> Floats:
        """Capacity over the group's median, float64[n]; 1 where nothing is known.

        `classes` are the hardware classes: groups split by engine. A prefill endpoint is measured
        by its prefill rate, every other by its decode rate: behind a warm prefix cache the few
        tokens left to prefill carry all the overhead and look slow.
        """
        role = groups.spread(groups.role.astype(np.float64))
        prefill = role == Role.PREFILL
        rate = np.where(prefill, self.prefill_rate, self.decode_rate)
        if np.isnan(rate).all():
            return np.ones(self.n)
        busy_s = np.where(prefill, self.prefill_busy_s, self.busy_s)
        trust = busy_s / (busy_s + self._config.young_s)
        log_rate = np.log(rate)
        typical = groups.spread(groups.median(log_rate))
        peer = classes.spread(classes.median(log_rate))
        peer = np.where(np.isnan(peer), typical, peer)
        own = np.where(np.isnan(log_rate), peer, peer + trust * (log_rate - peer))
        typical = groups.spread(groups.median(own))
        relative = np.exp(self._config.exponent * (own - typical))
        return np.where(np.isfinite(relative), relative, 1.0)


def mean_concurrency(signals: Floats) -> Floats:
    """Requests in the batch, float64[n]; NaN where unknown.

    By Little's law from rate and latency where both are known, since the running gauge is one
    instant and the rates beside it are averages; else the gauge.
    """
    mean = signals[SIGNAL_INDEX["requests_per_s"]] * signals[SIGNAL_INDEX["e2e_mean_s"]]
    known: Floats = np.where(np.isnan(mean), signals[SIGNAL_INDEX["running"]], mean)
    return known


def _pace(dt_s: Floats, total_s: Floats, memory_s: float) -> Floats:
    """How far an average moves: plain over the first samples, exponential later."""
    pace: Floats = np.maximum(1 - np.exp(-dt_s / memory_s), dt_s / total_s)
    return pace


def hardware_classes(directory: Directory, groups: Groups) -> Groups:
    """Groups split by engine: the peers from which a young endpoint borrows its rate."""
    names = {name: code for code, name in enumerate(sorted(set(directory.engine)))}
    engine = np.array([names[name] for name in directory.engine], np.int64)
    used = groups.slots
    group = groups.of[used].astype(np.int64)
    keys, inverse, counts = np.unique(
        group * len(names) + engine[used], return_inverse=True, return_counts=True
    )
    of = np.full(groups.n, -1, np.int32)
    of[used] = inverse
    order: Int64s = used[np.argsort(inverse, kind="stable")]
    whole = keys // max(len(names), 1)
    starts = (np.cumsum(counts) - counts).astype(np.int64)
    return Groups(
        n=groups.n,
        slots=order,
        of=of,
        starts=starts,
        sizes=counts.astype(np.int64),
        blocks=blocks(order, starts, counts, groups.n),
        pool=groups.pool[whole],
        role=groups.role[whole],
        member=groups.member[whole],
    )
