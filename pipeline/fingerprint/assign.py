"""Which kind of request each row is, whose it is, and whether it was counted before.

Enters: normalised requests and their traits. Leaves: the rows that count, with kind and tenant, in
input order. What a batch has in common is found by whole columns; Python looks at a combination of
words once, when it is new. Tables are bounded; a row without room keeps everything but its kind.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from pipeline.clock import Instant
from pipeline.fingerprint.combinations import (
    Indices,
    Reader,
    Rows,
    combine,
    first_rows,
    hashes_of,
    length_buckets,
    prompt_lengths,
)
from pipeline.fingerprint.config import FingerprintConfig
from pipeline.fingerprint.places import Places
from pipeline.fingerprint.prefix import PrefixKeys
from pipeline.fingerprint.recent import RecentCalls
from pipeline.fingerprint.request import Kind, KindTable, length_names
from pipeline.fingerprint.routes import Learned, Routes
from pipeline.fingerprint.tenants import TenantTable
from pipeline.model import (
    Bools,
    Directory,
    Int32s,
    Outcome,
    RequestRows,
    RequestTraits,
    UInt64s,
)
from pipeline.symbols import hash64

PLACE_BITS: Final = 15
"""Places of combinations: five for each kind there may be by default; 384 KiB."""
MAX_READ: Final = 2048
"""New combinations read in one batch, 10 ms of work: ticks must not wait for a flood of names."""
_NO_POOL: Final = hash64(b"")


class Retired(NamedTuple):
    """Fingerprints and tenants that were forgotten."""

    kinds: tuple[int, ...]
    tenants: tuple[int, ...]


class Fingerprints:
    """Gives requests their kind and tenant, and knows the names of both."""

    def __init__(self, config: FingerprintConfig, secret: bytes = b"") -> None:
        """`secret` is that of prefix keys; without one there are none."""
        self._config = config
        self.routes: Final = Routes(config.routes)
        self.prefix: Final = PrefixKeys(secret, config.prefix) if secret else None
        self.overflow: Final[Counter[str]] = Counter()
        """Requests without a kind because there was no room for it, by pool."""
        self._kinds = KindTable(config)
        self._tenants = TenantTable(config.max_tenants, config.forget_after_s)
        self._recent = RecentCalls()
        self._places = Places(PLACE_BITS)
        self._routes_version = 0
        self._bounds = np.array([*config.length_bounds, np.inf])
        self._lengths = length_names(config.length_bounds)
        keys = [hash64(name.encode()) for name in self._lengths]
        self._length_keys = np.array(keys, np.uint64)
        self._pools: tuple[str, ...] = ()
        self._pool_keys = np.array([_NO_POOL], np.uint64)
        self._counts: Counter[str] = Counter()

    def assign(
        self, rows: RequestRows, traits: RequestTraits, directory: Directory, now: Instant
    ) -> RequestRows:
        """The rows that count, with `kind` and `tenant`.

        Duplicates that know more than what was counted stay, with weight 0.
        """
        if not rows.n:
            return rows
        is_duplicate = self._recent.duplicates(rows, traits)
        if is_duplicate is not None:
            rows, traits = self._without(rows, traits, is_duplicate)
        return replace(
            rows,
            kind=self._kinds_of(rows, traits, directory, now),
            tenant=self._tenants_of(traits, now),
        )

    def kind(self, fingerprint: int) -> Kind | None:
        """The kind behind a fingerprint; None for 0 and for what was forgotten."""
        return self._kinds.kind(fingerprint)

    def name(self, fingerprint: int) -> str:
        """The kind for a person; "" for 0 and for what was forgotten."""
        kind = self._kinds.kind(fingerprint)
        return "" if kind is None else kind.text

    def kinds(self) -> dict[int, Kind]:
        """Every known kind by fingerprint."""
        return self._kinds.kinds()

    def tenant(self, tenant: int) -> str:
        """The name behind a tenant's hash: for those who may see tenants."""
        return self._tenants.name(tenant)

    def learned_routes(self) -> dict[str, tuple[Learned, ...]]:
        """Places of paths that hold anything, by pool; in a dry run those that would."""
        return self.routes.learned()

    def take_counts(self) -> dict[str, int]:
        """What was left out since the last call, by reason.

        duplicate: rows. kind_overflow, tenant_overflow: rows that count without kind or tenant.
        route_overflow, kind_collision: distinct names that found no room.
        """
        counts = self._counts
        counts["route_overflow"] += self.routes.refused
        counts["kind_collision"] += self._kinds.collisions
        self.routes.refused = self._kinds.collisions = 0
        taken = {reason: count for reason, count in counts.items() if count}
        counts.clear()
        return taken

    def retire(self, now: Instant) -> Retired:
        """Forget what had no requests for long; call it now and then."""
        gone = self._kinds.expire(now.mono_ns)
        if gone:
            self._places.clear()
        for pool in dict.fromkeys(kind.pool for kind in gone):
            if not self._kinds.has_pool(pool):
                self.routes.forget(pool)
        tenants = self._tenants.expire(now.mono_ns)
        return Retired(tuple(kind.fingerprint for kind in gone), tuple(tenants))

    def export_state(self) -> dict[str, Any]:
        """Kinds, tenants and learned routes, plain values; see `restore`."""
        return {
            "kinds": self._kinds.export_state(),
            "tenants": self._tenants.export_state(),
            "routes": self.routes.export_state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up exported state before the first rows.

        ValueError, TypeError, KeyError or AttributeError when it does not fit.
        """
        self.routes.restore(state["routes"])
        self._kinds.restore(state["kinds"])
        self._tenants.restore(state["tenants"])

    def _without(
        self, rows: RequestRows, traits: RequestTraits, is_duplicate: Bools
    ) -> tuple[RequestRows, RequestTraits]:
        """Leave duplicates out, but for their latency and lengths where they know any."""
        knows_more = ~np.isnan(rows.ttft_s)
        if not traits.is_log:
            knows_more |= ~np.isnan(rows.prompt_tokens + rows.output_tokens)
        knows_more &= is_duplicate
        kept = (~is_duplicate | knows_more).nonzero()[0]
        self._counts["duplicate"] += rows.n - len(kept)
        if np.count_nonzero(knows_more):
            rows = replace(
                rows,
                weight=np.where(knows_more, 0.0, rows.weight),
                duration_s=np.where(knows_more, np.nan, rows.duration_s),
                outcome=np.where(knows_more, np.uint8(Outcome.OK), rows.outcome),
                refused=rows.refused & ~knows_more,
            )
        return rows.only(kept), traits.only(kept)

    def _kinds_of(
        self, rows: RequestRows, traits: RequestTraits, directory: Directory, now: Instant
    ) -> UInt64s:
        if self.routes.version != self._routes_version:
            self._places.clear()
            self._routes_version = self.routes.version
        if directory.pools is not self._pools:
            self._pools = directory.pools
            keys = [hash64(name.encode()) for name in directory.pools]
            self._pool_keys = np.array([*keys, _NO_POOL], np.uint64)
        lengths = prompt_lengths(
            rows.prompt_tokens, traits.body_bytes, self._config.bytes_per_token
        )
        bucket = length_buckets(lengths, self._bounds)
        pool = directory.pool.take(rows.slot)
        combined = combine(traits, pool, self._pool_keys, bucket, self._length_keys)
        ids, is_known = self._places.find(combined.key)
        if np.count_nonzero(is_known) < rows.n:
            missing = (~is_known).nonzero()[0]
            ids[missing] = self._read(combined, missing, now)
        if np.count_nonzero(ids) < rows.n:
            self._count_overflow(pool[ids == 0])
        self._kinds.used(ids, now.mono_ns)
        return self._kinds.fingerprints(ids)

    def _read(self, rows: Rows, missing: Indices, now: Instant) -> Int32s:
        """int32[len(missing)]: the ids of rows whose combination is not remembered."""
        first, like = first_rows(rows.key[missing])
        reader = Reader(rows, self._pools, self._lengths, self.routes)
        found = np.zeros(len(first), np.int32)
        for i, row in enumerate(missing[first[:MAX_READ]].tolist()):
            found[i] = self._kinds.id_of(reader.kind(row), now.mono_ns)
        if self.routes.version == self._routes_version:
            read = first[:MAX_READ]
            self._places.put(rows.key[missing[read]], found[:MAX_READ])
        return found[like]

    def _count_overflow(self, pool: Int32s) -> None:
        self._counts["kind_overflow"] += len(pool)
        places, counts = np.unique(pool, return_counts=True)
        for place, count in zip(places.tolist(), counts.tolist(), strict=True):
            self.overflow[self._pools[place] if place >= 0 else ""] += count

    def _tenants_of(self, traits: RequestTraits, now: Instant) -> UInt64s:
        if traits.tenant is None:
            return np.zeros(traits.n, np.uint64)
        tenants, overflow = self._tenants.take(
            traits.tenant, hashes_of(traits), traits.strings, now.mono_ns
        )
        self._counts["tenant_overflow"] += overflow
        return tenants
