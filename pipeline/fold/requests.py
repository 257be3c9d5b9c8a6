"""Requests -> windows per endpoint: rate, failures, tokens and latency, kept apart by observer.

Buckets are seconds by end time, corrected by the source's clock offset, in a ring of 120; the open
one counts. Everything kept is an integer, so the result does not depend on how the stream was cut
into batches. Each signal of a window reads one observer, so a request counts once.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.clock import NS_PER_S, Instant
from pipeline.fold.amounts import (
    ONE,
    bounded_tokens,
    fixed_point,
    known,
    picked_weight,
    weighted_tokens,
)
from pipeline.fold.buckets import MAX_WINDOWS, BucketRing, Spots
from pipeline.fold.observers import Chosen, Int8s, ObserverChoice, Presence
from pipeline.fold.placing import Placed, TimeLine
from pipeline.fold.ring_rows import RingRows, picked
from pipeline.fold.sketch import LogBuckets
from pipeline.model import (
    Bytes,
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

TOKEN_BLOCK_S: Final = 10
TOKEN_BLOCKS: Final = 13
"""Token lengths are kept in blocks of ten seconds: they are compared over a minute or more.

One block more than the ring's seconds fill, which begin and end inside a block.
"""

TOKEN_ERROR_RATIO: Final = 0.03
"""Of the pool's median; a difference of lengths that matters is hundreds of tokens."""

OBSERVERS: Final = len(Observer)

Indices: TypeAlias = npt.NDArray[np.intp]

_NEVER: Final = np.iinfo(np.int64).min // 2
_CALLS, _FAILURES, _OVERLOADS, _REFUSED, _PROMPT, _OUTPUT = range(6)
_COLUMN_OF_OUTCOME: Final = np.array([-1, _FAILURES, _OVERLOADS, -1], np.int32)
_LATENCIES: Final = ("duration", "ttft")
_UNTIMED: Final = np.zeros(0, np.int64), np.zeros(0)
_DURATION, _TTFT = range(2)
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


class _Kept(NamedTuple):
    """A window, and what it was made from."""

    changes: int
    chosen: tuple[Int8s, ...]
    window: RequestWindow


class RequestFold:
    """Request windows of every endpoint."""

    def __init__(self, config: RequestConfig) -> None:
        """Start with no slots; `resize` comes first."""
        self._config = config
        self._time_line = TimeLine(RING_S, config.max_sources)
        self._latencies = LogBuckets(config.latency_error_ratio, 1e-3, 600.0)
        self._lengths = LogBuckets(TOKEN_ERROR_RATIO, 1.0, 1e6)
        n = self._latencies.n
        self._counts = BucketRing(RING_S, 6, np.int64)
        self._latency = BucketRing(RING_S, n, np.uint16)
        self._token_sums = BucketRing(TOKEN_BLOCKS, 2, np.int64)
        self._token_lengths = BucketRing(TOKEN_BLOCKS, self._lengths.n, np.uint16)
        self._count_rows = RingRows((self._counts,), OBSERVERS)
        self._latency_rows = RingRows((self._latency,), OBSERVERS * len(_LATENCIES))
        self._token_rows = RingRows((self._token_sums, self._token_lengths), OBSERVERS)
        switch_ns = round(config.switch_after_s * NS_PER_S)
        self._seen, self._seen_tokens, self._seen_ttft = (Presence(switch_ns) for _ in range(3))
        self._rate_choice = ObserverChoice(_RATE_ORDER, self._seen)
        self._failure_choice = ObserverChoice(_FAILURE_ORDER, self._seen)
        self._token_choice = ObserverChoice(_RATE_ORDER, self._seen_tokens)
        self._ttft_choice = ObserverChoice(_TTFT_ORDER, self._seen_ttft)
        self._heard_ns: Int64s = np.zeros(0, np.int64)
        self._windows: dict[tuple[int, bool], _Kept] = {}
        self._changes = 0
        """Moves with everything that may change a window."""

    @property
    def _tables(self) -> tuple[RingRows, ...]:
        return (self._count_rows, self._latency_rows, self._token_rows)

    @property
    def _choices(self) -> tuple[ObserverChoice, ...]:
        return (self._rate_choice, self._failure_choice, self._token_choice, self._ttft_choice)

    @property
    def _by_slot(self) -> tuple[ObserverChoice | Presence, ...]:
        return (self._seen, self._seen_tokens, self._seen_ttft, *self._choices)

    @property
    def nbytes(self) -> int:
        """Memory of the rings, in bytes."""
        return sum(table.nbytes for table in self._tables)

    def resize(self, n_slots: int) -> None:
        """Make room for `n_slots` endpoints; it never shrinks."""
        self._changes += 1
        for table in self._tables:
            table.resize(n_slots)
        for part in self._by_slot:
            part.resize(n_slots)
        missing = max(0, n_slots - len(self._heard_ns))
        self._heard_ns = np.concatenate((self._heard_ns, np.full(missing, _NEVER)))

    def forget(self, slots: Int32s) -> None:
        """Empty the slots, for other endpoints."""
        self._changes += 1
        for table in self._tables:
            table.forget(slots)
        for part in self._by_slot:
            part.forget(slots)
        self._heard_ns[slots] = _NEVER

    def fold(self, rows: RequestRows, now: Instant) -> Mapping[str, int]:
        """Take in requests; returns how many were left out or cut, by reason."""
        return self.add(self.place(rows, now), now)

    def place(self, rows: RequestRows, now: Instant) -> Placed:
        """Where requests that arrive at `now` count, for `add`."""
        self._advance(now)
        return self._time_line.place(rows, now)

    def add(self, placed: Placed, now: Instant) -> Mapping[str, int]:
        """Take in what was placed at `now`; returns how many were left out or cut, by reason."""
        full = self._latency.full + self._token_lengths.full
        if placed.rows.n:
            self._add(*placed[:4], now)
        full -= self._latency.full + self._token_lengths.full
        reasons = {**placed.left_out, "sketch_full": -full}
        return {reason: count for reason, count in reasons.items() if count}

    def second(self, now: Instant) -> int:
        """The open second, on the time line on which requests are placed."""
        return self._time_line.time_ns(now) // NS_PER_S

    def open_s(self, now: Instant) -> float:
        """How much of the open second has passed."""
        return self._time_line.time_ns(now) % NS_PER_S / NS_PER_S

    def chosen(self, now: Instant) -> tuple[Chosen, Chosen, Chosen, Chosen]:
        """Whom calls, failures, tokens and times to first token are read from."""
        rate, failure, tokens, ttft = (choice.chosen(now) for choice in self._choices)
        return rate, failure, tokens, ttft

    def _advance(self, now: Instant) -> None:
        second = self.second(now)
        if second > self._counts.head:
            self._changes += 1
            self._counts.advance(second)
            self._latency.advance(second)
            self._token_sums.advance(second // TOKEN_BLOCK_S)
            self._token_lengths.advance(second // TOKEN_BLOCK_S)

    def _add(
        self, rows: RequestRows, second: Int64s, oldest_s: int, at_ns: Int64s, now: Instant
    ) -> None:
        self._changes += 1
        slot = rows.slot.astype(np.int64)
        cell = slot * OBSERVERS
        cell += rows.observer
        self._seen.heard(cell, now)
        unwell = rows.outcome.nonzero()[0]
        weight = fixed_point(rows.weight)
        self._add_signs_of_life(slot, at_ns, rows.outcome, unwell)
        spots = self._counts.spots(second, self._count_rows.rows(cell), oldest_s)
        self._add_counts(rows, spots, weight, unwell)
        self._add_latency(rows, cell, second, oldest_s, unwell, now)
        self._add_tokens(rows, cell, second, oldest_s, now)

    def _add_signs_of_life(
        self, slot: Int64s, at_ns: Int64s, outcome: Bytes, unwell: Indices
    ) -> None:
        """An endpoint that answers, if only that it is full, is alive."""
        if len(unwell):
            at_ns = at_ns.copy()
            at_ns[unwell[outcome[unwell] != Outcome.OVERLOAD]] = _NEVER
        np.maximum.at(self._heard_ns, slot, at_ns)

    def _add_counts(
        self, rows: RequestRows, spots: Spots, weight: Int64s | int, unwell: Indices
    ) -> None:
        ring = self._counts
        ring.add(spots, _CALLS, weight)
        counted = _COLUMN_OF_OUTCOME[rows.outcome[unwell]]
        some = unwell[counted >= 0]
        ring.add(spots.pick(some), counted[counted >= 0], picked_weight(weight, some))
        some = rows.refused.nonzero()[0]
        if len(some):
            ring.add(spots.pick(some), _REFUSED, picked_weight(weight, some))
        for column, tokens in ((_PROMPT, rows.prompt_tokens), (_OUTPUT, rows.output_tokens)):
            told = known(tokens)
            amount = weighted_tokens(tokens[told], picked_weight(weight, told))
            ring.add(spots.pick(told), column, amount.astype(np.int64))

    def _add_latency(
        self,
        rows: RequestRows,
        cell: Int64s,
        second: Int64s,
        oldest_s: int,
        unwell: Indices,
        now: Instant,
    ) -> None:
        duration_s = rows.duration_s
        if len(unwell):
            # How long a failure took says nothing about speed: a refusal takes no time at all.
            duration_s = duration_s.copy()
            duration_s[unwell] = np.nan
        timed, started = known(duration_s), known(rows.ttft_s)
        heard = cell[started]
        if len(heard):
            self._seen_ttft.heard(heard, now)
        cells = np.concatenate((cell[timed], heard))
        if not len(cells):
            return
        cells *= len(_LATENCIES)
        cells[len(cells) - len(heard) :] += _TTFT
        seconds = np.concatenate((duration_s[timed], rows.ttft_s[started]))
        bucket = np.concatenate((second[timed], second[started]))
        spots = self._latency.spots(bucket, self._latency_rows.rows(cells), oldest_s)
        self._latency.count(spots, self._latencies.index(seconds))

    def _add_tokens(
        self, rows: RequestRows, cell: Int64s, second: Int64s, oldest_s: int, now: Instant
    ) -> None:
        length = rows.prompt_tokens + rows.output_tokens
        some = known(length)
        length, cell = bounded_tokens(length[some]), cell[some]
        if not len(cell):
            return
        self._seen_tokens.heard(cell, now)
        row = self._token_rows.rows(cell)
        block, oldest = second[some] // TOKEN_BLOCK_S, oldest_s // TOKEN_BLOCK_S
        spots = self._token_sums.spots(block, row, oldest)
        self._token_sums.add(spots, _TOKENS, np.rint(length).astype(np.int64))
        self._token_sums.add(spots, _TOKEN_N, 1)
        spots = self._token_lengths.spots(block, row, oldest)
        self._token_lengths.count(spots, self._lengths.index(length))

    def window(self, seconds: int, now: Instant, *, latency: bool = True) -> RequestWindow:
        """The newest `seconds` buckets (1..120), the open one included, per slot.

        Without `latency` its columns are as if nothing had been timed: they are most of the work.
        """
        self._advance(now)
        window = self._window(seconds, now, latency=latency)
        return replace(window, seconds=seconds - 1 + self.open_s(now))

    def _window(self, seconds: int, now: Instant, *, latency: bool) -> RequestWindow:
        """As last time while nothing was folded, no bucket turned and no observer changed."""
        chosen = tuple(choice.choose(now) for choice in self._choices)
        last = self._windows.get((seconds, latency))
        if (
            last is not None
            and last.changes == self._changes
            and all(map(np.array_equal, chosen, last.chosen))
        ):
            return last.window
        window = self._read(seconds, *chosen, latency=latency)
        if last is not None or len(self._windows) < MAX_WINDOWS:
            self._windows[seconds, latency] = _Kept(self._changes, chosen, window)
        return window

    def _read(
        self,
        seconds: int,
        rate: Int8s,
        failure: Int8s,
        tokens: Int8s,
        ttft: Int8s,
        *,
        latency: bool,
    ) -> RequestWindow:
        counts = self._counts.window(seconds)

        def column(column: int, row: Int64s) -> Floats:
            return picked(counts[:, column], row) / ONE

        by_failure, by_tokens = self._count_rows.chosen(failure), self._count_rows.chosen(tokens)
        timed = self._medians(seconds) if latency else _UNTIMED
        ttft_n, ttft_s = self._timed(timed, ttft, _TTFT)
        duration_n, duration_s = self._timed(timed, rate, _DURATION)
        return RequestWindow(
            seconds=float(seconds),
            calls=column(_CALLS, self._count_rows.chosen(rate)),
            failures=column(_FAILURES, by_failure),
            overloads=column(_OVERLOADS, by_failure),
            failure_calls=column(_CALLS, by_failure),
            refused=column(_REFUSED, by_failure),
            prompt_tokens=column(_PROMPT, by_tokens),
            output_tokens=column(_OUTPUT, by_tokens),
            ttft_p50_s=ttft_s,
            ttft_n=ttft_n,
            duration_p50_s=duration_s,
            duration_n=duration_n,
            calls_observer=rate,
            failures_observer=failure,
            ttft_observer=ttft,
        )

    def _medians(self, seconds: int) -> tuple[Int64s, Floats]:
        """Of every row: how many were timed, int64[rows], and their median, float64[rows]."""
        totals, (median_s,) = self._latencies.totals_and_quantiles(
            self._latency.window(seconds), (0.5,)
        )
        return totals, median_s

    def _timed(
        self, timed: tuple[Int64s, Floats], observer: Int8s, kind: int
    ) -> tuple[Floats, Floats]:
        """Of every slot, as its observer saw it: how many were timed, and their median."""
        number, median_s = np.zeros(len(observer)), np.full(len(observer), np.nan)
        totals, medians_s = timed
        row = self._latency_rows.chosen(observer, kind)
        there = (row >= 0).nonzero()[0]
        if len(totals) and len(there):
            row = row.take(there)
            number[there], median_s[there] = totals.take(row), medians_s.take(row)
        return number, median_s

    def heard_age_s(self, now: Instant) -> Floats:
        """float64[n slots]: seconds since a request was last served; inf = never."""
        age = (self._time_line.time_ns(now) - self._heard_ns) / NS_PER_S
        return np.where(self._heard_ns == _NEVER, np.inf, np.maximum(age, 0.0))

    def refused_recent(self, now: Instant, seconds: int = 3) -> Floats:
        """float64[n slots]: refused connections in the newest buckets, by whoever saw most."""
        self._advance(now)
        refused = self._counts.column(seconds, _REFUSED)
        if not np.count_nonzero(refused):
            return np.zeros(len(self._heard_ns))
        by_observer = self._count_rows.by_cell(refused).reshape(-1, OBSERVERS)
        most: Floats = by_observer.max(axis=1) / ONE
        return most

    def token_length_deviation(self, directory: Directory, now: Instant) -> Floats:
        """float64[n slots]: how many tokens longer requests are than the pool's median, or 0.

        Tokens are prompt and output, as the mean over the token window; NaN with fewer than two
        requests.
        """
        self._advance(now)
        blocks = -(-self._config.token_window_s // TOKEN_BLOCK_S)
        chosen = self._token_choice.choose(now)
        sums = self._token_rows.of(self._token_sums.window(blocks), chosen)
        lengths = self._token_rows.of(self._token_lengths.window(blocks), chosen)
        n = len(self._heard_ns)
        if not n:
            return np.zeros(0)
        pool = np.full(n, -1, np.int32)
        pool[: min(n, directory.n)] = directory.pool[:n]
        order = np.argsort(pool, kind="stable")
        _, starts, group = np.unique(pool[order], return_index=True, return_inverse=True)
        parts = np.split(lengths[order], starts[1:])  # a part a pool; `reduceat` is far slower
        pooled = np.array([np.add.reduce(part, axis=0) for part in parts])
        median = np.empty(n)
        median[order] = self._lengths.quantiles(pooled, (0.5,))[0][group]
        count = sums[:, _TOKEN_N]
        mean = sums[:, _TOKENS] / np.maximum(count, 1)
        deviation = np.maximum(mean - median, 0.0)
        return np.where((count >= 2) & (pool >= 0), deviation, np.nan)
