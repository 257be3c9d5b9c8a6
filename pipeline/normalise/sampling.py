"""Consistent probability sampling: how many requests a kept span stands for.

The threshold is OpenTelemetry's `ot=th:` in the W3C tracestate.
"""

from typing import Final

import numpy as np

from pipeline.model import Floats, Int32s
from pipeline.normalise.batch import MAX_JUDGED, Batch

MAX_SAMPLING_WEIGHT: Final = 10_000.0
"""One span cannot stand for more requests: a sampling threshold is the sender's word."""

_HEX: Final = frozenset("0123456789abcdef")


def sampling_weights(codes: Int32s, batch: Batch) -> Floats:
    """float64[len(codes)]: how many requests a span stands for, from `ot=th:` of its tracestate."""
    judged = batch.distinct(codes)[:MAX_JUDGED].tolist()
    found = [sampling_weight(batch.strings.text(code)) for code in judged]
    if all(weight == 1.0 for weight in found):
        return np.ones(len(codes))
    weights = np.ones(len(batch.strings) + 1)
    weights[judged] = found
    return weights.take(codes)


def sampling_weight(trace_state: str) -> float:
    """1 / sampling probability by a rejection threshold of up to 14 hexadecimal digits; else 1.

    >>> sampling_weight("vendor=x,ot=rv:1;th:8"), sampling_weight("ot=th:0"), sampling_weight("")
    (2.0, 1.0, 1.0)
    """
    for member in trace_state.split(","):
        name, _, value = member.strip().partition("=")
        if name != "ot":
            continue
        for field in value.split(";"):
            key, _, digits = field.partition(":")
            if key == "th" and 0 < len(digits) <= 14 and set(digits) <= _HEX:
                kept = (1 << 56) - int(digits.ljust(14, "0"), 16)
                return min((1 << 56) / kept, MAX_SAMPLING_WEIGHT) if kept else 1.0
    return 1.0
