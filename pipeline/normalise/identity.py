"""Who is who: joins what different sources say about one endpoint.

An endpoint becomes known through a membership list, an allowed `tailrace.endpoint` or a scraped
engine target, never through spans. Aliases are learned where attributes occur together. Membership,
not telemetry, says who may receive requests, and silence removes no member.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import msgspec
import numpy as np

from pipeline.address import NOWHERE, Address, is_ip, is_local_peer, parse_address
from pipeline.clock import NS_PER_S, Instant
from pipeline.model import (
    Attributes,
    Config,
    Dictionary,
    Directory,
    Int32s,
    Member,
    PoolConfig,
    Rights,
    Role,
    Sender,
)
from pipeline.normalise.address_table import ANY_PORT
from pipeline.normalise.book import Book
from pipeline.normalise.endpoint import (
    MAX_MODELS,
    MAX_NAME,
    ROLES,
    Alias,
    Endpoint,
    IdentityState,
    default_id,
    from_state,
    to_state,
)
from pipeline.normalise.interleaving import Interleaving
from pipeline.normalise.membership import MembershipError, check_members, serving_address
from pipeline.normalise.pools import Pools
from pipeline.normalise.reporters import Resolved
from pipeline.normalise.resources import Facts, Resources, strong_aliases
from pipeline.normalise.targets import Targets

MAX_SETTLED: Final = 32_768
"""Remembered outcomes of `scraped`; then all are forgotten at once."""

MERGED_NS: Final = 300 * NS_PER_S
"""How long two endpoints under one identity stay refused after they last alternated."""


class IdentityConfig(Config, frozen=True, kw_only=True):
    """How endpoints are told apart."""

    cluster: str = ""
    """`k8s.cluster.name` of the local cluster; data without the attribute is local too."""
    namespace: str = ""
    """Namespace left out of the ids of endpoints that are known by address only."""
    max_endpoints: Annotated[int, msgspec.Meta(ge=8, le=65_536)] = 16_384
    """Endpoints beyond this are refused and counted."""
    max_endpoints_per_sender: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 4096
    """Endpoints that one sender (by its address) may make known, members aside; further ones are
    refused and counted, so that no sender takes the room of all."""
    max_pools: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 256
    """Endpoints whose pool would be beyond this have none, and are counted."""
    forget_after_s: Annotated[float, msgspec.Meta(ge=1.0)] = 600.0
    """An endpoint that is no member is forgotten after this silence; members never are."""


class Identity:
    """The alias table and the directory of endpoints."""

    def __init__(self, config: IdentityConfig, pools: Sequence[PoolConfig] = ()) -> None:
        """Static members are known at once; `ConfigError` if their list is unusable."""
        self._config = config
        self._book = Book(Pools(pools, config.max_pools), config.max_endpoints)
        self._resources = Resources(config.cluster, self._book.notes)
        ports = sorted({p.serving_port for p in pools if p.serving_port is not None})
        self._targets = Targets(self._book, ports)
        self._interleaving = Interleaving()
        self._settled: dict[tuple[Facts, str, str, bool, bool], int] = {}
        self._settled_generation = 0
        self._is_settled = False
        """Whether the last answer of `_scraped` changed nothing and would be the same again."""
        for pool in self._book.pools.listed():
            if pool.membership == "static":
                check_members(pool.members, f"pool {pool.name!r}")
                self.set_members(pool.name, pool.members)

    # what the other stages read

    def directory(self) -> Directory:
        """Everybody known, by slot; the same object until something changes."""
        return self._book.directory()

    @property
    def unmatched(self) -> Int32s:
        """int32 slots that are known but no members, ascending."""
        directory = self.directory()
        return np.flatnonzero(directory.known & ~directory.member).astype(np.int32)

    @property
    def conflicts(self) -> int:
        """Aliases that two live endpoints claimed, since the start."""
        return self._book.conflicts

    def tell(self, text: str, *key: str) -> None:
        """Tell a person, once for a key."""
        self._book.notes.tell(text, *key)

    def take_notes(self) -> tuple[tuple[str, ...], dict[str, int]]:
        """What there is to tell since the last call, and counts by reason."""
        return self._book.notes.take(), self._book.notes.take_counts()

    # resources

    def scraped(
        self,
        resources: Attributes,
        strings: Dictionary,
        engine: Sequence[str],
        model: Sequence[str],
        sender: Sender,
        now: Instant,
    ) -> Int32s:
        """int32[resources.n]: the slots of scraped targets, -1 = no endpoint.

        `engine` and `model` are per resource; a resource with an engine ("" = unknown) makes its
        endpoint known and teaches its aliases, another only finds it.
        """
        found = [
            self.resolve(facts, engine[row], model[row], sender, now).slot
            for row, facts in enumerate(self.facts(resources, strings))
        ]
        return np.array(found, np.int32)

    def facts(self, resources: Attributes, strings: Dictionary) -> list[Facts]:
        """Who each resource says it is; text that is no name is told and counted."""
        return self._resources.read(resources, strings)

    def resolve(
        self, facts: Facts, engine: str, model: str, sender: Sender, now: Instant
    ) -> Resolved:
        """The endpoint behind a scraped resource, and if that holds while the generation stays.

        With an engine ("" = unknown) it makes its endpoint known, as in `scraped`; an endpoint
        that is found has given a sign of life.
        """
        trusted = self._believes(facts, sender)
        slot = self._scraped(facts, engine, model, trusted, sender, now)
        has_refused_claims = not trusted and bool(facts.endpoint or facts.pool or facts.address)
        holds = self._is_settled and not has_refused_claims
        if slot < 0:
            return Resolved(-1, holds)
        return Resolved(self._heard(slot, facts, sender.peer, now), holds and not facts.is_weak)

    def heard(self, slots: Int32s, now: Instant) -> None:
        """Endpoints `slots` have just given a sign of life."""
        self._book.seen_ns[slots] = now.mono_ns

    @property
    def generation(self) -> int:
        """Moves with every change of ids, aliases or facts."""
        return self._book.generation

    def by_resource(
        self, resources: Attributes, strings: Dictionary, sender: Sender, now: Instant
    ) -> Int32s:
        """int32[resources.n]: the known endpoints that resources of spans belong to, else -1.

        Teaches random instance ids that occur beside a stronger name; makes nothing known but an
        allowed `tailrace.endpoint`.
        """
        is_local = is_local_peer(sender.peer)
        slots = np.full(resources.n, -1, np.int32)
        for row, facts in enumerate(self._resources.read(resources, strings)):
            trusted = self._believes(facts, sender)
            if trusted and facts.endpoint:
                claims = (facts.pool, facts.address)
                slot = self._named(facts.endpoint, *claims, facts.cluster, sender, now)
            else:
                slot = self._targets.find(facts, "", is_local)
            if slot < 0 and facts.node and not facts.pod and not facts.target.port:
                slot = self._book.places()[1].get(facts.node, -1)
            slots[row] = self._joined(max(slot, -1), facts, now)
        return slots

    def _joined(self, slot: int, facts: Facts, now: Instant) -> int:
        if slot < 0:
            return -1
        if self._book[slot].merged_until_ns:
            self._book.notes.count("merged_identity")
            return -1
        if facts.has_random_instance:
            self._book.claim(Alias("instance", facts.cluster, facts.instance), slot, now)
        return slot

    def _scraped(
        self, facts: Facts, engine: str, model: str, trusted: bool, sender: Sender, now: Instant
    ) -> int:
        is_local = is_local_peer(sender.peer)
        key = (facts, engine, model, trusted, is_local)
        if self._settled_generation != self._book.generation or len(self._settled) >= MAX_SETTLED:
            self._settled.clear()
            self._settled_generation = self._book.generation
        known = self._settled.get(key)
        self._is_settled = known is not None or not engine
        if known is not None:
            return known
        explicit = facts.endpoint if trusted else ""
        slot = self._targets.find(facts, explicit, is_local)
        if not engine:
            return slot
        if slot < 0:
            slot = self._create(facts, explicit, sender, now)
        if slot < 0:
            return -1
        generation = self._book.generation
        self._book.own(slot, sender.peer)
        self._learn(slot, facts, engine, model, trusted, is_local, now)
        if generation == self._book.generation == self._settled_generation:
            self._settled[key] = slot
            self._is_settled = True
        return slot

    def _heard(self, slot: int, facts: Facts, peer: str, now: Instant) -> int:
        endpoint = self._book[slot]
        self._book.seen_ns[slot] = now.mono_ns
        if not facts.is_weak:
            return slot
        if self._interleaving.alternates(slot, (peer, facts), now.mono_ns):
            self.refuse_merged(slot, now)
        if endpoint.merged_until_ns > now.mono_ns:
            self._book.notes.count("merged_identity")
            return -1
        if endpoint.merged_until_ns:
            endpoint.merged_until_ns = 0
            self._book.changed()
        return slot

    def interleaved(self, slot: int) -> bool:
        """Whether two endpoints report under the identity of `slot`; its data is refused."""
        return self._book[slot].merged_until_ns > 0

    def refuse_merged(self, slot: int, now: Instant) -> None:
        """Refuse an identity under which two endpoints report, for some minutes."""
        endpoint = self._book[slot]
        if not endpoint.merged_until_ns:
            self._book.changed()
        endpoint.merged_until_ns = now.mono_ns + MERGED_NS
        self.tell(
            f"{endpoint.id}: two sources report under this name and are refused; give each "
            "host.name, k8s.node.name or a pod name",
            "merged",
            endpoint.id,
        )

    # addresses and places

    def by_address(self, host: Int32s, port: Int32s, strings: Dictionary) -> Int32s:
        """int32[n]: slots of (host code, port) rows, port 0 = not given; -1 = unknown.

        A host without a port, or text that is `host:port`, finds an endpoint too. An unknown port
        finds the one endpoint of a host whose engine serves on another port than its metrics'.
        """
        return self._book.addresses().find(host, port, strings)

    def find_address(self, address: Address) -> int:
        """The slot of one parsed address, or -1."""
        return self._book.addresses().get(address)

    @property
    def has_any_port(self) -> bool:
        """Whether some host is known without the port it serves on."""
        return self._book.addresses().has_any_port

    def by_pod_or_node(
        self, namespace: Int32s, pod: Int32s, node: Int32s, strings: Dictionary, now: Instant
    ) -> Int32s:
        """int32[k]: slots of (namespace, pod, node) code rows: by pod, else the node's only one.

        A node with several endpoints says nothing about one of them: -1. A pod that is not known
        is that endpoint only if its own pod is not known either. Sight of an endpoint here keeps it
        from being forgotten; it is no sign of life.
        """
        rows = np.stack((namespace, pod, node), axis=1)
        distinct, inverse = np.unique(rows, axis=0, return_inverse=True)
        found = np.full(len(distinct), -1, np.int32)
        for i, (ns_code, pod_code, node_code) in enumerate(distinct.tolist()):
            name = f"{strings.text(ns_code)}/{strings.text(pod_code)}" if pod_code >= 0 else ""
            slot = self._at_place(name, strings.text(node_code))
            if slot >= 0:
                found[i] = slot
                self._book.seen_ns[slot] = now.mono_ns
        return found[inverse.reshape(-1)]

    def _at_place(self, pod: str, node: str) -> int:
        pods, nodes = self._book.places()
        slot = pods.get(pod, -1) if pod else -1
        if slot == -1 and node:
            slot = nodes.get(node, -1)
            if slot >= 0 and pod and self._book[slot].pod:
                return -1
        return slot

    def called_at(self, slot: int, address: Address) -> None:
        """Learn where callers reach an endpoint of which nobody said where it serves."""
        endpoint = self._book[slot]
        known = endpoint.address().port or endpoint.target.host != address.host
        if known or not is_ip(address.host) or not 0 < address.port < ANY_PORT:
            return
        endpoint.called_at = address
        self._book.claim_free(Alias("address", endpoint.cluster, str(address)), slot)
        self._book.changed()

    # explicit claims

    def explicit(self, endpoint: str, pool: str, address: str, sender: Sender, now: Instant) -> int:
        """The slot of an explicitly named endpoint, made known if need be; -1 when refused."""
        if not sender.rights & Rights.IDENTITY:
            self._refuse_claims((endpoint[:MAX_NAME], pool, address), sender)
            return -1
        endpoint = self._book.notes.name("tailrace.endpoint", endpoint)
        return self._named(endpoint, pool, address, "", sender, now) if endpoint else -1

    def named(self, codes: Int32s, strings: Dictionary, sender: Sender, now: Instant) -> Int32s:
        """int32[n]: slots of the `tailrace.endpoint` values behind `codes`; -1 without."""
        slots = np.full(len(codes), -1, np.int32)
        given = codes[codes >= 0]
        for code in np.unique(given).tolist() if len(given) else ():
            slots[codes == code] = self.explicit(strings.text(code), "", "", sender, now)
        return slots

    def _believes(self, facts: Facts, sender: Sender) -> bool:
        """Whether a resource's `tailrace.*` claims count; a refused one is told once."""
        if sender.rights & Rights.IDENTITY:
            return True
        if facts.endpoint or facts.pool or facts.address:
            self._refuse_claims((facts.endpoint, facts.pool, facts.address), sender)
        return False

    def _refuse_claims(self, claims: Iterable[str], sender: Sender) -> None:
        for claim in claims:
            if claim and self._book.notes.is_new("claim", sender.peer, claim):
                self._book.notes.count("identity_refused")
                self.tell(
                    f"{sender.peer} claims the identity {claim[:80]!r} without the right to",
                    "refused",
                    sender.peer,
                    claim,
                )

    def _named(
        self, name: str, pool: str, address: str, cluster: str, sender: Sender, now: Instant
    ) -> int:
        slot = self._book.slot(name)
        if slot < 0:
            slot = self._add(Endpoint(id=name, cluster=cluster), sender)
        if slot < 0:
            return -1
        self._book.own(slot, sender.peer)
        endpoint = self._book[slot]
        self._book.seen_ns[slot] = now.mono_ns
        before = endpoint.facts()
        endpoint.is_reported = True
        self._take_claims(slot, pool, address, now)
        self._book.settle(slot, now)
        if endpoint.facts() != before:
            self._book.changed()
        return slot

    def _take_claims(self, slot: int, pool: str, address: str, now: Instant) -> None:
        endpoint = self._book[slot]
        endpoint.pool_claim = pool or endpoint.pool_claim
        parsed = parse_address(address)
        if parsed.is_ip_and_port:
            endpoint.address_claim = parsed
            self._book.claim(Alias("address", endpoint.cluster, str(parsed)), slot, now)
        elif address:
            self._book.notes.count("bad_address")
            self.tell(
                f"{endpoint.id}: tailrace.address {address[:80]!r} is not an ip:port",
                "bad_address",
                address,
            )

    # learning

    def _add(self, endpoint: Endpoint, sender: Sender) -> int:
        """A slot for an endpoint that a sender makes known; -1 when there is no room for it."""
        if self._book.owned(sender.peer) < self._config.max_endpoints_per_sender:
            return self._book.add(endpoint)
        self._book.notes.count("sender_endpoints")
        self.tell(
            f"{sender.peer} has made {self._config.max_endpoints_per_sender} endpoints known "
            "(max_endpoints_per_sender): its new ones are refused",
            "sender_endpoints",
            sender.peer,
        )
        return -1

    def _create(self, facts: Facts, explicit: str, sender: Sender, now: Instant) -> int:
        place = facts.place(is_local_peer(sender.peer))
        pod = facts.pod or facts.uid
        if not (explicit or pod or place):
            self._book.notes.count("unidentified")
            return -1
        local = self._config.namespace
        name = explicit or default_id(facts.cluster, facts.namespace, pod, place, local)
        if self._book.slot(name) >= 0:
            self._book.notes.count("id_taken")
            return -1
        slot = self._add(Endpoint(name, facts.cluster, facts.namespace), sender)
        if slot >= 0:
            self._book.seen_ns[slot] = now.mono_ns
        return slot

    def _learn(
        self,
        slot: int,
        facts: Facts,
        engine: str,
        model: str,
        trusted: bool,
        is_local: bool,
        now: Instant,
    ) -> None:
        endpoint = self._book[slot]
        before = endpoint.facts()
        endpoint.engine = engine
        endpoint.is_reported = True
        endpoint.is_replaced = False
        endpoint.namespace = facts.namespace or endpoint.namespace
        endpoint.pod = facts.pod or endpoint.pod
        endpoint.node = facts.node or endpoint.node
        endpoint.zone = facts.zone or endpoint.zone
        endpoint.service = facts.service or endpoint.service
        if model and model not in endpoint.models and len(endpoint.models) < MAX_MODELS:
            endpoint.models = (*endpoint.models, model)
        if trusted:
            self._take_claims(slot, facts.pool, facts.address, now)
            endpoint.role = ROLES.get(facts.role, endpoint.role)
        for alias in strong_aliases(facts):
            self._book.claim(alias, slot, now)
        if facts.instance:
            self._book.claim(Alias("instance", facts.cluster, facts.instance), slot, now)
        self._targets.learn(slot, facts, is_local, now)
        self._book.settle(slot, now)
        if endpoint.facts() != before:
            self._book.changed()

    def set_role(self, slot: int, role: Role) -> None:
        """What an endpoint serves, as its engine says."""
        if self._book[slot].role != role:
            self._book[slot].role = role
            self._book.changed()

    # membership

    def set_members(self, pool: str, members: Iterable[Member]) -> tuple[str, ...]:
        """Replace a pool's membership; returns notes. An unusable list changes nothing."""
        members = tuple(members)
        try:
            check_members(members, f"pool {pool!r}")
        except MembershipError as error:
            return (f"{error}; the membership stays as it was",)
        notes: list[str] = []
        listed: set[int] = set()
        for member in members:
            slot = self._member_slot(pool, member)
            other = self._book[slot].listed if slot >= 0 else ""
            if slot < 0:
                notes.append(f"{member.id or member.address}: no room for another endpoint")
            elif other not in {"", pool}:
                notes.append(f"{member.id or member.address} is listed in {other} and in {pool}")
            else:
                listed.add(slot)
                self._list(slot, pool, member)
        for slot, endpoint in self._book.live():
            if endpoint.listed == pool and slot not in listed:
                endpoint.listed, endpoint.listed_at = "", NOWHERE
                endpoint.is_draining = False
                self._book.settle(slot, _NO_TIME)
        self._book.changed()
        return tuple(notes)

    def _member_slot(self, pool: str, member: Member) -> int:
        """By id, else by address; a new slot for a member that nobody has reported yet."""
        address = serving_address(member.address)
        slot = self._book.slot(member.id or str(address))
        if slot >= 0 and self._book[slot].listed in {"", pool}:
            return slot
        owner = self._book.owner(Alias("address", "", str(address)))
        if owner >= 0:
            return owner
        return slot if slot >= 0 else self._book.add(Endpoint(id=member.id or str(address)))

    def _list(self, slot: int, pool: str, member: Member) -> None:
        endpoint = self._book[slot]
        endpoint.listed, endpoint.listed_at = pool, serving_address(member.address)
        endpoint.node = member.node or endpoint.node
        endpoint.zone = member.zone or endpoint.zone
        endpoint.role = ROLES[member.role]
        endpoint.is_draining = member.draining
        endpoint.is_replaced = False
        self._book.disown(slot)
        self._book.rename(slot, member.id)
        self._book.claim_listed(slot)
        self._book.settle(slot, _NO_TIME)

    # time and restarts

    def retired(self, now: Instant) -> Int32s:
        """int32 slots to forget now, ascending: no members, silent for `forget_after_s`.

        They are free for others from here on, so every stage must forget them before the next
        batch. Members by telemetry that are silent that long go only when the table was full.
        """
        limit_ns = round(self._config.forget_after_s * NS_PER_S)
        gone = []
        seen_ns = self._book.seen_ns
        for slot, endpoint in self._book.live():
            if seen_ns[slot] < 0:
                seen_ns[slot] = now.mono_ns
            if endpoint.listed or now.mono_ns - seen_ns[slot] <= limit_ns:
                continue
            if self._book.is_full or not self._book.is_member(endpoint):
                gone.append(slot)
        for slot in gone:
            self._book.release(slot)
            self._interleaving.forget(slot)
        return np.array(gone, np.int32)

    def export_state(self) -> IdentityState:
        """Ids, facts and aliases, for `restore` in the next process."""
        names = self._book.pools.names
        records = (
            to_state(slot, endpoint, names[endpoint.pool] if endpoint.pool >= 0 else "")
            for slot, endpoint in self._book.live()
        )
        return IdentityState(pools=names, endpoints=tuple(records))

    def restore(self, state: IdentityState) -> None:
        """Take over an earlier process's endpoints; configured members keep what they have."""
        pools = self._book.pools
        pools.restore(state.pools)
        for record in state.endpoints:
            slot = self._book.slot(record.id)
            if slot < 0:
                pool = pools.index(record.pool) if record.pool else -1
                slot = self._book.add(from_state(record, pool))
            for parts in record.aliases if slot >= 0 else ():
                self._book.claim_free(Alias(*parts), slot)
            if slot >= 0:
                self._book.adopt(slot, record.pool)
                self._book.settle(slot, _NO_TIME)


_NO_TIME: Final = Instant(0, 0)
"""Membership lists are claims without a time: nobody is live beside them."""
