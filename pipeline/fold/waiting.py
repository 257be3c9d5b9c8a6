"""Placed requests that wait to be broken down, and what breaking down needs of them.

They wait because a request counts by the observer that its endpoint is read from, which is chosen
at a tick, and because a thousand rows cost little more than ten. What the breakdowns share is
worked out once, when they are taken.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.clock import NS_PER_S, Instant
from pipeline.fold.amounts import (
    fixed_point,
    known,
    picked_weight,
    weighted_tokens,
    whole_requests,
)
from pipeline.fold.buckets import Some
from pipeline.fold.placing import Placed
from pipeline.fold.sketch import LogBuckets
from pipeline.model import Bools, Bytes, Floats, Int32s, Int64s, Observer, Outcome, UInt64s

BLOCK_S: Final = 10
"""Seconds in a bucket: mixes, quotas and baselines are read over minutes, and ten buckets of ten
seconds cost a tenth of what the endpoints' hundred of one second would."""

DURATION, TTFT, ITL = range(3)
"""What is timed: whole requests, times to first token, mean times between later tokens."""

MICROS_PER_S: Final = 1e6
MAX_MICROS: Final = 1e12
"""Bound on what one timing may add to a sum, far above any real one."""

SETTLE_NS: Final = NS_PER_S
"""Nothing waits for much longer while requests come."""

_COLUMNS: Final = (
    "slot",
    "observer",
    "outcome",
    "duration_s",
    "ttft_s",
    "prompt_tokens",
    "output_tokens",
    "weight",
    "kind",
    "tenant",
    "trace_id",
)


class Timed(NamedTuple):
    """Timings of a batch's requests, k of them, those of one kind together: DURATION first."""

    row: npt.NDArray[np.intp]
    """Of the batch."""
    what: Int64s
    bucket: Int32s
    """Of the sketch."""
    requests: Int64s | int
    """How many requests each stands for, in whole numbers."""
    micros: Floats
    """Microseconds of all of them together, whole numbers."""
    ends: tuple[int, int, int]
    """Where the timings of each kind end."""

    def of_first(self, kinds: int) -> "Timed":
        """Those of the first kinds, as views."""
        end = self.ends[kinds - 1]
        requests = self.requests if isinstance(self.requests, int) else self.requests[:end]
        return Timed(
            self.row[:end],
            self.what[:end],
            self.bucket[:end],
            requests,
            self.micros[:end],
            self.ends,
        )


class Batch(NamedTuple):
    """Requests that are broken down together, n of them."""

    cell: Int64s
    """int64[n]: slot * observers + observer."""
    pool: Int64s
    kind: UInt64s
    tenant: UInt64s
    block: Int64s
    """int64[n]: the bucket of time."""
    at_ns: Int64s
    outcome: Bytes
    weight: Int64s | int
    """In fixed point."""
    prompt: Floats
    """float64[n] tokens in fixed point, whole numbers; 0 where unknown."""
    output: Floats
    took_s: Floats
    """However it ended; NaN where unknown."""
    is_served: Bools
    trace: UInt64s
    """uint64[n, 2]"""
    timed: Timed


class Waiting:
    """Collects requests: order `add` any number of times, then `take`."""

    def __init__(self, buckets: LogBuckets) -> None:
        """Nothing waits; `buckets` are the sketches'."""
        self._buckets = buckets
        self._parts: list[tuple[Placed, Int32s]] = []
        self._since_ns = 0
        self.n = 0
        """How many wait."""

    def add(self, placed: Placed, pool_of_slot: Int32s, now: Instant) -> None:
        """Let requests wait that arrived at `now`; `pool_of_slot` int32[n slots], -1 = none."""
        if not placed.rows.n:
            return
        if not self.n:
            self._since_ns = now.mono_ns
        self._parts.append((placed, pool_of_slot.take(placed.rows.slot)))
        self.n += placed.rows.n

    def is_due(self, now: Instant) -> bool:
        """Whether something has waited for long."""
        return self.n > 0 and now.mono_ns - self._since_ns >= SETTLE_NS

    def take(self, oldest_block: int) -> Batch | None:
        """All that waits from `oldest_block` on; None = nothing. What is older has had its time."""
        parts, self._parts, self.n = self._parts, [], 0
        if not parts:
            return None
        second = _joined([placed.second for placed, _ in parts])
        columns = {
            name: _joined([getattr(placed.rows, name) for placed, _ in parts]) for name in _COLUMNS
        }
        columns["pool"] = _joined([pool for _, pool in parts])
        columns["at_ns"] = _joined([placed.at_ns for placed, _ in parts])
        columns["block"] = second // BLOCK_S
        if np.minimum.reduce(columns["block"]) < oldest_block:
            kept = (columns["block"] >= oldest_block).nonzero()[0]
            if not len(kept):
                return None
            columns = {name: column[kept] for name, column in columns.items()}
        return _batch(columns, self._buckets)


def _joined(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _batch(columns: dict[str, npt.NDArray[Any]], buckets: LogBuckets) -> Batch:
    cell = columns["slot"].astype(np.int64)
    cell *= len(Observer)
    cell += columns["observer"]
    weight = fixed_point(columns["weight"])
    duration_s = columns["duration_s"]
    unserved = columns["outcome"].nonzero()[0]
    if len(unserved):
        # How long a failure took says nothing about speed: a refusal takes no time at all.
        duration_s = duration_s.copy()
        duration_s[unserved] = np.nan
    itl_s = _itl_s(duration_s, columns["ttft_s"], columns["output_tokens"])
    return Batch(
        cell=cell,
        pool=columns["pool"].astype(np.int64),
        kind=columns["kind"],
        tenant=columns["tenant"],
        block=columns["block"],
        at_ns=columns["at_ns"],
        outcome=columns["outcome"],
        weight=weight,
        prompt=_tokens(columns["prompt_tokens"], weight),
        output=_tokens(columns["output_tokens"], weight),
        took_s=columns["duration_s"],
        is_served=columns["outcome"] == Outcome.OK,
        trace=np.ascontiguousarray(columns["trace_id"]).view(np.uint64),
        timed=_timed((duration_s, columns["ttft_s"], itl_s), weight, buckets),
    )


def _tokens(tokens: Floats, weight: Int64s | int) -> Floats:
    some: Some = known(tokens)
    if isinstance(some, slice):
        return weighted_tokens(tokens, weight)
    amount = np.zeros(len(tokens))
    amount[some] = weighted_tokens(tokens[some], picked_weight(weight, some))
    return amount


def _itl_s(duration_s: Floats, ttft_s: Floats, output_tokens: Floats) -> Floats:
    """float64[n]: the mean time between tokens after the first; NaN without two tokens."""
    itl_s = np.full(len(duration_s), np.nan)
    more = output_tokens - 1.0
    has_more = (more >= 1.0) & (duration_s >= ttft_s)
    some = has_more.nonzero()[0]
    itl_s[some] = (duration_s[some] - ttft_s[some]) / more[some]
    return itl_s


def _timed(
    columns: tuple[Floats, Floats, Floats], weight: Int64s | int, buckets: LogBuckets
) -> Timed:
    rows = [(~np.isnan(seconds)).nonzero()[0] for seconds in columns]
    row = np.concatenate(rows)
    seconds = np.concatenate([column[some] for column, some in zip(columns, rows, strict=True)])
    requests = picked_weight(whole_requests(weight), row)
    micros = np.rint(seconds * MICROS_PER_S)
    micros *= requests
    return Timed(
        row=row,
        what=np.repeat(np.arange(len(rows)), [len(some) for some in rows]),
        bucket=buckets.index(seconds),
        requests=requests,
        micros=np.clip(micros, 0.0, MAX_MICROS, out=micros),
        ends=(len(rows[0]), len(rows[0]) + len(rows[1]), len(row)),
    )
