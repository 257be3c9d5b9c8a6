"""What is published now: every endpoint's encoded record and the epoch at which it last changed.

The loop thread feeds snapshots to a `Board`; only rows that changed are encoded. Each update ends
in one swap of an immutable `Published`, from which any other thread builds full snapshots and
deltas by joining records: those changed after the epoch it starts from, and tombstones since.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal, NamedTuple

import numpy as np

from pipeline.clock import NS_PER_S
from pipeline.model import Bools, Directory, Int32s, Int64s, PoolDecision, Snapshot
from pipeline.publish import encode
from pipeline.publish.config import PublishConfig
from pipeline.publish.diff import Changes, changes
from pipeline.publish.encode import Slots, pool_name

TOMBSTONES_KEPT_NS: Final = 3_600 * NS_PER_S
"""An agent away for longer gets a full snapshot."""
MAX_TOMBSTONES: Final = 10_000
MAX_EVENTS: Final = 256
FULL_PERIOD_NS: Final = NS_PER_S
"""FULL records follow moving figures at most this often, changes of state at once."""
FULL_SHARE: Final = 8
"""A tick re-encodes at most one in so many FULL records for moving figures, oldest first: a fleet
that all becomes due in one tick is spread over the next ones."""
MIN_FULL_A_TICK: Final = 64

Pools = frozenset[str]
"""Names of the pools to see; empty = all."""
Kind = Literal["full", "delta", "heartbeat"]


class View(IntEnum):
    """How much of an endpoint is told; the numbers are those of the wire."""

    ROUTING = 0
    FULL = 1


class Message(NamedTuple):
    """An encoded `Snapshot` message; a delta without any record is a heartbeat."""

    data: bytes
    kind: Kind


class Tombstone(NamedTuple):
    """An endpoint that left a view."""

    epoch: int
    time_ns: int
    pool: str
    record: bytes


class Dated(NamedTuple):
    """A record of a pool or an event, with the epoch at which it changed or came."""

    epoch: int
    pool: str
    record: bytes


@dataclass(frozen=True, slots=True, eq=False)
class ViewState:
    """One view at one epoch. `records`, `changed_epoch`, `pool` are by slot, `order` is by id."""

    order: Slots
    records: tuple[bytes, ...]
    changed_epoch: Int64s
    pool: Int32s
    pool_names: tuple[str, ...]
    tombstones: tuple[Tombstone, ...]

    def select(self, pools: Pools, after_epoch: int) -> list[bytes]:
        """Records in `pools` that changed after `after_epoch`, in id order."""
        chosen = self.order[self.changed_epoch[self.order] > after_epoch]
        if pools:
            wanted = np.array([name in pools for name in self.pool_names] + [False], np.bool_)
            chosen = chosen[wanted[self.pool[chosen]]]
        return [self.records[slot] for slot in chosen.tolist()]

    def removed(self, pools: Pools, after_epoch: int) -> list[bytes]:
        """Tombstones in `pools` set after `after_epoch`, oldest first."""
        return [
            stone.record
            for stone in self.tombstones
            if stone.epoch > after_epoch and (not pools or stone.pool in pools)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class Published:
    """Everything published at one epoch; immutable, safe to read from any thread."""

    instance: str
    valid_for_ms: int
    epoch: int
    time_ns: int
    floor_epoch: int
    """Deltas can begin at this epoch or later."""
    views: tuple[ViewState, ViewState]
    pools: tuple[Dated, ...]
    events: tuple[Dated, ...]

    def can_follow(self, instance: str, epoch: int) -> bool:
        """Whether an agent that holds (`instance`, `epoch`) can be given a delta."""
        return instance == self.instance and self.floor_epoch <= epoch <= self.epoch

    def full(self, view: View, pools: Pools = frozenset()) -> Message:
        """Everything in `view`, of `pools` only where any are named."""
        return Message(self._header(full=True) + self._records(view, pools, -1), "full")

    def delta(self, view: View, pools: Pools, from_epoch: int) -> Message:
        """What changed since `from_epoch`, which `can_follow` allowed."""
        removed = b"".join(self.views[view].removed(pools, from_epoch))
        records = removed + self._records(view, pools, from_epoch)
        kind: Kind = "delta" if records else "heartbeat"
        return Message(self._header(full=False, from_epoch=from_epoch) + records, kind)

    def _header(self, *, full: bool, from_epoch: int = 0) -> bytes:
        return encode.header(
            epoch=self.epoch,
            time_ns=self.time_ns,
            valid_for_ms=self.valid_for_ms,
            instance=self.instance,
            full=full,
            from_epoch=from_epoch,
        )

    def _records(self, view: View, pools: Pools, after_epoch: int) -> bytes:
        dated = self.pools + self.events if view is View.FULL else self.pools
        return b"".join(
            self.views[view].select(pools, after_epoch)
            + [
                item.record
                for item in dated
                if item.epoch > after_epoch and (not pools or item.pool in pools)
            ]
        )


def canonical(snapshot: Snapshot) -> bytes:
    """The complete FULL encoding of one snapshot: its identity, byte for byte, in replay.

    Depends on nothing but the snapshot: no instance, no rate limit, no earlier snapshot.
    """
    parts = [
        encode.header(
            epoch=snapshot.epoch,
            time_ns=snapshot.time_ns,
            valid_for_ms=0,
            instance="",
            full=True,
        ),
        *encode.full_records(snapshot, snapshot.directory.slots()),
        *(encode.pool_record(pool) for pool in snapshot.pools),
        *(encode.event_record(event) for event in snapshot.events),
    ]
    return b"".join(parts)


class Board:
    """The published records, kept up to date by the loop thread and read by everybody else.

    `update` is for one thread; `published` and `subscribe` are for any. Epochs must rise.
    """

    def __init__(self, instance: str, config: PublishConfig) -> None:
        """Nothing is published before the first update; `instance` names the deciding process."""
        self.published: Published | None = None
        self._instance = instance
        self._valid_for_ms = round(config.valid_for_s * 1_000)
        self._views = (_Records(), _Records())
        self._heads = encode.Heads()
        self._full_due_ns: Int64s = np.zeros(0, np.int64)
        self._pending: Bools = np.zeros(0, np.bool_)
        self._last: Snapshot | None = None
        self._pools: dict[str, Dated] = {}
        self._pool_source: tuple[PoolDecision, ...] = ()
        self._events: deque[Dated] = deque(maxlen=MAX_EVENTS)
        self._floor_epoch = 0
        self._wakes: tuple[Callable[[], None], ...] = ()

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, on the updating thread, after every update that changed something."""
        self._wakes += (wake,)

    def unsubscribe(self, wake: Callable[[], None]) -> None:
        """Stop calling `wake`."""
        self._wakes = tuple(known for known in self._wakes if known != wake)

    def update(self, snapshot: Snapshot) -> None:
        """Publish `snapshot`: encode what changed, swap, wake."""
        if self._last is None:
            self._floor_epoch = snapshot.epoch
        self._resize(snapshot.directory.n)
        found = changes(self._last, snapshot)
        changed = self._update_routing(snapshot, found)
        changed |= self._update_full(snapshot, found)
        changed |= self._update_pools(snapshot)
        changed |= self._add_events(snapshot)
        self._last = snapshot
        first = self.published is None
        self._swap(snapshot)
        if changed or first:
            for wake in self._wakes:
                wake()

    def _swap(self, snapshot: Snapshot) -> None:
        directory = snapshot.directory
        routing, full = (records.freeze(directory) for records in self._views)
        floor_epoch = max(self._floor_epoch, *(view.floor_epoch for view in self._views))
        self.published = Published(
            self._instance,
            self._valid_for_ms,
            snapshot.epoch,
            snapshot.time_ns,
            floor_epoch,
            (routing, full),
            tuple(self._pools.values()),
            tuple(self._events),
        )

    def _resize(self, n: int) -> None:
        grown = n - len(self._pending)
        if grown > 0:
            self._pending = np.pad(self._pending, (0, grown))
            self._full_due_ns = np.pad(self._full_due_ns, (0, grown))
            for view in self._views:
                view.grow(grown)

    def _update_routing(self, snapshot: Snapshot, found: Changes) -> bool:
        view = self._views[View.ROUTING]
        present = snapshot.target & snapshot.directory.known
        changed = view.bury(snapshot, present, found.moved, self._last)
        slots = np.flatnonzero(present & (found.routing | ~view.present))
        changed |= view.put(slots, encode.routing_records(snapshot, slots), snapshot.epoch)
        view.settle(snapshot, present, found.moved)
        return changed

    def _update_full(self, snapshot: Snapshot, found: Changes) -> bool:
        view = self._views[View.FULL]
        present = snapshot.directory.known
        changed = view.bury(snapshot, present, found.moved, self._last)
        urgent = present & (found.urgent | ~view.present)
        self._pending |= found.figures
        self._pending &= present & ~urgent
        urgent[self._due(snapshot.time_ns)] = True
        slots = np.flatnonzero(urgent)
        records = encode.full_records(snapshot, slots, self._heads)
        changed |= view.put(slots, records, snapshot.epoch)
        self._pending[slots] = False
        self._full_due_ns[slots] = snapshot.time_ns + FULL_PERIOD_NS
        view.settle(snapshot, present, found.moved)
        return changed

    def _due(self, time_ns: int) -> Slots:
        """Slots whose moved figures are told now: due, oldest first, a share of the fleet.

        A wall clock that was set back makes a slot due, not mute until the clock has caught up.
        """
        waits_ns = self._full_due_ns - time_ns
        due = np.flatnonzero(self._pending & ((waits_ns <= 0) | (waits_ns > FULL_PERIOD_NS)))
        most = max(len(self._pending) // FULL_SHARE, MIN_FULL_A_TICK)
        if len(due) > most:
            due = due[np.argsort(self._full_due_ns[due], kind="stable")[:most]]
        return due

    def _update_pools(self, snapshot: Snapshot) -> bool:
        if snapshot.pools is self._pool_source:
            return False
        self._pool_source = snapshot.pools
        last, self._pools = self._pools, {}
        changed = False
        for pool in sorted(snapshot.pools, key=lambda pool: pool.name):
            record = encode.pool_record(pool)
            known = last.get(pool.name)
            if known is None or known.record != record:
                known = Dated(snapshot.epoch, pool.name, record)
                changed = True
            self._pools[pool.name] = known
        if last.keys() - self._pools.keys():
            # Pools have no tombstones: whoever still holds one that is gone starts over.
            self._floor_epoch = snapshot.epoch
            changed = True
        return changed

    def _add_events(self, snapshot: Snapshot) -> bool:
        self._events.extend(
            Dated(snapshot.epoch, event.pool, encode.event_record(event))
            for event in snapshot.events[-MAX_EVENTS:]
        )
        return bool(snapshot.events)


class _Records:
    """The mutable side of one view; belongs to the updating thread."""

    def __init__(self) -> None:
        self.present: Bools = np.zeros(0, np.bool_)
        self.floor_epoch = 0
        self._records: list[bytes] = []
        self._changed_epoch: Int64s = np.zeros(0, np.int64)
        self._order: Slots = np.zeros(0, np.intp)
        self._tombstones: deque[Tombstone] = deque()
        self._frozen: ViewState | None = None

    def grow(self, more: int) -> None:
        """Add `more` empty slots."""
        self.present = np.pad(self.present, (0, more))
        self._changed_epoch = np.pad(self._changed_epoch, (0, more))
        self._records += [b""] * more
        self._frozen = None

    def bury(self, snapshot: Snapshot, present: Bools, moved: Bools, last: Snapshot | None) -> bool:
        """Set a tombstone for every endpoint that left or became another; whether any did."""
        gone = np.flatnonzero(self.present & (~present | moved)).tolist()
        if last is not None:
            for slot in gone:
                name = last.directory.id[slot]
                record = encode.tombstone_record(name, snapshot.epoch)
                pool = pool_name(last.directory, slot)
                stone = Tombstone(snapshot.epoch, snapshot.time_ns, pool, record)
                self._tombstones.append(stone)
                self._records[slot] = b""
            self._frozen = None
        expired_ns = snapshot.time_ns - TOMBSTONES_KEPT_NS
        while self._tombstones and (
            len(self._tombstones) > MAX_TOMBSTONES or self._tombstones[0].time_ns < expired_ns
        ):
            self.floor_epoch = self._tombstones.popleft().epoch
            self._frozen = None
        return bool(gone)

    def put(self, slots: Slots, records: list[bytes], epoch: int) -> bool:
        """Take `records` for `slots`; those that differ count as changed at `epoch`."""
        differing = [
            (slot, record)
            for slot, record in zip(slots.tolist(), records, strict=True)
            if self._records[slot] != record
        ]
        for slot, record in differing:
            self._records[slot] = record
        if differing:
            self._changed_epoch = self._changed_epoch.copy()
            self._changed_epoch[[slot for slot, _ in differing]] = epoch
            self._frozen = None
        return bool(differing)

    def settle(self, snapshot: Snapshot, present: Bools, moved: Bools) -> None:
        """Take up who is `present` now, in id order."""
        if np.array_equal(present, self.present) and not (moved & present).any():
            return
        ids = snapshot.directory.id
        slots = sorted(np.flatnonzero(present).tolist(), key=ids.__getitem__)
        self._order = np.array(slots, np.intp)
        self.present = present.copy()
        self._frozen = None

    def freeze(self, directory: Directory) -> ViewState:
        """The view as it is, immutable; the same object while nothing changed."""
        frozen = self._frozen
        if (
            frozen is None
            or frozen.pool is not directory.pool
            or frozen.pool_names is not directory.pools
        ):
            frozen = ViewState(
                self._order,
                tuple(self._records),
                self._changed_epoch,
                directory.pool,
                directory.pools,
                tuple(self._tombstones),
            )
            self._frozen = frozen
        return frozen
