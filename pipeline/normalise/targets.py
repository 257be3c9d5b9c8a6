"""Scrape targets: finding the endpoint behind one, and learning where it is.

A loopback target means the machine that reports it: it is known by node and port, and has an
address only for senders on this machine. A member on its pool's serving port and the target on the
same host are one endpoint.
"""

from collections.abc import Sequence

from pipeline.address import NOWHERE, Address
from pipeline.clock import Instant
from pipeline.normalise.book import Book
from pipeline.normalise.endpoint import Alias
from pipeline.normalise.resources import Facts, local_alias, reachable, strong_aliases


class Targets:
    """Finds and learns targets in a `Book`."""

    def __init__(self, book: Book, serving_ports: Sequence[int]) -> None:
        """`serving_ports` are those that pools are configured with."""
        self._book = book
        self._serving_ports = serving_ports
        self._shared: set[Address] = set()
        """Loopback addresses that several nodes report; at most one a port."""

    def find(self, facts: Facts, explicit: str, is_local: bool) -> int:
        """The known endpoint behind a resource, strongest name first; -1 = none."""
        slot = self._book.slot(explicit) if explicit else -1
        for alias in strong_aliases(facts) if slot < 0 else ():
            slot = self._book.owner(alias)
            if slot >= 0:
                break
        if slot < 0 and facts.target.port:
            slot = self._at_target(facts, is_local)
        if slot < 0 and facts.instance:
            slot = self._book.owner(Alias("instance", facts.cluster, facts.instance))
        return slot

    def _at_target(self, facts: Facts, is_local: bool) -> int:
        target = facts.target
        if facts.is_loopback:
            slot = self._book.owner(local_alias(facts))
            if slot >= 0 or not is_local:
                return slot
        address = reachable(target, is_local)
        slot = self._at(facts, address)
        for port in self._serving_ports if slot < 0 else ():
            found = self._at(facts, Address(address.host, port))
            if found >= 0 and self._is_member_behind(found, port, address):
                return found
        if slot < 0 and facts.pod_ip:
            slot = self._at(facts, Address(facts.pod_ip, target.port))
        return slot

    def _at(self, facts: Facts, address: Address) -> int:
        """The endpoint at an address, unless pod or node say that it is another by now."""
        slot = self._book.owner(Alias("address", facts.cluster, str(address)))
        if slot < 0 and facts.cluster:  # membership lists name no cluster
            slot = self._book.owner(Alias("address", "", str(address)))
            slot = slot if slot >= 0 and self._book[slot].listed else -1
        if slot < 0:
            return -1
        endpoint = self._book[slot]
        is_other_pod = bool(facts.pod and endpoint.pod) and (
            (facts.namespace, facts.pod) != (endpoint.namespace, endpoint.pod)
        )
        is_other_node = facts.is_loopback and self._is_other_node(slot, facts.node)
        return -1 if (is_other_pod and not endpoint.listed) or is_other_node else slot

    def _is_other_node(self, slot: int, node: str) -> bool:
        return bool(node) and self._book[slot].node not in {"", node}

    def _is_member_behind(self, slot: int, port: int, target: Address) -> bool:
        """Whether a listed member on its pool's serving port is the one scraped at `target`."""
        endpoint = self._book[slot]
        if not endpoint.listed or self._book.pools.config(endpoint.pool).serving_port != port:
            return False
        return endpoint.target in {NOWHERE, target}

    def learn(self, slot: int, facts: Facts, is_local: bool, now: Instant) -> None:
        """Where an endpoint is scraped, with every address that is its own."""
        if not facts.target.port:
            return
        if facts.is_loopback:
            self._book.claim(local_alias(facts), slot, now)
            if not is_local:
                return
        address = reachable(facts.target, is_local)
        if facts.is_loopback and self._is_shared(slot, facts.node, address):
            return
        self._book[slot].target = address
        self._book.claim(Alias("address", facts.cluster, str(address)), slot, now)
        if facts.pod_ip:
            also = Address(facts.pod_ip, address.port)
            self._book.claim(Alias("address", facts.cluster, str(also)), slot, now)

    def _is_shared(self, slot: int, node: str, address: Address) -> bool:
        """Whether several machines report a loopback address; then it is nobody's."""
        owner = self._book.owner(Alias("address", "", str(address)))
        if owner not in {-1, slot} and self._is_other_node(owner, node):
            self._shared.add(address)
            self._book.notes.tell(
                f"{address} is reported by several nodes, so it is the address of none",
                "loopback",
                str(address),
            )
            if self._book[owner].target == address:
                self._book[owner].target = NOWHERE
                self._book.changed()
        return address in self._shared
