"""The `hardware` profile: how blocked the GPU is, how warm the cache, how long the requests.

cost = 0.4 * stream block ratio + 0.3 / (prefix hit ratio + 0.01) + 0.3 * excess length / 1024.
"""

from typing import Final, Literal

import numpy as np

from pipeline.decide.groups import known_or
from pipeline.decide.scorers import Context, Scored, rate
from pipeline.model import Bools, Floats
from pipeline.signals import SIGNAL_INDEX

INPUTS: Final = ("cuda_stream_block_ratio", "prefix_hit_ratio", "token_length_deviation")
ROWS: Final = np.array([SIGNAL_INDEX[name] for name in INPUTS], np.int32)
ABSENT: Final = np.array([[0.0], [1.0], [0.0]])  # a pool that lacks an input pays its least cost
MIN_HIT_RATIO: Final = 0.05  # a cold cache would otherwise cost thirty times everything else

RequestClass = Literal["read-heavy", "write-burst", "other"]
CLASS_FACTORS: Final[dict[RequestClass, float]] = {
    "read-heavy": 1.8,
    "write-burst": 0.6,
    "other": 1.0,
}


def score(signals: Floats, context: Context) -> Scored:
    """Score float64[signals, n]; a missing input takes the group's median, all missing is NaN."""
    groups = context.groups
    values = signals[ROWS]
    known = ~np.isnan(values)
    medians = groups.spread(context.medians(groups, values))
    filled = np.where(known, values, np.where(np.isnan(medians), ABSENT, medians))
    block, hit, deviation = filled
    terms = np.stack(
        [
            0.4 * block,
            0.3 / (np.maximum(hit, MIN_HIT_RATIO) + 0.01),
            0.3 * np.maximum(0.0, deviation - 512) / 1024,
        ]
    )
    some: Bools = np.asarray(known.any(axis=0))
    cost, scores, points = rate(terms, 0.0, some, groups)
    return Scored(
        score=scores,
        cost=cost,
        coverage=known.mean(axis=0),
        signals=ROWS,
        values=values,
        peers=medians,
        points=points,
    )


def class_factor(request_class: RequestClass, hit_ratio: Floats, max_hit_ratio: float) -> Floats:
    """How much slack the affinity bound leaves to a class of requests, float64[n].

    `hit_ratio` float64[n] in 0..1, NaN counts as none. As a common factor of all endpoints it would
    cancel in the weights, so it acts on the bound and on the order of admission.

    >>> class_factor("read-heavy", np.array([0.5, 0.0]), 0.5)
    array([1.8 , 1.26])
    """
    relative = known_or(hit_ratio, 0.0) / max_hit_ratio if max_hit_ratio > 0 else 0.0 * hit_ratio
    factor: Floats = CLASS_FACTORS[request_class] * (0.7 + 0.3 * known_or(relative, 0.0))
    return factor
