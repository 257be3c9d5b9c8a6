"""What identity keeps of one endpoint, and its form in the state file."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from pipeline.address import NOWHERE, Address
from pipeline.model import Role

ROLES: Final = {"both": Role.BOTH, "prefill": Role.PREFILL, "decode": Role.DECODE}

SERVES_WHERE_SCRAPED: Final = frozenset({"vllm", "sglang", "trtllm", "llamacpp"})
"""Engines whose /metrics is on the serving port; Triton's is not."""

MAX_ALIASES: Final = 8
"""Of one kind and endpoint: random instance ids and pod uids of earlier lives are dropped."""

MAX_NAME: Final = 512
"""Characters of a name that is kept; the longest DNS name has 253."""

MAX_MODELS: Final = 64
"""Models remembered of one endpoint; names come from senders."""


class Alias(NamedTuple):
    """A name that joins data to an endpoint, within a cluster."""

    kind: str
    """address | pod | uid | instance | local | id"""
    cluster: str
    text: str


@dataclass(slots=True)
class Endpoint:
    """The facts about one slot; "" and NOWHERE = not known."""

    id: str
    cluster: str = ""
    namespace: str = ""
    pod: str = ""
    node: str = ""
    zone: str = ""
    engine: str = ""
    service: str = ""
    models: tuple[str, ...] = ()
    role: Role = Role.BOTH
    pool: int = -1
    pool_claim: str = ""
    """From an allowed `tailrace.pool`."""
    listed: str = ""
    """The pool whose membership list names it."""
    listed_at: Address = NOWHERE
    is_draining: bool = False
    """So says the membership list."""
    target: Address = NOWHERE
    """Where it is scraped."""
    serving: Address = NOWHERE
    """The target with the pool's serving port."""
    address_claim: Address = NOWHERE
    """From an allowed `tailrace.address`."""
    called_at: Address = NOWHERE
    """Where callers reached it."""
    is_reported: bool = False
    """An engine target, or explicitly named: a member where membership is telemetry."""
    is_replaced: bool = False
    """A newer endpoint has taken its address."""
    owner: str = ""
    """The sender that made it known, for which it counts; "" = nobody."""
    merged_until_ns: int = 0
    """Monotonic time until which it is refused as two merged endpoints; 0 = it is not."""
    aliases: dict[Alias, None] = field(default_factory=dict)

    def address(self) -> Address:
        """Where to send requests, the first that exists; NOWHERE = nobody knows."""
        for address in (self.listed_at, self.address_claim, self.called_at, self.serving):
            if address.port:
                return address
        if self.engine in SERVES_WHERE_SCRAPED and self.target.is_ip_and_port:
            return self.target
        return NOWHERE

    def facts(self) -> tuple[object, ...]:
        """Everything that a directory shows of it."""
        return (
            self.id,
            self.address(),
            self.node,
            self.engine,
            self.zone,
            self.models,
            self.pool,
            self.role,
            self.listed,
            self.is_draining,
            self.is_reported,
            self.is_replaced,
            self.merged_until_ns > 0,
        )

    def take(self, alias: Alias) -> Alias | None:
        """Take an alias; returns the oldest of its kind when there are too many."""
        self.aliases.pop(alias, None)
        self.aliases[alias] = None
        same = [known for known in self.aliases if known.kind == alias.kind]
        if len(same) <= MAX_ALIASES:
            return None
        del self.aliases[same[0]]
        return same[0]

    def drop(self, alias: Alias) -> None:
        """Lose an alias to another endpoint; with its address goes the way to reach it."""
        self.aliases.pop(alias, None)
        if alias.kind != "address":
            return
        for name in ("target", "serving", "called_at", "address_claim"):
            if str(getattr(self, name)) == alias.text:
                setattr(self, name, NOWHERE)
                self.is_replaced = True


def is_name(text: str) -> bool:
    """Whether `text` may name something: senders choose it, terminals and tables hold it.

    >>> is_name("chat/vllm-0"), is_name("a" + chr(27)), is_name("x" * 1000)
    (True, False, False)
    """
    return len(text) <= MAX_NAME and text.isprintable()


def default_id(cluster: str, namespace: str, pod: str, place: str, local_namespace: str) -> str:
    """The readable id of an endpoint that nobody named: pod, else where it was found.

    >>> default_id("", "chat", "vllm-0", "10.0.0.7:8000", "")
    'chat/vllm-0'
    >>> default_id("east", "", "", "10.0.0.7:8000", "")
    'east/10.0.0.7:8000'
    """
    if not pod and namespace == local_namespace:
        namespace = ""
    return "/".join(part for part in (cluster, namespace, pod or place) if part)


class EndpointState(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """One endpoint in the state file."""

    slot: int
    id: str
    cluster: str = ""
    namespace: str = ""
    pod: str = ""
    node: str = ""
    zone: str = ""
    engine: str = ""
    service: str = ""
    models: tuple[str, ...] = ()
    role: int = 0
    pool: str = ""
    pool_claim: str = ""
    target: tuple[str, int] = ("", 0)
    address_claim: tuple[str, int] = ("", 0)
    called_at: tuple[str, int] = ("", 0)
    is_reported: bool = False
    is_replaced: bool = False
    aliases: tuple[tuple[str, str, str], ...] = ()


class IdentityState(msgspec.Struct, frozen=True):
    """Everything that identity keeps across a restart."""

    version: int = 1
    pools: tuple[str, ...] = ()
    endpoints: tuple[EndpointState, ...] = ()


def to_state(slot: int, endpoint: Endpoint, pool: str) -> EndpointState:
    """The record of one endpoint; membership lists are read anew at the start."""
    return EndpointState(
        slot=slot,
        id=endpoint.id,
        cluster=endpoint.cluster,
        namespace=endpoint.namespace,
        pod=endpoint.pod,
        node=endpoint.node,
        zone=endpoint.zone,
        engine=endpoint.engine,
        service=endpoint.service,
        models=endpoint.models,
        role=int(endpoint.role),
        pool=pool,
        pool_claim=endpoint.pool_claim,
        target=(endpoint.target.host, endpoint.target.port),
        address_claim=(endpoint.address_claim.host, endpoint.address_claim.port),
        called_at=(endpoint.called_at.host, endpoint.called_at.port),
        is_reported=endpoint.is_reported,
        is_replaced=endpoint.is_replaced,
        aliases=tuple((a.kind, a.cluster, a.text) for a in endpoint.aliases),
    )


def from_state(state: EndpointState, pool: int) -> Endpoint:
    """The endpoint of a record, without its aliases."""
    return Endpoint(
        id=state.id,
        cluster=state.cluster,
        namespace=state.namespace,
        pod=state.pod,
        node=state.node,
        zone=state.zone,
        engine=state.engine,
        service=state.service,
        models=state.models,
        role=Role(state.role) if state.role in {0, 1, 2} else Role.BOTH,
        pool=pool,
        pool_claim=state.pool_claim,
        target=Address(*state.target),
        address_claim=Address(*state.address_claim),
        called_at=Address(*state.called_at),
        is_reported=state.is_reported,
        is_replaced=state.is_replaced,
    )
