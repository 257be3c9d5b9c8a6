"""What a resource says about who it is: attribute columns -> one `Facts` a resource.

Parsing is remembered by the attribute values in a bounded table, so that a steady fleet costs one
look-up a resource. Old and new attribute names are coalesced; process and container ids are no
identity.
"""

import re
from typing import Final, NamedTuple

import numpy as np

from pipeline.address import (
    NOWHERE,
    Address,
    canonical_host,
    is_ip,
    is_own_machine,
    parse_address,
)
from pipeline.model import Attributes, Dictionary, UInt64s
from pipeline.normalise.endpoint import Alias
from pipeline.normalise.notes import Notes
from pipeline.symbols import hash64

MAX_REMEMBERED: Final = 16_384
"""Distinct resources whose parsing is remembered; then all are forgotten at once."""

_RANDOM: Final = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}|[0-9a-f]{16,}", re.I)
"""UUIDs and long hexadecimal ids: made anew by each process."""

_KEYS: Final = (
    "tailrace.endpoint",
    "tailrace.pool",
    "tailrace.address",
    "tailrace.role",
    "k8s.cluster.name",
    "k8s.namespace.name",
    "k8s.pod.name",
    "k8s.pod.uid",
    "k8s.pod.ip",
    "k8s.node.name",
    "host.name",
    "service.name",
    "service.instance.id",
    "server.address",
    "server.port",
    "net.host.name",
    "net.host.port",
    "topology.kubernetes.io/zone",
    "cloud.availability_zone",
)


class Facts(NamedTuple):
    """Who a resource says it is; "" = not said."""

    endpoint: str
    pool: str
    address: str
    role: str
    cluster: str
    namespace: str
    pod: str
    uid: str
    pod_ip: str
    node: str
    service: str
    instance: str
    """`service.instance.id` when it is no address."""
    target: Address
    """Where the resource was scraped, or serves; NOWHERE = not said."""
    zone: str

    @property
    def is_loopback(self) -> bool:
        """Whether the target means the sender's own machine."""
        return self.target.port > 0 and is_own_machine(self.target.host)

    @property
    def has_random_instance(self) -> bool:
        """Whether the instance id is new with each process: an alias, no identity."""
        return _RANDOM.fullmatch(self.instance) is not None

    @property
    def is_weak(self) -> bool:
        """Whether two machines may well report under the same name."""
        return self.is_loopback and not (self.node or self.pod or self.uid or self.endpoint)

    def place(self, is_local: bool) -> str:
        """Where it was found, as the name of an endpoint that has no better one; "" = nowhere."""
        if self.is_loopback and self.node:
            return f"{self.node}/{self.target}"
        if self.target.port:
            return str(reachable(self.target, is_local))
        return "" if self.has_random_instance else self.instance


def strong_aliases(facts: Facts) -> list[Alias]:
    """The names that mean one endpoint wherever it runs."""
    aliases = []
    if facts.pod:
        aliases.append(Alias("pod", facts.cluster, f"{facts.namespace}/{facts.pod}"))
    if facts.uid:
        aliases.append(Alias("uid", facts.cluster, facts.uid))
    return aliases


def local_alias(facts: Facts) -> Alias:
    """A loopback target means the machine that reported it."""
    return Alias("local", facts.cluster, f"{facts.node}|{facts.target.port}")


def reachable(target: Address, is_local: bool) -> Address:
    """For a sender on this machine, loopback names as the address that reaches them."""
    is_literal = is_ip(target.host) and target.host not in {"0.0.0.0", "::"}  # noqa: S104  # compared, not bound
    if is_local and is_own_machine(target.host) and not is_literal:
        return Address("127.0.0.1", target.port)
    return target


class Resources:
    """Reads `Facts` from resource columns."""

    def __init__(self, local_cluster: str, notes: Notes) -> None:
        """`local_cluster` is written "" in every `Facts`; text that is no name is noted."""
        self._local_cluster = local_cluster
        self._notes = notes
        self._seen: dict[tuple[str, ...], Facts] = {}

    def read(self, resources: Attributes, strings: Dictionary) -> list[Facts]:
        """The facts of each resource, by row."""
        texts: dict[int, str] = {-1: ""}
        columns = []
        for key in _KEYS:
            codes = resources.text.get(key)
            if codes is None:
                columns.append([""] * resources.n)
                continue
            for code in np.unique(codes).tolist():
                if code not in texts:
                    texts[code] = self._notes.name(key, strings.text(code))
            columns.append([texts[code] for code in codes.tolist()])
        return [self._facts(values) for values in zip(*columns, strict=True)]

    def _facts(self, values: tuple[str, ...]) -> Facts:
        facts = self._seen.get(values)
        if facts is None:
            if len(self._seen) >= MAX_REMEMBERED:
                self._seen.clear()
            facts = self._seen[values] = self._parse(dict(zip(_KEYS, values, strict=True)))
        return facts

    def _parse(self, given: dict[str, str]) -> Facts:
        cluster = given["k8s.cluster.name"]
        instance = given["service.instance.id"]
        target = _target(given)
        from_instance = parse_address(instance)
        if not target.host and from_instance.port:
            target = from_instance
        pod_ip = canonical_host(given["k8s.pod.ip"])
        return Facts(
            endpoint=given["tailrace.endpoint"],
            pool=given["tailrace.pool"],
            address=given["tailrace.address"],
            role=given["tailrace.role"],
            cluster="" if cluster == self._local_cluster else cluster,
            namespace=given["k8s.namespace.name"],
            pod=given["k8s.pod.name"],
            uid=given["k8s.pod.uid"],
            pod_ip=pod_ip if is_ip(pod_ip) else "",
            node=given["k8s.node.name"] or given["host.name"],
            service=given["service.name"],
            instance="" if from_instance.port else instance,
            target=target,
            zone=given["topology.kubernetes.io/zone"] or given["cloud.availability_zone"],
        )


def _target(given: dict[str, str]) -> Address:
    """Host and port of one generation of names, the new one first."""
    for host_key, port_key in (
        ("server.address", "server.port"),
        ("net.host.name", "net.host.port"),
    ):
        host = given[host_key]
        if host:
            port = given[port_key]
            address = parse_address(f"[{host}]:{port}" if is_ip(host) else f"{host}:{port}")
            return address if port else parse_address(host)
    return NOWHERE


def source_hashes(resources: Attributes, strings: Dictionary) -> UInt64s:
    """uint64[resources.n]: a stable hash of each resource's known attributes, 0 for none."""
    if not resources.text or not len(strings):
        return np.zeros(resources.n, np.uint64)
    names = np.array([hash64(key.encode()) for key in resources.text], np.uint64)
    codes = np.array(list(resources.text.values()))  # [keys, resources]
    mixed = _mix(strings.hashes.take(codes) ^ names[:, None])
    mixed[codes < 0] = 0
    total: UInt64s = np.add.reduce(mixed, axis=0)
    return total


def _mix(values: UInt64s) -> UInt64s:
    """The finaliser of splitmix64: sums of mixed values keep attributes apart in any order."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
