"""Who reports: the resources behind known series, and the endpoint that each stands for.

What a resource is (its facts, its engine) is kept once for all its series. The endpoint that
identity found for it holds until identity's generation moves, so a steady fleet costs a few array
operations a batch, and a change of anybody re-resolves everybody by one look-up each.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from pipeline.address import is_local_peer
from pipeline.clock import Instant
from pipeline.model import (
    Attributes,
    Bools,
    Dictionary,
    Int32s,
    Int64s,
    Rights,
    Role,
    Sender,
    UInt64s,
)
from pipeline.normalise.resources import Facts
from pipeline.normalise.shapes import NO_ENGINE
from pipeline.normalise.texts import Texts

ROLES: Final = {"prefill": Role.PREFILL, "decode": Role.DECODE}
NEVER: Final = -1
"""A generation at which nothing was resolved."""


class Resolved(NamedTuple):
    """The endpoint of a resource at one moment."""

    slot: int
    """-1 = none."""
    holds: bool
    """Nothing but `EndpointResolver.generation` has to be looked at to give this answer again."""


class EndpointResolver(Protocol):
    """Who is behind a resource or a pod: the part of identity that metrics need."""

    @property
    def generation(self) -> int:
        """Moves with every change that may give a resource another endpoint."""

    def facts(self, resources: Attributes, strings: Dictionary) -> list[Facts]:
        """Who each resource says it is."""

    def resolve(
        self, facts: Facts, engine: str, model: str, sender: Sender, now: Instant
    ) -> Resolved:
        """The endpoint of a scraped resource; it has just given a sign of life.

        A resource with an engine makes its endpoint known, another only finds it.
        """

    def heard(self, slots: Int32s, now: Instant) -> None:
        """Endpoints `slots` have just given a sign of life."""

    def by_pod_or_node(
        self, namespace: Int32s, pod: Int32s, node: Int32s, strings: Dictionary, now: Instant
    ) -> Int32s:
        """Slot of the endpoint in each pod, else alone on each node, -1 = none."""

    def set_role(self, slot: int, role: Role) -> None:
        """The engine says which role it has."""


class Target(NamedTuple):
    """What is remembered of an engine's scrape target."""

    engine: int = NO_ENGINE
    model: int = 0
    role: int = 0
    """Numbers of texts; 0 = it said nothing."""


class Reporters:
    """Resources by number, at most `max_reporters`; the longest unheard ones are forgotten."""

    def __init__(self, max_reporters: int, max_targets: int) -> None:
        """Nobody yet."""
        self._max = max_reporters
        self._max_targets = max_targets
        self._ids: dict[tuple[int, int], int] = {}
        self._keys: list[tuple[int, int] | None] = []
        self.facts: list[Facts] = []
        self._free: list[int] = []
        self._targets: dict[int, Target] = {}
        self._target_ns: dict[int, int] = {}
        self.source: UInt64s = np.zeros(0, np.uint64)
        self.engine: Int64s = np.zeros(0, np.int64)
        self.model: Int64s = np.zeros(0, np.int64)
        self.role: Int64s = np.zeros(0, np.int64)
        self.state: Int64s = np.zeros(0, np.int64)
        """Another number, of all reporters, whenever one of these three is told."""
        self._states = 0
        self._slot: Int32s = np.zeros(0, np.int32)
        self._generation: Int64s = np.zeros(0, np.int64)
        self._kind: Int64s = np.zeros(0, np.int64)
        self._heard_ns: Int64s = np.zeros(0, np.int64)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._ids)

    @property
    def n_targets(self) -> int:
        """How many targets are remembered as engines."""
        return len(self._targets)

    # who they are

    def add(self, source: int, whole: int, facts: Facts, now: Instant) -> int:
        """The number of a resource: by the hash of its identity and that of all its attributes."""
        number = self._ids.get((source, whole), -1)
        if number >= 0:
            return number
        number = self._free.pop() if self._free else len(self._keys)
        if number == len(self._keys):
            self._keys.append(None)
            self.facts.append(facts)
        if number >= len(self.source):
            self._grow()
        self._ids[source, whole] = number
        self._keys[number], self.facts[number] = (source, whole), facts
        self.source[number] = source
        self._heard_ns[number] = now.mono_ns
        self._show(number, self._targets.get(source, Target()))
        return number

    def forget_oldest(self) -> Int64s:
        """Make room when there are too many; int64[k] the numbers that are free again."""
        if len(self._ids) <= self._max:
            return np.zeros(0, np.int64)
        used = np.array(sorted(self._ids.values()), np.int64)
        order = np.argsort(self._heard_ns[used], kind="stable")
        gone = used[order[: len(used) - self._max + self._max // 8]]
        for number in gone.tolist():
            key = self._keys[number]
            assert key is not None, "numbers in use have keys"
            del self._ids[key]
            self._keys[number] = None
            self._free.append(number)
        return gone

    # what their engines are

    def target(self, number: int) -> Target:
        """What is remembered of the target that a reporter is."""
        return self._targets.get(int(self.source[number]), Target())

    def learn(self, number: int, seen: Target, now: Instant) -> Target:
        """Take up what a batch shows of a reporter, over what an earlier one did."""
        old = self.target(number)
        source = int(self.source[number])
        if seen.engine != NO_ENGINE:
            new = Target(seen.engine, seen.model or old.model, seen.role or old.role)
            self._target_ns[source] = now.mono_ns
            if new != old:
                self._targets[source] = new
                for twin in np.flatnonzero(self.source == np.uint64(source)).tolist():
                    self._show(twin, new)
            old = new
        return old

    def texts(self) -> set[int]:
        """The numbers of the texts that targets refer to."""
        return {number for target in self._targets.values() for number in target[1:]}

    def forget_targets(self) -> None:
        """Keep no more targets than there is room for; the longest unheard go first."""
        excess = len(self._targets) - self._max_targets
        if excess <= 0:
            return
        for (source, _), number in self._ids.items():
            if source in self._targets:
                heard_ns = max(self._target_ns[source], int(self._heard_ns[number]))
                self._target_ns[source] = heard_ns
        oldest = sorted(self._targets, key=self._target_ns.__getitem__)
        for source in oldest[: excess + self._max_targets // 16]:
            del self._targets[source], self._target_ns[source]
            for twin in np.flatnonzero(self.source == np.uint64(source)).tolist():
                self._show(twin, Target())

    def _show(self, number: int, target: Target) -> None:
        self.engine[number], self.model[number], self.role[number] = target
        self._states += 1
        self.state[number] = self._states
        self._generation[number] = NEVER

    # where their endpoints are

    def settled(self, numbers: Int64s, kind: int, generation: int) -> bool:
        """Whether the endpoints of all `numbers`, for senders of a kind, are as they were."""
        same = self._generation.take(numbers) == generation
        same &= self._kind.take(numbers) == kind
        return int(np.count_nonzero(same)) == len(numbers)

    def told(self, numbers: Int64s, engine: Int64s, model: Int64s, role: Int64s) -> Bools:
        """bool[k]: whether an engine, model and role are what is remembered of each reporter.

        `NO_ENGINE` and 0 say nothing.
        """
        told: Bools = (engine == NO_ENGINE) | (engine == self.engine.take(numbers))
        told &= (model == 0) | (model == self.model.take(numbers))
        told &= (role == 0) | (role == self.role.take(numbers))
        return told

    def slots(self, numbers: Int64s, now: Instant) -> Int32s:
        """int32[k]: the endpoints of settled reporters, which have just been heard."""
        self._heard_ns[numbers] = now.mono_ns
        return self._slot.take(numbers)

    def resolve(
        self,
        numbers: Sequence[int],
        targets: Sequence[Target],
        names: Sequence[str],
        texts: Texts,
        identity: EndpointResolver,
        sender: Sender,
        now: Instant,
    ) -> Int32s:
        """int32[k]: the endpoints of `numbers`, one after the other; `names` are those of engines.

        `texts` are those that targets refer to.
        """
        slots = np.full(len(numbers), -1, np.int32)
        kind = kind_of(sender)
        for i, (number, target) in enumerate(zip(numbers, targets, strict=True)):
            slots[i] = self._resolve(
                number, names[target.engine], texts[target.model], identity, sender, kind, now
            )
        for slot, target in zip(slots.tolist(), targets, strict=True):
            role = ROLES.get(texts[target.role])
            if slot >= 0 and role is not None:
                identity.set_role(slot, role)
        return slots

    def _resolve(
        self,
        number: int,
        engine: str,
        model: str,
        identity: EndpointResolver,
        sender: Sender,
        kind: int,
        now: Instant,
    ) -> int:
        self._heard_ns[number] = now.mono_ns
        generation = identity.generation
        if self._generation[number] == generation and self._kind[number] == kind:
            slot = int(self._slot[number])
            if slot >= 0:
                identity.heard(np.array([slot], np.int32), now)
            return slot
        slot, holds = identity.resolve(self.facts[number], engine, model, sender, now)
        self._slot[number], self._kind[number] = slot, kind
        self._generation[number] = generation if holds else NEVER
        return slot

    def _grow(self) -> None:
        size = max(64, 2 * len(self.source))
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray):
                more = np.zeros(size - len(column), column.dtype)
                setattr(self, name, np.concatenate([column, more]))


def kind_of(sender: Sender) -> int:
    """Senders of one kind are answered alike."""
    return int(sender.rights & Rights.IDENTITY) * 2 + int(is_local_peer(sender.peer))
