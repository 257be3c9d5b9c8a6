"""Requests -> windows per endpoint: rate, failures, tokens and latency, kept apart by observer.

Buckets are seconds by end time, corrected by the source's clock offset, in a ring of 120; the open
one counts. Everything kept is an integer, so the result does not depend on how the stream was cut
into batches. Each signal of a window reads one observer, so a request counts once.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.clock import NS_PER_S, Instant
from pipeline.fold.buckets import BucketRing
from pipeline.fold.observers import ObserverChoice, Presence
from pipeline.fold.offsets import SourceOffsets
from pipeline.fold.sketch import LogBuckets
from pipeline.model import (
    Config,
    Directory,
    Floats,
    Int32s,
    Int64s,
    Observer,
    Outcome,
    RequestRows,
    RequestWindow,
)

RING_S: Final = 120
"""Seconds kept, the open one included."""

ONE: Final = 1024
"""Fixed point of counts: sampled requests stand for a fraction more than a whole number."""

MAX_WEIGHT: Final = 1e4
MAX_TOKENS: Final = 1e7
"""Bounds on what one row may add, far above any real one: senders may write any number."""

TOKEN_BLOCK_S: Final = 10
TOKEN_BLOCKS: Final = 12
"""Token lengths are kept in blocks of ten seconds: they are compared over a minute or more."""

TOKEN_ERROR_RATIO: Final = 0.03
"""Of the pool's median; a difference of lengths that matters is hundreds of tokens."""

OBSERVERS: Final = len(Observer)

_CALLS, _FAILURES, _OVERLOADS, _REFUSED, _PROMPT, _OUTPUT = range(6)
_TOKENS, _TOKEN_N = range(2)

_RATE_ORDER: Final = (Observer.ENGINE, Observer.AGENT, Observer.PROXY, Observer.CLIENT)
_FAILURE_ORDER: Final = (Observer.PROXY, Observer.CLIENT, Observer.AGENT, Observer.ENGINE)
"""A dead server is seen only by its callers."""
_TTFT_ORDER: Final = (Observer.AGENT, Observer.PROXY, Observer.CLIENT, Observer.ENGINE)
"""The engine's own histogram is a metric; its spans, possibly sampled, serve when nobody else."""


class RequestConfig(Config, frozen=True, kw_only=True):
    """How requests are folded into windows."""

    latency_error_ratio: Annotated[float, msgspec.Meta(ge=0.01, le=0.2)] = 0.055
    """Relative error of latency quantiles; memory grows with its inverse."""
    switch_after_s: Annotated[float, msgspec.Meta(ge=1.0)] = 60.0
    """How long a better observer must have been there, or the present one silent, for a switch."""
    token_window_s: Annotated[int, msgspec.Meta(ge=10, le=120)] = 60
    """Over how long token lengths are compared between the endpoints of a pool."""
    max_sources: Annotated[int, msgspec.Meta(ge=64)] = 65_536
    """Sending resources whose clock offsets are known; events of others are taken at their word."""


class RequestFold:
    """Request windows of every endpoint."""

    def __init__(self, config: RequestConfig) -> None:
        """Start with no slots; `resize` comes first."""
        self._config = config
        self._offsets = SourceOffsets(config.max_sources)
        self._latencies = LogBuckets(config.latency_error_ratio, 1e-3, 600.0)
        self._lengths = LogBuckets(TOKEN_ERROR_RATIO, 1.0, 1e6)
        n = self._latencies.n
        self._counts = _Rows(BucketRing(RING_S, 6, np.int64))
        self._ttft = _Rows(BucketRing(RING_S, n, np.uint16))
        self._duration = _Rows(BucketRing(RING_S, n, np.uint16))
        self._token_sums = _Rows(BucketRing(TOKEN_BLOCKS, 2, np.int64))
        self._token_lengths = _Rows(BucketRing(TOKEN_BLOCKS, self._lengths.n, np.uint16))
        switch_ns = round(config.switch_after_s * NS_PER_S)
        self._seen, self._seen_tokens, self._seen_ttft = (Presence(switch_ns) for _ in range(3))
        self._rate_choice = ObserverChoice(_RATE_ORDER, self._seen)
        self._failure_choice = ObserverChoice(_FAILURE_ORDER, self._seen)
        self._token_choice = ObserverChoice(_RATE_ORDER, self._seen_tokens)
        self._ttft_choice = ObserverChoice(_TTFT_ORDER, self._seen_ttft)
        self._heard_ns: Int64s = np.zeros(0, np.int64)
        self._origin_ns: int | None = None

    @property
    def _tables(self) -> tuple["_Rows", ...]:
        return (
            self._counts,
            self._ttft,
            self._duration,
            self._token_sums,
            self._token_lengths,
        )

    @property
    def _by_slot(self) -> tuple[ObserverChoice | Presence, ...]:
        presences = (self._seen, self._seen_tokens, self._seen_ttft)
        choices = (self._rate_choice, self._failure_choice, self._token_choice, self._ttft_choice)
        return (*presences, *choices)

    @property
    def nbytes(self) -> int:
        """Memory of the rings, in bytes."""
        return sum(table.ring.nbytes for table in self._tables)

    def resize(self, n_slots: int) -> None:
        """Make room for `n_slots` endpoints; it never shrinks."""
        for table in self._tables:
            table.resize(n_slots)
        for part in self._by_slot:
            part.resize(n_slots)
        missing = max(0, n_slots - len(self._heard_ns))
        self._heard_ns = np.concatenate((self._heard_ns, np.full(missing, _NEVER)))

    def forget(self, slots: Int32s) -> None:
        """Empty the slots, for other endpoints."""
        for table in self._tables:
            table.forget(slots)
        for part in self._by_slot:
            part.forget(slots)
        self._heard_ns[slots] = _NEVER

    def fold(self, rows: RequestRows, now: Instant) -> Mapping[str, int]:
        """Take in requests; returns how many were left out or cut, by reason."""
        self._advance(now)
        if not rows.n:
            return {}
        full = self._ttft.ring.full + self._duration.ring.full + self._token_lengths.ring.full
        ages = self._offsets.ages(rows.source, rows.end_ns, now)
        at_ns = self._time_ns(now) - np.maximum(ages.age_ns, 0)
        second = at_ns // NS_PER_S
        is_late = second <= self._counts.ring.head - RING_S
        kept = np.flatnonzero(~ages.is_future & ~is_late)
        self._add(rows, kept, second[kept], at_ns[kept], now)
        full -= self._ttft.ring.full + self._duration.ring.full + self._token_lengths.ring.full
        reasons = {
            "future": int(ages.is_future.sum()),
            "late": int((is_late & ~ages.is_future).sum()),
            "source_overflow": ages.overflow,
            "sketch_full": -full,
        }
        return {reason: count for reason, count in reasons.items() if count}

    def _time_ns(self, now: Instant) -> int:
        """Now on a time line that has the wall clock's seconds and never steps."""
        if self._origin_ns is None:
            self._origin_ns = now.wall_ns - now.mono_ns
        return now.mono_ns + self._origin_ns

    def _advance(self, now: Instant) -> None:
        second = self._time_ns(now) // NS_PER_S
        for table in (self._counts, self._ttft, self._duration):
            table.ring.advance(second)
        for table in (self._token_sums, self._token_lengths):
            table.ring.advance(second // TOKEN_BLOCK_S)

    def _add(
        self,
        rows: RequestRows,
        kept: npt.NDArray[np.intp],
        second: Int64s,
        at_ns: Int64s,
        now: Instant,
    ) -> None:
        slot, observer = rows.slot[kept], rows.observer[kept].astype(np.int32)
        cell = slot * OBSERVERS + observer
        outcome = rows.outcome[kept]
        self._seen.heard(cell, now)
        alive = np.flatnonzero((outcome == Outcome.OK) | (outcome == Outcome.OVERLOAD))
        np.maximum.at(self._heard_ns, slot[alive], at_ns[alive])

        weight = np.rint(np.clip(rows.weight[kept], 0.0, MAX_WEIGHT) * ONE)
        row = self._counts.rows(cell)
        ring = self._counts.ring
        ring.add(second, row, _CALLS, weight.astype(np.int64))
        for column, mask in (
            (_FAILURES, outcome == Outcome.FAILURE),
            (_OVERLOADS, outcome == Outcome.OVERLOAD),
            (_REFUSED, rows.refused[kept]),
        ):
            some = np.flatnonzero(mask)
            if not len(some):
                continue
            ring.add(second[some], row[some], column, weight[some].astype(np.int64))
        for column, tokens in (
            (_PROMPT, rows.prompt_tokens[kept]),
            (_OUTPUT, rows.output_tokens[kept]),
        ):
            some = np.flatnonzero(~np.isnan(tokens))
            amount = np.rint(np.clip(tokens[some], 0.0, MAX_TOKENS) * weight[some])
            ring.add(second[some], row[some], column, amount.astype(np.int64))
        self._add_latency(self._ttft, cell, second, rows.ttft_s[kept], self._seen_ttft, now)
        # How long a failure took says nothing about speed: a refusal takes no time at all.
        duration_s = np.where(outcome == Outcome.OK, rows.duration_s[kept], np.nan)
        self._add_latency(self._duration, cell, second, duration_s, None, now)
        self._add_tokens(rows, kept, cell, second, now)

    def _add_latency(
        self,
        table: "_Rows",
        cell: Int32s,
        second: Int64s,
        seconds: Floats,
        presence: Presence | None,
        now: Instant,
    ) -> None:
        some = np.flatnonzero(~np.isnan(seconds))
        if not len(some):
            return
        if presence is not None:
            presence.heard(cell[some], now)
        row = table.rows(cell[some])
        table.ring.add(second[some], row, self._latencies.index(seconds[some]), 1)

    def _add_tokens(
        self,
        rows: RequestRows,
        kept: npt.NDArray[np.intp],
        cell: Int32s,
        second: Int64s,
        now: Instant,
    ) -> None:
        length = rows.prompt_tokens[kept] + rows.output_tokens[kept]
        some = np.flatnonzero(~np.isnan(length))
        if not len(some):
            return
        cell, block = cell[some], second[some] // TOKEN_BLOCK_S
        length = np.clip(length[some], 0.0, MAX_TOKENS)
        self._seen_tokens.heard(cell, now)
        row = self._token_sums.rows(cell)
        self._token_sums.ring.add(block, row, _TOKENS, np.rint(length).astype(np.int64))
        self._token_sums.ring.add(block, row, _TOKEN_N, 1)
        row = self._token_lengths.rows(cell)
        self._token_lengths.ring.add(block, row, self._lengths.index(length), 1)

    def window(self, seconds: int, now: Instant) -> RequestWindow:
        """The newest `seconds` buckets (1..120), the open one included, per slot."""
        self._advance(now)
        rate, failure = self._rate_choice.choose(now), self._failure_choice.choose(now)
        tokens, ttft = self._token_choice.choose(now), self._ttft_choice.choose(now)
        by_rate = self._counts.window(seconds, rate) / ONE
        by_failure = self._counts.window(seconds, failure) / ONE
        by_tokens = self._counts.window(seconds, tokens) / ONE
        ttft_counts = self._ttft.window(seconds, ttft)
        duration_counts = self._duration.window(seconds, rate)
        ttft_s = self._latencies.quantiles(ttft_counts, (0.5, 0.99))
        duration_s = self._latencies.quantiles(duration_counts, (0.5, 0.99))
        open_s = self._time_ns(now) % NS_PER_S / NS_PER_S
        return RequestWindow(
            seconds=seconds - 1 + open_s,
            calls=by_rate[:, _CALLS],
            failures=by_failure[:, _FAILURES],
            overloads=by_failure[:, _OVERLOADS],
            failure_calls=by_failure[:, _CALLS],
            refused=by_failure[:, _REFUSED],
            prompt_tokens=by_tokens[:, _PROMPT],
            output_tokens=by_tokens[:, _OUTPUT],
            ttft_p50_s=ttft_s[0],
            ttft_p99_s=ttft_s[1],
            ttft_n=ttft_counts.sum(axis=1).astype(np.float64),
            duration_p50_s=duration_s[0],
            duration_p99_s=duration_s[1],
            duration_n=duration_counts.sum(axis=1).astype(np.float64),
            calls_observer=rate,
            failures_observer=failure,
            ttft_observer=ttft,
        )

    def heard_age_s(self, now: Instant) -> Floats:
        """float64[n slots]: seconds since a request was last served; inf = never."""
        age = (self._time_ns(now) - self._heard_ns) / NS_PER_S
        return np.where(self._heard_ns == _NEVER, np.inf, np.maximum(age, 0.0))

    def refused_recent(self, now: Instant, seconds: int = 3) -> Floats:
        """float64[n slots]: refused connections in the newest buckets, by whoever saw most."""
        self._advance(now)
        refused = np.zeros(len(self._heard_ns))
        for observer in Observer:
            chosen = np.full(len(refused), observer, np.int8)
            seen = self._counts.window(seconds, chosen)[:, _REFUSED] / ONE
            refused = np.maximum(refused, seen)
        return refused

    def token_length_deviation(self, directory: Directory, now: Instant) -> Floats:
        """float64[n slots]: how many tokens longer requests are than the pool's median, or 0.

        Tokens are prompt and output, as the mean over the token window; NaN with fewer than two
        requests.
        """
        self._advance(now)
        blocks = -(-self._config.token_window_s // TOKEN_BLOCK_S)
        chosen = self._token_choice.choose(now)
        sums = self._token_sums.window(blocks, chosen)
        lengths = self._token_lengths.window(blocks, chosen)
        n = len(self._heard_ns)
        if not n:
            return np.zeros(0)
        pool = np.full(n, -1, np.int32)
        pool[: min(n, directory.n)] = directory.pool[:n]
        order = np.argsort(pool, kind="stable")
        _, starts, group = np.unique(pool[order], return_index=True, return_inverse=True)
        pooled = np.add.reduceat(lengths[order], starts, axis=0)
        median = np.empty(n)
        median[order] = self._lengths.quantiles(pooled, (0.5,))[0][group]
        count = sums[:, _TOKEN_N]
        mean = sums[:, _TOKENS] / np.maximum(count, 1)
        deviation = np.maximum(mean - median, 0.0)
        return np.where((count >= 2) & (pool >= 0), deviation, np.nan)


_NEVER: Final = np.iinfo(np.int64).min // 2


class _Rows:
    """Rows of a ring, given to (slot, observer) cells as they are first needed."""

    def __init__(self, ring: BucketRing[Any]) -> None:
        self.ring = ring
        self._row: Int32s = np.zeros(0, np.int32)
        self._used = 0
        self._free: list[int] = []

    def resize(self, n_slots: int) -> None:
        missing = max(0, n_slots * OBSERVERS - len(self._row))
        self._row = np.concatenate((self._row, np.full(missing, -1, np.int32)))

    def rows(self, cell: Int32s) -> Int32s:
        """int32[k] rows of cells, given where new."""
        row = self._row[cell]
        if row.min(initial=0) < 0:
            new = np.unique(cell[row < 0])
            spare = [self._free.pop() for _ in range(min(len(new), len(self._free)))]
            used = self._used + len(new) - len(spare)
            if used > self.ring.rows:
                self.ring.grow(max(8, used, self.ring.rows + self.ring.rows // 4))
            self._row[new] = [*spare, *range(self._used, used)]
            self._used = used
            row = self._row[cell]
        return row

    def forget(self, slots: Int32s) -> None:
        cells = (slots[:, None].astype(np.int64) * OBSERVERS + np.arange(OBSERVERS)).reshape(-1)
        rows = self._row[cells]
        rows = rows[rows >= 0]
        self.ring.clear(rows)
        self._free.extend(rows.tolist())
        self._row[cells] = -1

    def window(self, buckets: int, observer: npt.NDArray[np.int8]) -> npt.NDArray[np.integer]:
        """[n slots, width] sums of the chosen observer's row; zeros where there is none."""
        cells = np.arange(len(observer)) * OBSERVERS + np.maximum(observer, 0)
        row = np.where(observer >= 0, self._row[cells], -1)
        sums = self.ring.window(buckets)
        if not len(sums):
            return np.zeros((len(row), sums.shape[1]), sums.dtype)
        picked = sums[np.maximum(row, 0)]
        picked[row < 0] = 0
        return picked
