"""Scorers: pure functions from the endpoint matrix to a score in [0, 1], 1 best, NaN = unknown.

A scorer adds up the terms of a cost; the score is the cheapest cost of the group over one's own.
`1 + sum(points)` of an endpoint is its score: each signal's points are what it costs beyond the
best endpoint of the group.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pipeline.decide.groups import ByRow, Groups
from pipeline.decide.latency import Slowness
from pipeline.model import Bools, Floats, Int32s, RequestWindow


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """What scorers know beside the signals. Arrays are per slot, length n."""

    groups: Groups
    capacity: Floats
    """Learned capacity over the group's median."""
    share: Floats
    """Share of the group's requests that the published weights give it."""
    window: RequestWindow | None
    failures: Floats
    """Failed ones of `failure_calls`, since the circuit closed last"""
    failure_calls: Floats
    slowness: Slowness
    faults: Floats
    """Penalty for a recent GPU fault, in costs of a healthy endpoint."""
    latency_exponent: float
    medians: ByRow = field(default_factory=lambda: ByRow(Groups.median_rows))
    """Medians per group, float64[k, g] of float64[k, n]; remembers one scorer's last rows."""


class Scored(NamedTuple):
    """A scorer's answer for n endpoints and k terms."""

    score: Floats
    cost: Floats
    """float64[n], comparable within a group; NaN where nothing is known"""
    coverage: Floats
    """float64[n]: the share of the inputs that were there"""
    signals: Int32s
    """int32[k]: the canonical signal of each term"""
    values: Floats
    """float64[k, n]"""
    peers: Floats
    """float64[k, n]: what the value is compared with"""
    points: Floats
    """float64[k, n]; 0 where nothing is known"""


def rate(terms: Floats, base: float, known: Bools, groups: Groups) -> tuple[Floats, Floats, Floats]:
    """Costs (`base` plus terms), scores and points of terms float64[k, n]; NaN unless `known`."""
    cost = np.full(groups.n, base)
    for term in terms:
        cost = cost + term
    cost = np.where(known, cost, np.nan)
    least = groups.least(cost)
    cheapest = groups.spread(least)
    best = np.zeros(len(groups), np.int64)
    hits = groups.slots[cost[groups.slots] == cheapest[groups.slots]][::-1]
    best[groups.of[hits]] = hits
    reference = groups.spread(terms[:, best]) if len(groups) else terms
    points = np.where(np.isnan(cheapest / cost), 0.0, (reference - terms) / cost)
    return cost, cheapest / cost, points
