"""Requests, endpoint by endpoint, and broken down by kind and by tenant.

Enters: request rows. They go through the request fold, which places them in time, and wait a moment
for the choice of observers; then each counts once in every breakdown, by the same choice. A
breakdown is read from observers that tell it where there are any: an engine's spans carry no
tenant, its callers' do.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
import numpy as np

from pipeline.clock import NS_PER_S, Instant
from pipeline.fold.keyed import BLOCKS, MAX_WINDOW_S
from pipeline.fold.kinds import KindFold, KindWindow
from pipeline.fold.observers import Chosen, Int8s, Presence, among_telling
from pipeline.fold.requests import OBSERVERS, RequestFold
from pipeline.fold.sketch import LogBuckets
from pipeline.fold.tenants import TenantFold, TenantWindow
from pipeline.fold.waiting import BLOCK_S, Batch, Waiting
from pipeline.model import Bytes, Config, Int32s, RequestRows, UInt64s

MAX_WAITING: Final = 8_192
"""Requests that wait at most: about two milliseconds' work, and enough to make each cheap."""

LOW_S: Final = 1e-4
HIGH_S: Final = 3600.0
"""The range of the sketches: a token in a tenth of a millisecond, an hour of generation."""

_EVERY_OBSERVER: Final = np.arange(OBSERVERS, dtype=np.int8)

TOLD_NS: Final = 60 * NS_PER_S
"""How long an observer that told a kind or a tenant is one that tells: as long as for a switch."""


class BreakdownConfig(Config, frozen=True, kw_only=True):
    """How requests are broken down by kind and by tenant."""

    max_kinds: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 1_024
    """Kinds of request kept apart at a time, each 34 kB; others count in their pool's rest."""
    max_tenants: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 4_096
    """Tenants kept apart at a time, each 12 kB; others count together."""
    expire_after_s: Annotated[int, msgspec.Meta(ge=180, le=86_400)] = 600
    """How long a kind or a tenant keeps its row after its last request."""
    latency_error_ratio: Annotated[float, msgspec.Meta(ge=0.005, le=0.2)] = 0.05
    """Relative error of latency quantiles; memory grows with its inverse."""


class Breakdown:
    """Everything that is counted of requests. Order: `resize`, then `fold`, then windows."""

    def __init__(self, config: BreakdownConfig, requests: RequestFold) -> None:
        """Start empty; `requests` is fed by `fold`, and resized and told to forget beside this."""
        buckets = LogBuckets(config.latency_error_ratio, LOW_S, HIGH_S, is_exponential=True)
        self._requests = requests
        self._waiting = Waiting(buckets)
        self._kinds = KindFold(config.max_kinds, config.expire_after_s, buckets)
        self._tenants = TenantFold(config.max_tenants, config.expire_after_s, buckets)
        self._tells_kind, self._tells_tenant = Presence(TOLD_NS), Presence(TOLD_NS)
        self._reasons: Counter[str] = Counter()

    @property
    def nbytes(self) -> int:
        """Memory of the rings, in bytes."""
        return self._kinds.nbytes + self._tenants.nbytes

    @property
    def sizes(self) -> tuple[int, int]:
        """How many kinds and tenants are kept apart."""
        return len(self._kinds), len(self._tenants)

    def resize(self, n_slots: int) -> None:
        """Make room for `n_slots` endpoints; it never shrinks."""
        for presence in (self._tells_kind, self._tells_tenant):
            presence.resize(n_slots)

    def forget(self, slots: Int32s) -> None:
        """Other endpoints get the slots; what was counted is not theirs alone and stays."""
        for presence in (self._tells_kind, self._tells_tenant):
            presence.forget(slots)

    def fold(self, rows: RequestRows, pool_of_slot: Int32s, now: Instant) -> Mapping[str, int]:
        """Take in requests; returns how many were left out or cut, by reason.

        `pool_of_slot` int32[n slots] has -1 for none. `kind_overflow` and `tenant_overflow` count
        requests that are not kept apart, `sketch_full` timings that found their bucket full.
        """
        if self._waiting.is_due(now):
            self._settle(now)
        placed = self._requests.place(rows, now)
        self._reasons.update(self._requests.add(placed, now))
        self._waiting.add(placed, pool_of_slot, now)
        if self._waiting.n >= MAX_WAITING:
            self._settle(now)
        reasons, self._reasons = +self._reasons, Counter()
        return reasons

    def kinds(self, seconds: int, now: Instant) -> KindWindow:
        """Kinds of request in the newest `seconds` (1..120), in steps of ten."""
        self._settle(now)
        return self._kinds.window(seconds, self._covered_s(seconds, now))

    def tenants(self, seconds: int, now: Instant) -> TenantWindow:
        """Tenants in the newest `seconds` (1..120), in steps of ten."""
        self._settle(now)
        return self._tenants.window(seconds, self._covered_s(seconds, now))

    def _covered_s(self, seconds: int, now: Instant) -> float:
        if not 1 <= seconds <= MAX_WINDOW_S:
            raise ValueError(f"a window of {seconds} s; there are 1 to {MAX_WINDOW_S}")
        open_s = self._requests.second(now) % BLOCK_S + self._requests.open_s(now)
        return (-(-seconds // BLOCK_S) - 1) * BLOCK_S + open_s

    def _settle(self, now: Instant) -> None:
        """Count what waits."""
        second = self._requests.second(now)
        for fold in (self._kinds, self._tenants):
            fold.advance(second)
        batch = self._waiting.take(second // BLOCK_S - BLOCKS + 1)
        if batch is None:
            return
        chosen = self._requests.chosen(now)
        use = _use(batch, batch.kind, chosen, self._tells_kind, now)
        counted = self._kinds.add(batch, use, second)
        self._reasons.update(kind_overflow=counted.refused, sketch_full=counted.full)
        use = _use(batch, batch.tenant, chosen, self._tells_tenant, now)
        counted = self._tenants.add(batch, use, second)
        self._reasons.update(tenant_overflow=counted.refused, sketch_full=counted.full)


def _use(
    batch: Batch, key: UInt64s, chosen: tuple[Chosen, ...], tells: Presence, now: Instant
) -> Bytes:
    """uint8[n]: what each request counts for in a breakdown, as bits in the order of `chosen`."""
    tells.heard(batch.cell[key != 0], now)
    told, _ = tells.status(now)
    observers = [among_telling(signal, told) for signal in chosen]
    return _by_cell(observers).take(batch.cell)


def _by_cell(observers: list[Int8s]) -> Bytes:
    """uint8[n slots * observers]: bit i where `observers[i]` int8[n slots] has the observer."""
    use = np.zeros((len(observers[0]), OBSERVERS), np.uint8)
    for i, observer in enumerate(observers):
        use |= (observer[:, None] == _EVERY_OBSERVER).view(np.uint8) << i
    return use.reshape(-1)
