"""What speaks for opening a circuit, read from one observation: hard evidence, soft, and mild.

Masks and numbers per slot; pure. Sources that replay old data are no evidence.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from pipeline.decide.config import DecideConfig
from pipeline.decide.freshness import Fresh
from pipeline.decide.groups import known_or
from pipeline.decide.outcomes import Outcome
from pipeline.model import Bools, Floats, Int32s, Observation, RequestWindow
from pipeline.signals import SIGNAL_INDEX

READ_NAMES = (
    "queue_depth",
    "running",
    "kv_util",
    "prefix_hit_ratio",
    "cuda_stream_block_ratio",
    "token_length_deviation",
    "ttft_mean_s",
    "itl_mean_s",
    "e2e_mean_s",
    "prefill_token_s",
    "output_tokens_per_s",
    "requests_per_s",
    "gpu_throttle_ratio",
    "gpu_xid_last",
    "gpu_row_remap_failure",
)
READ = tuple(SIGNAL_INDEX[name] for name in READ_NAMES)
UP = SIGNAL_INDEX["engine_up"]
STALE_INTERVALS = 6.0  # a signal older than this many of its own intervals is no evidence
MIN_SIGNAL_INTERVAL_S = 1.0


class Cause(IntEnum):
    """What opened a circuit."""

    NONE = 0
    REFUSED = 1
    DOWN = 2
    REMAP = 3
    FAILURE = 4
    LATENCY = 5
    SILENCE = 6


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """One tick's evidence, arrays per slot, length n."""

    refused: Bools
    down: Bools
    remap: Bools
    failing: Bools
    slow: Bools
    silent: Bools
    suspect: Bools
    """One scrape failed: hard evidence, half of it"""
    ailing: Bools
    """Mild evidence: shows as DEGRADED"""
    refused_count: Floats
    down_samples: Int32s
    up_samples: Int32s
    failure_ratio: Floats
    failure_calls: Floats
    excess: Floats
    new_successes: Floats
    """Calls without failure that were reported since the last tick"""
    new_failures: Floats
    recent_failures: Floats
    """In the shortest window"""
    recent_s: float
    """Length of the shortest window; 0 without one"""
    progress_age_s: Floats
    """Age of the newest sample that shows tokens or requests being served; inf without"""
    news: Bools

    @property
    def hard(self) -> Bools:
        """Opens at once and is not capped."""
        return self.refused | self.down | self.remap

    @property
    def soft(self) -> Bools:
        """Opens within the cap."""
        return self.failing | self.slow | self.silent


def window_of(observation: Observation, seconds: int) -> RequestWindow | None:
    """The shortest window of at least `seconds`, else the longest one; None without any."""
    lengths = sorted(observation.windows)
    if not lengths:
        return None
    fitting = [length for length in lengths if length >= seconds]
    return observation.windows[fitting[0] if fitting else lengths[-1]]


def usable(observation: Observation) -> Floats:
    """The signals that decide, float64[signals, n]: NaN where older than six of their intervals.

    Rows that no part of this stage reads stay NaN.
    """
    signals = observation.signals
    matrix = np.full(signals.value.shape, np.nan)
    for row in READ:
        age_s = signals.age_s[row]
        if not np.isfinite(age_s).any():
            continue
        interval_s = np.fmax(known_or(signals.interval_s[row], 5.0), MIN_SIGNAL_INTERVAL_S)
        young = age_s <= STALE_INTERVALS * interval_s
        np.copyto(matrix[row], signals.value[row], where=young)
    return matrix


def gather(
    observation: Observation,
    signals: Floats,
    fresh: Fresh,
    outcome: Outcome,
    excess: Floats,
    slow: Bools,
    config: DecideConfig,
) -> Evidence:
    """Read the evidence. `excess` and `slow` come from the latency comparison."""
    circuit, freshness = config.circuit, config.freshness
    n = observation.directory.n
    moves = ~observation.catching_up
    recent = window_of(observation, 1)
    calls, failures, recent_s = np.zeros(n), np.zeros(n), 0.0
    if recent is not None:
        calls, failures, recent_s = recent.failure_calls, recent.failures, recent.seconds
    served = np.maximum(calls - failures, 0.0)
    refused = observation.refused_recent
    ratio = outcome.failures / np.maximum(outcome.calls, 1.0)
    # A failed scrape says nothing any more once the scraper itself has gone silent.
    heard = moves & ((fresh.silence <= freshness.trusted) | _is_scraped(observation, config))
    down = heard & (observation.down_samples >= circuit.down_limit)
    suspect = heard & (observation.down_samples > 0) & ~down
    mild = (ratio >= circuit.failure_ratio / 2) & (outcome.failures >= circuit.failure_min / 2)
    return Evidence(
        refused=moves & (refused >= circuit.refused_limit) & (served == 0),
        down=down,
        remap=moves & (signals[SIGNAL_INDEX["gpu_row_remap_failure"]] >= 1),
        failing=moves
        & (ratio >= circuit.failure_ratio)
        & (outcome.failures >= circuit.failure_min),
        slow=moves & slow,
        silent=moves & (fresh.silence > freshness.silent),
        suspect=suspect,
        ailing=moves
        & (
            mild | suspect | (excess >= circuit.degraded_ratio) | (fresh.silence > freshness.capped)
        ),
        refused_count=refused,
        down_samples=observation.down_samples,
        up_samples=observation.up_samples,
        failure_ratio=ratio,
        failure_calls=outcome.calls,
        excess=excess,
        new_successes=np.maximum(outcome.new_calls - outcome.new_failures, 0.0),
        new_failures=outcome.new_failures,
        recent_failures=failures,
        recent_s=recent_s,
        progress_age_s=outcome.progress_age_s,
        news=fresh.news,
    )


def _is_scraped(observation: Observation, config: DecideConfig) -> Bools:
    """Where scrapes come as they should, whether they succeed or fail, bool[n]."""
    age, interval = observation.signals.age_s[UP], observation.signals.interval_s[UP]
    freshness = config.freshness
    usual = np.fmax(known_or(interval, freshness.default_interval_s), freshness.min_interval_s)
    scraped: Bools = age <= freshness.trusted * usual
    return scraped
