"""The `expected-wait` profile: predicted time to first token of the next request.

In units of a healthy, unloaded peer: 1, plus the wait behind work that the receivers' own requests
do not explain (over the learned rate), KV pressure k / (1 - k), latency excess, failures, faults.
Work and KV together cost at most 1, so that they take at most half of a weight.
"""

from typing import Final

import numpy as np

from pipeline.decide.groups import known_or
from pipeline.decide.latency import ROWS as LATENCIES
from pipeline.decide.scorers import Context, Scored, rate
from pipeline.model import Floats, Observer
from pipeline.signals import SIGNAL_INDEX

NAMES: Final = (
    "queue_depth",
    "kv_util",
    "window_failure_ratio",
    "gpu_throttle_ratio",
    "gpu_xid_last",
    *LATENCIES,
    "running",
    "output_tokens_per_s",
)
LATENCY: Final = slice(5, 5 + len(LATENCIES))
READ: Final = slice(LATENCY.stop, len(NAMES))  # part of the load, shown beside it; no terms alone
SIGNALS: Final = np.array([SIGNAL_INDEX[name] for name in NAMES], np.int32)
COMPARED: Final = 4  # the first rows of NAMES, whose peers' medians are taken here
KV_WEIGHT: Final = 0.15  # of k / (1 - k), as in the least-load policies of other routers
MAX_KV: Final = 0.9  # k / (1 - k) grows without bound, and engines near 1 are well
MAX_LOAD: Final = 1.0  # cost of load, at most: a factor of one half
IDLE_REQUESTS: Final = 4.0  # below this much load, differences are chance
MIN_FAILURE_CALLS: Final = 4.0  # pulls the ratio of few calls towards 0


def score(signals: Floats, context: Context) -> Scored:
    """Score float64[signals, n]."""
    groups, slowness = context.groups, context.slowness
    n = groups.n
    values = np.full((len(NAMES), n), np.nan)
    values[[0, 1, 3, 4]] = signals[SIGNALS[[0, 1, 3, 4]]]
    failures = failure_ratio(context)
    values[2] = failures
    values[LATENCY] = slowness.values
    values[READ] = signals[SIGNALS[READ]]
    load = _load(signals)
    compared = np.vstack([values[:COMPARED], values[READ], load[None]])
    *medians, typical = groups.spread(context.medians(groups, compared))
    peers = np.full_like(values, np.nan)
    peers[:COMPARED] = medians[:COMPARED]
    peers[LATENCY] = slowness.peers
    peers[READ] = medians[COMPARED:]
    terms = np.zeros((len(NAMES), n))
    terms[:2] = _wait(load, typical, context), _kv(values[0], values[1], peers[1])
    terms[:2] *= np.minimum(1.0, MAX_LOAD / np.maximum(terms[0] + terms[1], 1e-9))
    terms[2] = _failing(failures, context)
    terms[3] = np.clip(known_or(values[3], 0.0), 0, 1)
    terms[4] = context.faults
    terms[LATENCY] = _latency(context)
    inputs = np.stack([~np.isnan(load), slowness.row >= 0])
    known = inputs.any(axis=0) | ~np.isnan(values[1:4]).all(axis=0) | (context.faults > 0)
    cost, scores, points = rate(terms, 1.0, known, groups)
    coverage = (inputs[0].astype(np.float64) + inputs[1]) / 2
    return Scored(scores, cost, coverage, SIGNALS, values, peers, points)


def failure_ratio(context: Context) -> Floats:
    """Failed share of the window's calls, float64[n], pulled to 0 where they are few."""
    calls = context.failure_calls
    return np.where(calls > 0, context.failures / (calls + MIN_FAILURE_CALLS), np.nan)


def _failing(ratio: Floats, context: Context) -> Floats:
    """Cost of this share of failures, float64[n]."""
    cost = np.zeros(len(ratio))
    at = np.flatnonzero(ratio > 0)
    cost[at] = (1 - np.clip(ratio[at], 0, 0.9)) ** -context.latency_exponent - 1
    return cost


def _latency(context: Context) -> Floats:
    """The excess as a cost, in the row that it was measured on: float64[latencies, n]."""
    slowness = context.slowness
    cost = np.zeros(len(slowness.excess))
    at = np.flatnonzero(slowness.excess != 1.0)  # a power costs as much as all the rest
    cost[at] = slowness.excess[at] ** context.latency_exponent - 1
    rows = np.arange(len(LATENCIES))[:, None]
    # An excess that is held without its row (fading) is shown on the first one.
    shown: Floats = np.where(rows == np.maximum(slowness.row, 0), cost, 0.0)
    return shown


def _load(signals: Floats) -> Floats:
    """Requests on the endpoint, waiting or running, float64[n]; NaN where neither is known."""
    queue, running = signals[SIGNAL_INDEX["queue_depth"]], signals[SIGNAL_INDEX["running"]]
    known = ~(np.isnan(queue) & np.isnan(running))
    return np.where(known, known_or(queue, 0.0) + known_or(running, 0.0), np.nan)


def _wait(load: Floats, typical: Floats, context: Context) -> Floats:
    """Cost of the work that nothing explains, over the learned rate, float64[n]."""
    beyond = np.maximum(load - 1.5 * explained_requests(load, context) - 2.0, 0.0)
    return known_or(beyond / (context.capacity * (typical + IDLE_REQUESTS)), 0.0)


def _kv(queue: Floats, kv: Floats, peer: Floats) -> Floats:
    """Cost of KV pressure beyond the peers', float64[n].

    A full cache costs the next request nothing until requests have to wait for blocks.
    """
    waiting = np.clip(queue, 0.0, 1.0)
    pressure = np.maximum(_pressure(kv) - _pressure(peer), 0.0)
    return known_or(KV_WEIGHT * waiting * pressure, 0.0)


def explained_requests(load: Floats, context: Context) -> Floats:
    """Requests in flight that the receivers' own counts hold already, float64[n].

    The larger of what the weights would send there, and, where proxies or clients report, what
    Little's law says they have in flight.
    """
    by_weight = context.groups.spread(context.groups.total(load)) * context.share
    window = context.window
    if window is None:
        return by_weight
    observer = window.calls_observer
    reported = (observer == Observer.PROXY) | (observer == Observer.CLIENT)
    in_flight = window.calls / window.seconds * known_or(window.duration_p50_s, 0.0)
    return np.where(reported, np.fmax(by_weight, in_flight), by_weight)


def _pressure(kv: Floats) -> Floats:
    used = np.clip(kv, 0.0, MAX_KV)
    return used / (1 - used)
