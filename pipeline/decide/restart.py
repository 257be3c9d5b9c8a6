"""State across a restart: columns by endpoint id, taken back as endpoints become known again.

After a start nothing restored moves until enough of its pool is heard, nor before three of its own
report intervals; hard evidence, which is always new, is excepted.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np

from pipeline.clock import NS_PER_S
from pipeline.decide.columns import Blanks, Columns
from pipeline.decide.groups import Groups
from pipeline.errors import Rejected
from pipeline.model import Bools, Directory, Floats, Int64s

Exported: TypeAlias = dict[str, Any]
"""Plain data: dicts, lists, strings and numbers only."""

VERSION = 1
MAX_AGE_NS = 600 * NS_PER_S  # a circuit of before says nothing about now
HEARD_SHARE = 0.8
HOLD_INTERVALS = 3.0
AGED = 0.5  # confidence in what was decided before the restart


class Restart(Columns):
    """Which slots were restored, and how long they are held."""

    BLANK: ClassVar[Blanks] = {
        "restored": ("bool", False),
        "confidence": ("float64", 0.0),
    }
    restored: Bools
    confidence: Floats

    def __init__(self) -> None:
        """Nothing to restore."""
        super().__init__()
        self._rows: dict[str, int] = {}
        self._columns: Mapping[str, Mapping[str, list[float]]] = {}
        self._rules: list[str] = []
        self.saved_wall_ns = 0
        self.elapsed_s = 0.0
        self.waiting = False
        """Some pool has not settled since the restart."""

    def load(self, state: Mapping[str, Any], parts: Mapping[str, Columns]) -> None:
        """Remember exported state of `parts` until its endpoints are known.

        Raises `Rejected`, and what numpy raises for values that are not of a column's type.
        """
        if state.get("version") != VERSION:
            raise Rejected("state_version", f"state of version {state.get('version')!r}")
        ids, columns, rules = state["ids"], state["columns"], state["rules"]
        if len(rules) != len(ids) or not all(isinstance(text, str) for text in (*rules, *ids)):
            raise Rejected("state_shape", "not one rule for each endpoint")
        for part, names in columns.items():
            for name, values in names.items():
                if len(values) != len(ids):
                    raise Rejected("state_shape", "a column has not one value for each endpoint")
                if part in parts and not parts[part].can_hold(name, values):
                    raise Rejected("state_value", f"column {part}.{name} holds what it cannot")
        self._rows = {endpoint: row for row, endpoint in enumerate(ids)}
        self._columns = columns
        self._rules = rules
        self.saved_wall_ns = int(state["wall_ns"])
        self.waiting = bool(ids)

    def is_old(self, wall_ns: int) -> bool:
        """Whether the state is too old for its circuits to mean anything."""
        return wall_ns - self.saved_wall_ns > MAX_AGE_NS

    def adopt(self, slot: int, endpoint: str, columns: Mapping[str, Columns]) -> str | None:
        """Give a slot its persisted row; returns the rule that held its state, None without row."""
        row = self._rows.pop(endpoint, None)
        if row is None:
            return None
        for part, target in columns.items():
            saved = self._columns.get(part, {})
            target.restore_row(slot, {name: values[row] for name, values in saved.items()})
        self.restored[slot] = True
        return self._rules[row]

    def hold(
        self,
        directory: Directory,
        groups: Groups,
        heard: Bools,
        interval_s: Floats,
        dt_s: float,
    ) -> tuple[Bools, Bools]:
        """Slots held because of the restart, bool[n], and pools that are frozen for it."""
        pools = len(directory.pools)
        if not self.waiting:
            return np.zeros(self.n, np.bool_), np.zeros(pools, np.bool_)
        self.elapsed_s += dt_s
        slots = groups.slots[self.restored[groups.slots]]
        pool = directory.pool[slots]
        known = np.bincount(pool, minlength=pools)
        alive = np.bincount(pool[heard[slots]], minlength=pools)
        longest_s = np.zeros(pools)
        np.maximum.at(longest_s, pool, interval_s[slots])
        late = self.elapsed_s >= HOLD_INTERVALS * longest_s
        frozen = (known > 0) & ((alive == 0) | ((alive < HEARD_SHARE * known) & ~late))
        own = self.elapsed_s < HOLD_INTERVALS * interval_s
        in_frozen = np.zeros(self.n, np.bool_)
        in_frozen[slots] = frozen[pool]
        held = self.restored & (in_frozen | own)
        self.waiting = bool(held.any()) or bool(self._rows)
        if self.elapsed_s * NS_PER_S > MAX_AGE_NS:
            self._rows, self._columns = {}, {}
        return held, frozen


def export_columns(slots: Int64s, parts: Mapping[str, Columns]) -> dict[str, dict[str, list[Any]]]:
    """All columns of the slots as lists, by part and name."""
    return {
        part: {name: getattr(columns, name)[slots].tolist() for name in columns.BLANK}
        for part, columns in parts.items()
    }
