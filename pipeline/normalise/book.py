"""The table of endpoints: slots, ids, aliases with their owners, and what is derived from them.

The newest claim of an alias wins, but not over a member's own address; a change of hands between
two live endpoints is a conflict. The directory, the address table and the places are rebuilt only
after a change.
"""

from typing import Final

import numpy as np

from pipeline.address import NOWHERE, Address, is_ip, parse_address
from pipeline.clock import NS_PER_S, Instant
from pipeline.model import Directory, Int64s
from pipeline.normalise.address_table import ANY_PORT, AddressTable
from pipeline.normalise.directory import build_directory
from pipeline.normalise.endpoint import SERVES_WHERE_SCRAPED, Alias, Endpoint
from pipeline.normalise.notes import Notes
from pipeline.normalise.pools import PoolFacts, Pools

LIVE_NS: Final = 60 * NS_PER_S
"""An endpoint heard within this time is live: taking its alias is a conflict, not a succession."""

NOT_YET: Final = -1
"""Seen at no time since the start."""
SEVERAL: Final = -2
"""A place that means more than one endpoint."""


class Book:
    """Every known endpoint, at most `max_endpoints`."""

    def __init__(self, pools: Pools, max_endpoints: int) -> None:
        """Start empty."""
        self.pools = pools
        self.notes = Notes()
        self.conflicts = 0
        self.is_full = False
        """An endpoint was refused for want of a slot since the last release."""
        self.generation = 0
        """Moves with every change of ids, aliases or facts."""
        self.seen_ns: Int64s = np.full(64, NOT_YET, np.int64)
        """By slot: monotonic time of the last data."""
        self._owned: dict[str, int] = {}
        self._max_endpoints = max_endpoints
        self._endpoints: list[Endpoint | None] = []
        self._free: list[int] = []
        self._ids: dict[str, int] = {}
        self._owners: dict[Alias, int] = {}
        self._table: AddressTable | None = None
        self._places: tuple[dict[str, int], dict[str, int]] | None = None
        self._directory: Directory | None = None
        self._version = 0

    # slots and ids

    def __getitem__(self, slot: int) -> Endpoint:
        """The endpoint in a slot that is in use."""
        endpoint = self._endpoints[slot]
        assert endpoint is not None, "slots come from this table"
        return endpoint

    def live(self) -> list[tuple[int, Endpoint]]:
        """The slots in use, ascending."""
        return [(slot, e) for slot, e in enumerate(self._endpoints) if e is not None]

    def slot(self, name: str) -> int:
        """The slot of an id, or -1."""
        return self._ids.get(name, -1)

    def add(self, endpoint: Endpoint) -> int:
        """A slot for a new endpoint; -1 when there is no room (counted)."""
        if self._free:
            slot = self._free.pop()
            self._endpoints[slot] = endpoint
            self.seen_ns[slot] = NOT_YET
        elif len(self._endpoints) < self._max_endpoints:
            slot = len(self._endpoints)
            self._endpoints.append(endpoint)
            if slot == len(self.seen_ns):
                self.seen_ns = np.concatenate([self.seen_ns, np.full(slot, NOT_YET, np.int64)])
        else:
            self.is_full = True
            self.notes.count("endpoint_overflow")
            self.notes.tell(
                f"more than {self._max_endpoints} endpoints: new ones are refused", "overflow"
            )
            return -1
        self._ids[endpoint.id] = slot
        self.changed()
        return slot

    def own(self, slot: int, sender: str) -> None:
        """The endpoint counts for the first sender that reports it; a member for nobody."""
        endpoint = self[slot]
        if not endpoint.owner and not endpoint.listed:
            endpoint.owner = sender
            self._owned[sender] = self.owned(sender) + 1

    def disown(self, slot: int) -> None:
        """The endpoint counts for nobody."""
        owner, self[slot].owner = self[slot].owner, ""
        if owner:
            self._owned[owner] -= 1
            if not self._owned[owner]:
                del self._owned[owner]

    def owned(self, sender: str) -> int:
        """How many endpoints count for a sender."""
        return self._owned.get(sender, 0)

    def release(self, slot: int) -> None:
        """Forget an endpoint; its slot is free at once."""
        endpoint = self[slot]
        self.disown(slot)
        for alias in endpoint.aliases:
            if self._owners.get(alias) == slot:
                del self._owners[alias]
        del self._ids[endpoint.id]
        self._endpoints[slot] = None
        self._free.append(slot)
        self.is_full = False
        self.changed()

    def rename(self, slot: int, name: str) -> None:
        """Give an endpoint the id that its operator chose, unless it is taken."""
        if name and name not in self._ids:
            del self._ids[self[slot].id]
            self[slot].id = name
            self._ids[name] = slot
            self.changed()

    # aliases

    def owner(self, alias: Alias) -> int:
        """The slot that an alias means, or -1."""
        return self._owners.get(alias, -1)

    def claim(self, alias: Alias, slot: int, now: Instant) -> None:
        """Give an alias to `slot`."""
        owner = self._owners.get(alias, -1)
        if owner == slot:
            return
        if owner >= 0:
            other = self[owner]
            if alias.kind == "address" and str(other.listed_at) == alias.text:
                self._conflict(alias, other, self[slot])
                return
            self._lose(alias, owner, slot, now)
        self._give(alias, slot)

    def claim_listed(self, slot: int) -> None:
        """Give a member its listed address, whoever held it."""
        alias = Alias("address", "", str(self[slot].listed_at))
        owner = self._owners.get(alias, slot)
        if owner != slot:
            self[owner].drop(alias)
        self._give(alias, slot)

    def claim_free(self, alias: Alias, slot: int) -> None:
        """Give an alias to `slot` if nobody has it."""
        if alias not in self._owners:
            self._give(alias, slot)

    def _give(self, alias: Alias, slot: int) -> None:
        self._owners[alias] = slot
        dropped = self[slot].take(alias)
        if dropped is not None and self._owners.get(dropped) == slot:
            del self._owners[dropped]
        self.changed()

    def _lose(self, alias: Alias, owner: int, slot: int, now: Instant) -> None:
        other = self[owner]
        seen_ns = int(self.seen_ns[owner])
        if seen_ns >= 0 and 0 <= now.mono_ns - seen_ns < LIVE_NS:
            self._conflict(alias, other, self[slot])
        other.drop(alias)

    def _conflict(self, alias: Alias, other: Endpoint, claimant: Endpoint) -> None:
        self.conflicts += 1
        self.notes.count("alias_conflict")
        self.notes.tell(
            f"{alias.kind} {alias.text} is claimed by {claimant.id} and by {other.id}",
            "conflict",
            alias.text,
            *sorted((claimant.id, other.id)),
        )

    # pools

    def settle(self, slot: int, now: Instant) -> None:
        """Choose the pool again, and with it the serving port, after facts have changed."""
        endpoint = self[slot]
        overflow = self.pools.overflow
        endpoint.pool = self.pools.choose(_pool_facts(endpoint), endpoint.pool)
        if self.pools.overflow > overflow:
            self.notes.count("pool_overflow", self.pools.overflow - overflow)
            self.notes.tell("more pools than max_pools: endpoints of new ones have none", "pools")
        port = self.pools.config(endpoint.pool).serving_port
        endpoint.serving = NOWHERE
        if port is not None and is_ip(endpoint.target.host):
            endpoint.serving = Address(endpoint.target.host, port)
            self.claim(Alias("address", endpoint.cluster, str(endpoint.serving)), slot, now)

    def adopt(self, slot: int, pool: str) -> None:
        """The endpoint was in `pool` before a restart."""
        self.pools.adopt(_pool_facts(self[slot]), pool)

    def is_member(self, endpoint: Endpoint | None) -> bool:
        """Whether the chosen source of membership says that it may receive requests."""
        if endpoint is None:
            return False
        if endpoint.listed:
            return True
        if endpoint.merged_until_ns:
            return False
        chosen = self.pools.config(endpoint.pool).membership == "telemetry"
        return chosen and endpoint.is_reported and not endpoint.is_replaced

    # what is derived

    def changed(self) -> None:
        """Forget what is derived."""
        self.generation += 1
        self._table = None
        self._places = None
        self._directory = None

    def directory(self) -> Directory:
        """Everybody known, by slot; the same object until something changes."""
        if self._directory is None:
            self._version += 1
            members = [self.is_member(endpoint) for endpoint in self._endpoints]
            self._directory = build_directory(
                self._endpoints, members, self.pools.names, self._version
            )
        return self._directory

    def addresses(self) -> AddressTable:
        """Every address that means one endpoint."""
        if self._table is None:
            self._table = AddressTable(self._known_addresses())
        return self._table

    def _known_addresses(self) -> dict[Address, int]:
        """The local cluster's before another's; a host with one endpoint means that one."""
        found: dict[Address, int] = {}
        hosts: dict[str, set[int]] = {}
        local = [a for a in self._owners if a.kind == "address" and not a.cluster]
        remote = [a for a in self._owners if a.kind == "address" and a.cluster]
        for alias in local:
            found[parse_address(alias.text)] = self._owners[alias]
        here = set(found)
        for alias in remote:
            address, slot = parse_address(alias.text), self._owners[alias]
            if address not in here and found.setdefault(address, slot) != slot:
                found[address] = SEVERAL
        for address, slot in found.items():
            hosts.setdefault(address.host, set()).add(slot)
        for host, slots in hosts.items():
            slot = next(iter(slots))
            if len(slots) == 1 and slot >= 0:
                found.setdefault(Address(host, 0), slot)
                if self._port_is_unknown(self[slot]):
                    found[Address(host, ANY_PORT)] = slot
        return {address: slot for address, slot in found.items() if slot >= 0}

    def _port_is_unknown(self, endpoint: Endpoint) -> bool:
        return not endpoint.address().port and endpoint.engine not in SERVES_WHERE_SCRAPED

    def places(self) -> tuple[dict[str, int], dict[str, int]]:
        """namespace/pod -> slot and node -> slot; SEVERAL where the name means more than one."""
        if self._places is None:
            pods: dict[str, int] = {}
            nodes: dict[str, int] = {}
            for slot, endpoint in self.live():
                if endpoint.pod:
                    name = f"{endpoint.namespace}/{endpoint.pod}"
                    pods[name] = SEVERAL if name in pods else slot
                if endpoint.node:
                    nodes[endpoint.node] = SEVERAL if endpoint.node in nodes else slot
            self._places = pods, nodes
        return self._places


def _pool_facts(endpoint: Endpoint) -> PoolFacts:
    address = endpoint.address()
    return PoolFacts(
        cluster=endpoint.cluster,
        namespace=endpoint.namespace,
        service=endpoint.service,
        models=endpoint.models,
        address=str(address if address.port else endpoint.target),
        explicit=endpoint.pool_claim,
        listed=endpoint.listed,
    )
