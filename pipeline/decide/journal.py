"""What a person is told: the events of a tick, the rule that holds each state, a note per pool.

Only changes are touched in Python; a tick's events are bounded.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from pipeline.decide.circuit import Change
from pipeline.decide.overrides import Governing, sentence
from pipeline.model import Authority, Directory, Event, Override, State

MAX_EVENTS: Final = 1000  # a fleet that changes at once is one incident, not a thousand
QUIET: Final = (State.HEALTHY, State.UNKNOWN)
FROZEN: Final = "no telemetry from this pool: its weights hold"
RESTARTED: Final = "restarted: weights hold until enough of the pool is heard again"
ALL_OUT: Final = "every endpoint is out: the last weights stay"
OFF: Final = "off by override: as without Tailrace"


class Journal:
    """Events since the last tick, and the texts that stay."""

    def __init__(self) -> None:
        """Nothing has happened."""
        self.rules: list[str] = []
        self._events: list[Event] = []
        self._left_out = 0
        self._time_ns = 0
        self._overrides: tuple[Override, ...] = ()
        self._notes: dict[str, str] = {}
        self.authority: dict[str, int] = {}
        """Pool -> the authority that was logged last."""

    def resize(self, n_slots: int) -> None:
        """Make room for the rules of `n_slots` endpoints."""
        self.rules += [""] * (n_slots - len(self.rules))

    def forget(self, slot: int) -> None:
        """The slot retired."""
        self.rules[slot] = ""

    def begin(self, time_ns: int) -> None:
        """Start a tick; events carry wall time `time_ns`."""
        self._events, self._left_out, self._time_ns = [], 0, time_ns

    def add(self, kind: str, text: str, *, endpoint: str = "", pool: str = "") -> None:
        """Note one event, unless this tick has too many."""
        if len(self._events) >= MAX_EVENTS:
            self._left_out += 1
            return
        self._events.append(Event(self._time_ns, kind, endpoint, pool, text))

    def take(self) -> tuple[Event, ...]:
        """This tick's events, with a last one that counts what was left out."""
        events = tuple(self._events)
        if not self._left_out:
            return events
        text = f"{self._left_out} more events in this tick were left out"
        return (*events, Event(self._time_ns, "left_out", "", "", text))

    def states(self, changes: Iterable[Change], directory: Directory) -> None:
        """Circuits that moved: an event each, and the rule that holds the new state."""
        for change in changes:
            self.rules[change.slot] = "" if change.after in QUIET else change.text
            if change.before is State.UNKNOWN and change.after is State.HEALTHY:
                continue
            pool = directory.pools[directory.pool[change.slot]]
            self.add("state", change.text, endpoint=directory.id[change.slot], pool=pool)

    def overrides(self, active: tuple[Override, ...]) -> None:
        """Overrides that began or ended."""
        if active == self._overrides:
            return
        for override in active:
            if override not in self._overrides:
                self._override("override_start", "begins", override)
        for override in self._overrides:
            if override not in active:
                self._override("override_end", "ends", override)
        self._overrides = active

    def _override(self, kind: str, verb: str, override: Override) -> None:
        endpoint = override.target if override.scope == "endpoint" else ""
        pool = override.target if override.scope == "pool" else ""
        self.add(kind, f"{verb}: {sentence(override)}", endpoint=endpoint, pool=pool)

    def levels(self, levels: Iterable[tuple[str, Authority]]) -> None:
        """Pools whose authority is not what was logged last."""
        for pool, level in levels:
            before = Authority(self.authority.get(pool, Authority.OBSERVE))
            if level != before:
                verb = "raised" if level > before else "lowered"
                text = f"authority {verb} from {before.name.lower()} to {level.name.lower()}"
                self.add("authority", text, pool=pool)
            self.authority[pool] = int(level)

    def notes(self, pools: Sequence[str], notes: Sequence[str]) -> None:
        """Notes of pools that begin or end: an event each."""
        now = {pool: note for pool, note in zip(pools, notes, strict=True) if note}
        for pool, note in now.items():
            if self._notes.get(pool) != note:
                self.add("pool", note, pool=pool)
        for pool, note in self._notes.items():
            if pool not in now:
                self.add("pool", f"over: {note}", pool=pool)
        self._notes = now

    def shown_rules(self, governing: Governing) -> tuple[str, ...]:
        """The rule of every slot; an override's sentence where one governs."""
        if not governing.overrides:
            return tuple(self.rules)
        texts = [sentence(override) for override in governing.overrides]
        rules = list(self.rules)
        for slot, number in enumerate(governing.governor.tolist()):
            if number >= 0:
                rules[slot] = texts[number]
        return tuple(rules)
