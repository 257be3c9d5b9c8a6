"""A breakdown with the request fold that feeds it, for tests."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np

from pipeline.clock import NS_PER_S, Instant
from pipeline.fold.breakdown import Breakdown, BreakdownConfig
from pipeline.fold.kinds import KindWindow
from pipeline.fold.requests import RequestConfig, RequestFold
from pipeline.fold.tenants import TenantWindow
from tests.builders import START, requests

POOLS: Final = np.array([0, 0, 1, -1, 1, -1, -1, -1], np.int32)
"""The pool of each endpoint."""
SLOTS: Final = len(POOLS)


class Folds:
    """A breakdown, the request fold that it feeds, and the reasons that it gave."""

    def __init__(self, **config: Any) -> None:
        self.requests = RequestFold(RequestConfig())
        self.breakdown = Breakdown(BreakdownConfig(**config), self.requests)
        self.reasons: Counter[str] = Counter()
        for part in (self.requests, self.breakdown):
            part.resize(SLOTS)

    def fold(self, rows: Sequence[Mapping[str, Any]], now: Instant = START) -> dict[str, int]:
        reasons = dict(self.breakdown.fold(requests(rows), POOLS, now))
        self.reasons.update(reasons)
        return reasons

    def kinds(self, now: Instant = START, seconds: int = 60) -> KindWindow:
        return self.breakdown.kinds(seconds, now)

    def tenants(self, now: Instant = START, seconds: int = 60) -> TenantWindow:
        return self.breakdown.tenants(seconds, now)


def ago(seconds: float, now: Instant = START) -> int:
    return now.wall_ns - round(seconds * NS_PER_S)


def trace(number: int) -> bytes:
    return number.to_bytes(16, "big")


def assert_same(left: Any, right: Any) -> None:
    """Windows, column by column."""
    for field in fields(left):
        one, other = getattr(left, field.name), getattr(right, field.name)
        pairs = zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]
        for a, b in pairs:
            if isinstance(a, (np.ndarray, float)):
                np.testing.assert_array_equal(a, b, err_msg=field.name)
