"""The operator's word: overrides in force, their file, and which one governs an endpoint.

The narrowest scope governs (endpoint, node, pool, all), the operator's before the file's; but `off`
governs everything in its scope, however narrow the others are: it means "as without Tailrace".
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from pipeline.clock import NS_PER_S
from pipeline.errors import ConfigError, Rejected
from pipeline.model import Bools, Config, Directory, Int32s, Override
from pipeline.yaml_text import parse_yaml

SCOPES: Final = ("all", "pool", "node", "endpoint")  # broad to narrow
SOURCES: Final = ("file", "operator")  # weaker to stronger
WEIGHTED: Final = ("pin", "cap")  # actions that mean nothing without a value
MAX_TEXT: Final = 512  # characters of a target, owner or reason; terminals and tables show them
MAX_TIME_S: Final = 9e9  # the year 2255: wall times are int64 nanoseconds


Rows: TypeAlias = list[dict[str, str | int]]


class Governing(NamedTuple):
    """Which override governs each slot. `governor` int32[n] indexes `overrides`, -1 = none."""

    overrides: tuple[Override, ...]
    governor: Int32s

    def mask(self, *actions: str) -> Bools:
        """Slots that one of these actions governs, bool[n]."""
        chosen = [override.action in actions for override in self.overrides]
        return np.array([*chosen, False], np.bool_)[self.governor]


class OverrideSet:
    """All overrides, at most one for each (scope, target, source)."""

    def __init__(self, limit: int) -> None:
        """More than `limit` at once are refused."""
        self._limit = limit
        self._held: dict[tuple[str, str, str], Override] = {}
        self.version = 0
        """Moves with every change."""

    def set(self, override: Override) -> None:
        """Add or replace. Raises `Rejected` when it cannot be meant, or when the set is full."""
        fault = _fault(override)
        if fault:
            raise Rejected("bad_override", fault)
        key = _key(override)
        if key not in self._held and len(self._held) >= self._limit:
            raise Rejected("too_many_overrides", f"{self._limit} overrides are in force already")
        self._held[key] = override
        self.version += 1

    def remove(self, scope: str, target: str) -> bool:
        """Remove the operator's override of exactly this scope and target; whether it was there."""
        removed = self._held.pop((scope, target, "operator"), None) is not None
        self.version += removed
        return removed

    def replace_file(self, overrides: Iterable[Override]) -> None:
        """Put these in the place of all from the file. Raises as `set`, all or nothing."""
        before, version = dict(self._held), self.version
        self._held = {key: value for key, value in before.items() if value.source != "file"}
        try:
            for override in overrides:
                self.set(msgspec.structs.replace(override, source="file"))
        except Rejected:
            self._held, self.version = before, version
            raise
        self.version = version + (self._held != before)

    def expire(self, wall_ns: int) -> None:
        """Drop those whose time is over."""
        over = [key for key, o in self._held.items() if 0 < o.expires_ns <= wall_ns]
        for key in over:
            del self._held[key]
        self.version += bool(over)

    def active(self, wall_ns: int) -> tuple[Override, ...]:
        """Those in force, weakest first: a later one governs what both cover."""
        held = [o for o in self._held.values() if not 0 < o.expires_ns <= wall_ns]
        return tuple(sorted(held, key=_strength))

    def list(self) -> tuple[Override, ...]:
        """All that are held, weakest first."""
        return self.active(0)

    def export(self) -> Rows:
        """Plain data for the state file."""
        return [msgspec.structs.asdict(override) for override in self.list()]

    def restore(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Take back what `export` gave; rows that are no overrides are left out."""
        for row in rows:
            try:
                self.set(msgspec.convert(row, Override))
            except (msgspec.ValidationError, Rejected):
                continue


def _key(override: Override) -> tuple[str, str, str]:
    return override.scope, override.target, override.source


def _strength(override: Override) -> tuple[bool, int, int, str]:
    off = override.action == "off"
    scope, source = SCOPES.index(override.scope), SOURCES.index(override.source)
    return off, scope, source, override.target


def _fault(override: Override) -> str:
    if override.scope != "all" and not override.target:
        return f"scope {override.scope} needs a target"
    if override.action in WEIGHTED and override.value < 1:
        return f"{override.action} needs a value from 1 to 10000"
    return ""


def govern(overrides: tuple[Override, ...], directory: Directory) -> Governing:
    """Find each slot's governing override among `overrides`, weakest first."""
    index = np.full(directory.n, -1, np.int32)
    wanted = {override.target for override in overrides}
    slots: dict[tuple[str, str], list[int]] = {}
    for slot in np.flatnonzero(directory.known).tolist():
        pool = directory.pool[slot]
        names = {
            ("endpoint", directory.id[slot]),
            ("endpoint", directory.address[slot]),
            ("node", directory.node[slot]),
            ("pool", directory.pools[pool] if pool >= 0 else ""),
        }
        for name in names:
            if name[1] in wanted:
                slots.setdefault(name, []).append(slot)
    for number, override in enumerate(overrides):
        if override.scope == "all":
            index[directory.known] = number
        else:
            index[slots.get((override.scope, override.target), [])] = number
    return Governing(overrides, index)


def sentence(override: Override) -> str:
    """An override in words, for a rule or an event.

    >>> sentence(Override(scope="all", action="pin", value=200, owner="ana", reason="drill"))
    'override pin 200 (all) by ana: drill'
    """
    value = f" {override.value}" if override.action in WEIGHTED else ""
    scope = f"{override.scope} {override.target}".strip()
    owner = f" by {override.owner}" if override.owner else ""
    reason = f": {override.reason}" if override.reason else ""
    return f"override {override.action}{value} ({scope}){owner}{reason}"


class _FileOverride(Config, frozen=True, kw_only=True):
    scope: Literal["endpoint", "node", "pool", "all"]
    action: Literal["pin", "cap", "drain", "exclude", "hold", "neutral", "off"]
    target: str = ""
    value: int = 0
    owner: str = ""
    reason: str = ""
    expires: datetime | float | None = None


class _File(Config, frozen=True, kw_only=True):
    overrides: tuple[_FileOverride, ...] = ()


def parse_overrides(text: str) -> tuple[Override, ...]:
    """Read an override file: YAML with one key, `overrides`, a list.

    `expires` is an ISO-8601 time (UTC unless it says otherwise) or seconds since 1970. An empty
    file holds none. Raises `ConfigError` with the path of the field.
    """
    try:
        tree = parse_yaml(text)
    except ConfigError as error:
        raise ConfigError(f"overrides: {error}") from error
    try:
        file = msgspec.convert({} if tree is None else tree, _File)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise ConfigError(f"{path.strip('`.') or 'overrides'}: {message}") from error
    return tuple(_from_file(number, row) for number, row in enumerate(file.overrides))


def _from_file(number: int, row: _FileOverride) -> Override:
    path = f"overrides[{number}]"
    for name in ("target", "owner", "reason"):
        text = getattr(row, name)
        if len(text) > MAX_TEXT or not text.isprintable():
            raise ConfigError(f"{path}.{name}: must be at most {MAX_TEXT} printable characters")
    if not 0 <= row.value <= 10_000:
        raise ConfigError(f"{path}.value: {row.value} is not within 0 and 10000")
    override = Override(
        scope=row.scope,
        target=row.target,
        action=row.action,
        value=row.value,
        owner=row.owner,
        reason=row.reason,
        expires_ns=_expires_ns(f"{path}.expires", row.expires),
        source="file",
    )
    fault = _fault(override)
    if fault:
        field = "value" if row.action in WEIGHTED and row.value < 1 else "target"
        raise ConfigError(f"{path}.{field}: {fault}")
    return override


def _expires_ns(path: str, expires: datetime | float | None) -> int:
    if expires is None:
        return 0
    if isinstance(expires, datetime):
        aware = expires if expires.tzinfo else expires.replace(tzinfo=UTC)
        expires = aware.timestamp()
    if not 0 <= expires <= MAX_TIME_S:
        raise ConfigError(f"{path}: must lie between 1970 and 2255")
    return round(expires * NS_PER_S)
