"""Requests by tenant: how much each sends, how much of it fails, how long it takes.

Tenants beyond the bound, and requests without one, count in the row of tenant 0, so that the rows
sum to what was read from the endpoints' observers.
"""

from dataclasses import dataclass

import numpy as np

from pipeline.fold.key_rows import NO_GROUP
from pipeline.fold.keyed import (
    CALLS,
    FAILURE_CALLS,
    FAILURES,
    OUTPUT,
    OVERLOADS,
    PROMPT,
    Counted,
    KeyedFold,
    Sketches,
)
from pipeline.fold.sketch import LogBuckets
from pipeline.fold.waiting import DURATION, Batch
from pipeline.model import Bytes, Floats, UInt64s

QUANTILES = (0.5, 0.99)


@dataclass(frozen=True, slots=True, eq=False)
class TenantWindow:
    """Tenants in the newest window, k rows in the order of `tenant`; as `KindWindow`."""

    seconds: float
    tenant: UInt64s
    """Hash of the tenant's name; 0 = none, or one that is not kept apart."""
    calls: Floats
    failures: Floats
    overloads: Floats
    failure_calls: Floats
    prompt_tokens: Floats
    output_tokens: Floats
    duration_n: Floats
    duration_p50_s: Floats
    duration_p99_s: Floats
    latency: Sketches
    """What the quantiles are from: DURATION alone."""


class TenantFold:
    """Windows of tenants. Order: `advance`, then `add`; both are the breakdown's to call."""

    def __init__(self, max_tenants: int, expire_after_s: int, buckets: LogBuckets) -> None:
        """Keep up to `max_tenants` apart, each for `expire_after_s` after its last request."""
        self._keyed = KeyedFold(max_tenants, expire_after_s, buckets, timed=1)

    @property
    def nbytes(self) -> int:
        """Memory of the rings, in bytes."""
        return self._keyed.nbytes

    def __len__(self) -> int:
        """How many tenants are kept apart."""
        return len(self._keyed)

    def advance(self, second: int) -> None:
        """Open the bucket of `second`."""
        self._keyed.advance(second)

    def add(self, batch: Batch, use: Bytes, second: int) -> Counted:
        """Count requests that are heard of in `second`; `use` uint8[n] says what for."""
        group = np.full(len(use), NO_GROUP, np.int64)
        return self._keyed.add(batch, group, batch.tenant, use, second)

    def window(self, seconds: int, covered_s: float) -> TenantWindow:
        """The newest `seconds` (1..120), in whole buckets; `covered_s` is how much time that is."""
        window = self._keyed.window(seconds)
        timed, (median_s, high_s) = window.sketches.quantiles(QUANTILES)
        counts = window.counts
        return TenantWindow(
            seconds=covered_s,
            tenant=window.key,
            calls=counts[:, CALLS],
            failures=counts[:, FAILURES],
            overloads=counts[:, OVERLOADS],
            failure_calls=counts[:, FAILURE_CALLS],
            prompt_tokens=counts[:, PROMPT],
            output_tokens=counts[:, OUTPUT],
            duration_n=timed[:, DURATION].astype(np.float64),
            duration_p50_s=median_s[:, DURATION],
            duration_p99_s=high_s[:, DURATION],
            latency=window.sketches,
        )
