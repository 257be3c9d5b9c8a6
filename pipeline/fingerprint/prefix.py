"""The prefix key: which requests begin with the same prompt, without telling which prompt that is.

Definition, for everybody who routes by it:

    input   = every part as its length (4 bytes, little endian) and its bytes, in this order:
              source ("prefix" or "conversation"), model, adapter, cache salt, value
    secret  = BLAKE2b-512(content of the file, without white space around it)
    period  = floor(unix time / rotate_s)
    tenant  = BLAKE2b-256(key = secret, person = "tailrace-tenant", period (8 bytes LE) + tenant)
    key     = BLAKE2b-64 (key = tenant, person = "tailrace-prefix", input), little endian; never 0

Source and value: a hash of the prompt's leading blocks that the application or the node agent made
(`tailrace.prefix_key`), else the conversation (`gen_ai.conversation.id`); without either there is
no key. Whoever has keys but not the secret can confirm no prompt, however short its list of
candidates, and cannot tell that two tenants share one (BLAKE2 as a MAC: RFC 7693, section 2.9).
"""

import hashlib
import os
from pathlib import Path
from typing import Final

import numpy as np

from pipeline.clock import NS_PER_S, Instant
from pipeline.errors import ConfigError
from pipeline.fingerprint.combinations import Indices, first_rows, hashes_of
from pipeline.fingerprint.config import PrefixConfig
from pipeline.model import Int32s, RequestTraits, UInt64s

MIN_SECRET_BYTES: Final = 32
"""As much as the strength of the keyed hash."""
MAX_SECRET_BYTES: Final = 4096
MAX_TENANTS: Final = 4096
"""Tenants whose secrets of a period are remembered; then all are worked out anew."""
_INPUTS: Final = ("prefix", "conversation", "model", "adapter", "cache_salt", "tenant")


def load_secret(path: str) -> bytes:
    """The secret in a file, or, without a path, one of this process alone.

    `ConfigError` when the file cannot be read or holds too little.
    """
    if not path:
        return os.urandom(MIN_SECRET_BYTES)
    try:
        with Path(path).expanduser().open("rb") as file:
            secret = file.read(MAX_SECRET_BYTES).strip()
    except OSError as error:
        raise ConfigError(f"fingerprint.prefix.secret_file: {path}: {error.strerror}") from error
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError(
            f"fingerprint.prefix.secret_file: {path}: needs at least {MIN_SECRET_BYTES} bytes"
        )
    return secret


class PrefixKeys:
    """Makes prefix keys; knows the secret and shows it to nobody."""

    def __init__(self, secret: bytes, config: PrefixConfig) -> None:
        """`secret` has at least 32 bytes."""
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"a secret has at least {MIN_SECRET_BYTES} bytes")
        self._secret = hashlib.blake2b(secret, digest_size=64).digest()
        self._rotate_ns = round(config.rotate_s * NS_PER_S)
        self._overlap_ns = round(config.overlap_s * NS_PER_S)
        self._tenants: dict[tuple[int, str], bytes] = {}

    def key(
        self,
        value: str,
        now: Instant,
        *,
        source: str = "prefix",
        tenant: str = "",
        model: str = "",
        adapter: str = "",
        cache_salt: str = "",
    ) -> int:
        """The key of one prompt's beginning, 1..2^64-1; 0 when `value` is ""."""
        parts = (source, model, adapter, cache_salt, value)
        return self._key(self._period(now), tenant, parts) if value else 0

    def former(self, value: str, now: Instant, tenant: str = "", **inputs: str) -> int:
        """The key that the same had before the last change of keys; 0 once that is too long ago."""
        if now.wall_ns % self._rotate_ns >= self._overlap_ns:
            return 0
        return self.key(value, now.plus_s(-self._rotate_ns / NS_PER_S), tenant=tenant, **inputs)

    def keys(self, traits: RequestTraits, now: Instant) -> UInt64s:
        """uint64[n]: the key of each row, 0 where it names no beginning; a hash a distinct one."""
        period, columns = self._period(now), [getattr(traits, name) for name in _INPUTS]
        result = np.zeros(traits.n, np.uint64)
        rows = _rows_with(columns[0], columns[1], traits.n)
        if not len(rows):
            return result
        combined = np.zeros(len(rows), np.uint64)
        hashes = hashes_of(traits)
        for column in columns:
            if column is not None:
                combined ^= hashes.take(column[rows], mode="wrap")
            combined *= np.uint64(0x9E3779B97F4A7C15)
            combined ^= combined >> np.uint64(29)
        first, like = first_rows(combined)
        made = []
        for row in rows[first].tolist():
            prefix, conversation, *rest, tenant = (_text(traits, column, row) for column in columns)
            source = "prefix" if prefix else "conversation"
            made.append(self._key(period, tenant, (source, *rest, prefix or conversation)))
        result[rows] = np.array(made, np.uint64)[like]
        return result

    def _period(self, now: Instant) -> int:
        return now.wall_ns // self._rotate_ns

    def _key(self, period: int, tenant: str, parts: tuple[str, ...]) -> int:
        data = b"".join(
            len(part).to_bytes(4, "little") + part
            for part in (each.encode("utf-8", "replace") for each in parts)
        )
        secret = self._tenant_secret(period, tenant)
        digest = hashlib.blake2b(data, digest_size=8, key=secret, person=b"tailrace-prefix")
        return int.from_bytes(digest.digest(), "little") or 1

    def _tenant_secret(self, period: int, tenant: str) -> bytes:
        known = self._tenants.get((period, tenant))
        if known is None:
            if len(self._tenants) >= MAX_TENANTS:
                self._tenants.clear()
            data = (period & (1 << 64) - 1).to_bytes(8, "little") + tenant.encode(
                "utf-8", "replace"
            )
            made = hashlib.blake2b(
                data, digest_size=32, key=self._secret, person=b"tailrace-tenant"
            )
            known = self._tenants[period, tenant] = made.digest()
        return known


def _rows_with(prefix: Int32s | None, conversation: Int32s | None, n: int) -> Indices:
    has_any = np.zeros(n, np.bool_)
    for column in (prefix, conversation):
        if column is not None:
            has_any |= column >= 0
    return has_any.nonzero()[0]


def _text(traits: RequestTraits, column: Int32s | None, row: int) -> str:
    return "" if column is None else traits.strings.text(int(column[row]))
