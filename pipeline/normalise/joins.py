"""Whose request it is: rows of spans and access logs -> endpoint slots.

An explicit name first, then the engine's own resource or the address that was called. What nobody
knows stays -1; rows make nothing known.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from pipeline.address import MAX_PORT, NOWHERE, Address, parse_address, parse_url
from pipeline.clock import Instant
from pipeline.model import (
    Attributes,
    Dictionary,
    Int32s,
    Observer,
    Outcome,
    RequestRows,
    Sender,
)
from pipeline.normalise.batch import Batch, Indices

MAX_PARSED: Final = 4096
"""Distinct addresses parsed one by one per batch; the rest count as unjoined."""
HOSTS: Final = (
    ("server.address", "server.port"),
    ("net.peer.name", "net.peer.port"),
    ("http.host", ""),
    ("network.peer.address", "network.peer.port"),
    ("net.sock.peer.addr", "net.sock.peer.port"),
    ("net.peer.ip", "net.peer.port"),
)
"""Where a caller's span says whom it called; the first that is known is taken."""
OWN_HOSTS: Final = (("server.address", "server.port"), ("net.host.name", "net.host.port"))

Observers = npt.NDArray[np.int8]
"""Who saw a row: an `Observer`."""

_ENGINE, _AGENT = int(Observer.ENGINE), int(Observer.AGENT)


class EndpointFinder(Protocol):
    """Who is behind an address, a resource or a name: the part of identity that requests need."""

    @property
    def has_any_port(self) -> bool:
        """Whether some host is known without the port it serves on."""

    def by_address(self, host: Int32s, port: Int32s, strings: Dictionary) -> Int32s:
        """Slots of (host code, port) rows, -1 = unknown."""

    def find_address(self, address: Address) -> int:
        """The slot of one parsed address, or -1."""

    def by_resource(
        self, resources: Attributes, strings: Dictionary, sender: Sender, now: Instant
    ) -> Int32s:
        """Slots of the endpoints that resources belong to, -1 = none."""

    def named(self, codes: Int32s, strings: Dictionary, sender: Sender, now: Instant) -> Int32s:
        """Slots of explicitly named endpoints, -1 = none."""

    def called_at(self, slot: int, address: Address) -> None:
        """A caller reached the endpoint there."""

    def tell(self, text: str, *key: str) -> None:
        """Tell a person, once for a key."""

    def take_notes(self) -> tuple[tuple[str, ...], Mapping[str, int]]:
        """What there is to tell since the last call, and counts by reason."""


def fill(slot: Int32s, find: Callable[[Indices], Int32s]) -> Int32s:
    """Ask `find` for the rows that have no slot yet."""
    open_ = (slot < 0).nonzero()[0]
    if len(open_) == len(slot):
        return find(open_)
    if len(open_):
        slot[open_] = find(open_)
    return slot


def span_slots(
    observer: Observers, batch: Batch, identity: EndpointFinder, sender: Sender, now: Instant
) -> Int32s:
    """int32[batch.n] slots, -1 = unknown: by explicit name, the engine's resource, or address."""
    slot = named_slots(batch, identity, sender, now)
    own = (observer == _ENGINE) | (observer == _AGENT)
    engines = (own & (slot < 0)).nonzero()[0]
    if len(engines):
        by_resource = identity.by_resource(batch.resources, batch.strings, sender, now)
        slot[engines] = by_resource[batch.resource[engines]]
        rest = engines[slot[engines] < 0]
        if len(rest):
            slot[rest] = _by_columns(_part(batch, rest), OWN_HOSTS, identity)
    callers = (~own & (slot < 0)).nonzero()[0]
    if len(callers):
        slot[callers] = _called(_part(batch, callers), identity)
    return slot


def named_slots(batch: Batch, identity: EndpointFinder, sender: Sender, now: Instant) -> Int32s:
    """int32[batch.n] slots of rows that name their endpoint, -1 = they do not."""
    named = batch.code("tailrace.endpoint")
    if named is None:
        return np.full(batch.n, -1, np.int32)
    return identity.named(named, batch.strings, sender, now)


def _part(batch: Batch, rows: Indices) -> Batch:
    return batch if len(rows) == batch.n else batch.only(rows)


def _called(batch: Batch, identity: EndpointFinder) -> Int32s:
    slot = np.full(batch.n, -1, np.int32)
    upstream = batch.first(("upstream_host", "peer.address"))
    if upstream is not None:
        slot = by_text(upstream, batch, identity)
    slot = fill(slot, lambda open_: _by_columns(_part(batch, open_), HOSTS, identity))
    url = batch.first(("url.full", "http.url"))
    if url is None:
        return slot
    return fill(slot, lambda open_: _by_parsing(url[open_], parse_url, batch, identity))


def _by_columns(batch: Batch, keys: Sequence[tuple[str, str]], identity: EndpointFinder) -> Int32s:
    """By the first (host, port) pair of keys that names a known endpoint."""
    slot: Int32s | None = None
    for host_key, port_key in keys:
        host = batch.code(host_key)
        if host is None:
            continue
        if slot is None:
            slot = identity.by_address(host, _ports(batch, port_key), batch.strings)
            continue
        open_ = (slot < 0).nonzero()[0]
        if len(open_):
            port = _ports(batch, port_key)[open_]
            slot[open_] = identity.by_address(host[open_], port, batch.strings)
    return np.full(batch.n, -1, np.int32) if slot is None else slot


def _ports(batch: Batch, key: str) -> Int32s:
    port = batch.number((key,))
    if port is None:
        return np.zeros(batch.n, np.int32)
    valid = (port >= 1) & (port <= MAX_PORT)
    return np.where(valid, port, 0).astype(np.int32)


def by_text(codes: Int32s, batch: Batch, identity: EndpointFinder) -> Int32s:
    """int32[len(codes)] slots, by text that is `host:port`."""
    slot = identity.by_address(codes, np.zeros(len(codes), np.int32), batch.strings)
    if identity.has_any_port:
        slot = fill(slot, lambda open_: _by_parsing(codes[open_], parse_address, batch, identity))
    return slot


def _by_parsing(
    codes: Int32s,
    parse: Callable[[str], Address],
    batch: Batch,
    identity: EndpointFinder,
) -> Int32s:
    """Through each distinct string, parsed; at most MAX_PARSED of them."""
    table = np.full(len(batch.strings) + 1, -1, np.int32)
    for code in batch.distinct(codes)[:MAX_PARSED].tolist():
        address = parse(batch.strings.text(code))
        if address.host:
            table[code] = identity.find_address(address)
    return table[codes]


def learn_callers(rows: RequestRows, batch: Batch, identity: EndpointFinder) -> None:
    """Callers that were served tell where an endpoint serves whose port nobody named."""
    if not identity.has_any_port:
        return
    served = np.flatnonzero((rows.outcome == Outcome.OK) & (rows.observer == Observer.CLIENT))
    for host_key, port_key in HOSTS:
        host = batch.code(host_key)
        if not port_key or host is None:
            continue
        host = host[served]
        port = _ports(batch, port_key)[served]
        given = np.flatnonzero((host >= 0) & (port > 0))
        seen = np.stack((rows.slot[served[given]], host[given], port[given]), axis=1)
        for slot, code, number in np.unique(seen, axis=0)[:MAX_PARSED].tolist():
            address = parse_address(batch.strings.text(code))
            if address != NOWHERE:
                identity.called_at(slot, Address(address.host, number))
