"""Requests by kind: what each kind of request of a pool costs, how long it takes, how it fails.

A kind is a request's fingerprint. Kinds beyond the bound, and requests without one, count in their
pool's row of kind 0, so that the rows of a pool sum to what was read from its endpoints' observers.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.clock import NS_PER_S
from pipeline.fold.exemplars import UNRANKED, BestTraces, Exemplars
from pipeline.fold.keyed import (
    BLOCKS,
    CALLS,
    FAILURE_CALLS,
    FAILURES,
    OUTPUT,
    OVERLOADS,
    PROMPT,
    USE_CALLS,
    USE_FAILURES,
    Counted,
    KeyedFold,
    Sketches,
)
from pipeline.fold.sketch import LogBuckets
from pipeline.fold.waiting import BLOCK_S, DURATION, ITL, TTFT, Batch
from pipeline.model import Bools, Bytes, Floats, Int32s, Outcome, UInt64s

TIMED: Final = 3
QUANTILES: Final = (0.5, 0.99)


@dataclass(frozen=True, slots=True, eq=False)
class KindWindow:
    """Kinds of request in the newest window, k rows in the order of pool and kind.

    Only rows in which something counts are there. Counts are corrected for sampling; quantiles are
    NaN where nothing was timed, and `*_n` says of how many requests they are.
    """

    seconds: float
    """How much time the window covers."""
    kind: UInt64s
    """0 = of no kind, or of one that is not kept apart."""
    pool: Int32s
    """-1 = none."""
    calls: Floats
    failures: Floats
    overloads: Floats
    failure_calls: Floats
    """Calls as counted by the observers of failures (the ratio's denominator)."""
    prompt_tokens: Floats
    output_tokens: Floats
    duration_n: Floats
    duration_p50_s: Floats
    duration_p99_s: Floats
    ttft_n: Floats
    ttft_p50_s: Floats
    ttft_p99_s: Floats
    itl_n: Floats
    itl_p50_s: Floats
    itl_p99_s: Floats
    slowest: Exemplars
    """Of the requests that were served."""
    failed: Exemplars
    """The newest failures."""
    latency: Sketches
    """What the quantiles are from: DURATION, TTFT and ITL of each row."""


class KindFold:
    """Windows of the kinds of request of every pool, with a trace of the slowest and of failures.

    Order: `advance`, then `add`; both are the breakdown's to call.
    """

    def __init__(self, max_kinds: int, expire_after_s: int, buckets: LogBuckets) -> None:
        """Keep up to `max_kinds` kinds apart, each for `expire_after_s` after its last request."""
        self._keyed = KeyedFold(max_kinds, expire_after_s, buckets, TIMED)
        self._slowest, self._failed = BestTraces(BLOCKS), BestTraces(BLOCKS)

    @property
    def nbytes(self) -> int:
        """Memory of the rings, in bytes."""
        return self._keyed.nbytes + self._slowest.nbytes + self._failed.nbytes

    def __len__(self) -> int:
        """How many kinds are kept apart."""
        return len(self._keyed)

    def advance(self, second: int) -> None:
        """Open the bucket of `second`."""
        self._keyed.advance(second)
        for traces in (self._slowest, self._failed):
            traces.advance(second // BLOCK_S)

    def add(self, batch: Batch, use: Bytes, second: int) -> Counted:
        """Count requests that are heard of in `second`; `use` uint8[n] says what for."""
        counted = self._keyed.add(batch, batch.pool, batch.kind, use, second)
        for traces in (self._slowest, self._failed):
            traces.grow(self._keyed.rows)
        has_trace = (batch.trace[:, 0] | batch.trace[:, 1]) != 0
        if np.count_nonzero(has_trace):
            self._keep_slowest(batch, counted, has_trace & (use & USE_CALLS > 0))
            self._keep_failed(batch, counted, has_trace & (use & USE_FAILURES > 0))
        return counted

    def _keep_slowest(self, batch: Batch, counted: Counted, is_usable: Bools) -> None:
        is_usable &= batch.is_served & ~np.isnan(batch.took_s)
        rank = np.full(len(counted.row), UNRANKED, np.int64)
        np.multiply(batch.took_s, NS_PER_S, out=rank, where=is_usable, casting="unsafe")
        self._slowest.offer(batch.block, counted.row, rank, batch.at_ns, batch.took_s, batch.trace)

    def _keep_failed(self, batch: Batch, counted: Counted, is_usable: Bools) -> None:
        is_usable &= batch.outcome == Outcome.FAILURE
        some = is_usable.nonzero()[0]
        if len(some):
            at_ns = batch.at_ns[some]
            self._failed.offer(
                *(batch.block[some], counted.row[some], at_ns, at_ns),
                *(batch.took_s[some], batch.trace[some]),
            )

    def window(self, seconds: int, covered_s: float) -> KindWindow:
        """The newest `seconds` (1..120), in whole buckets, the open one included.

        `covered_s` is how much time that is.
        """
        window = self._keyed.window(seconds)
        timed, (median_s, high_s) = window.sketches.quantiles(QUANTILES)
        counts, blocks = window.counts, -(-seconds // BLOCK_S)
        return KindWindow(
            seconds=covered_s,
            kind=window.key,
            pool=window.group.astype(np.int32),
            calls=counts[:, CALLS],
            failures=counts[:, FAILURES],
            overloads=counts[:, OVERLOADS],
            failure_calls=counts[:, FAILURE_CALLS],
            prompt_tokens=counts[:, PROMPT],
            output_tokens=counts[:, OUTPUT],
            duration_n=timed[:, DURATION].astype(np.float64),
            duration_p50_s=median_s[:, DURATION],
            duration_p99_s=high_s[:, DURATION],
            ttft_n=timed[:, TTFT].astype(np.float64),
            ttft_p50_s=median_s[:, TTFT],
            ttft_p99_s=high_s[:, TTFT],
            itl_n=timed[:, ITL].astype(np.float64),
            itl_p50_s=median_s[:, ITL],
            itl_p99_s=high_s[:, ITL],
            slowest=self._slowest.window(blocks, window.row),
            failed=self._failed.window(blocks, window.row),
            latency=window.sketches,
        )
