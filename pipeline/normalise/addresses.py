"""Addresses as senders write them: parsing, and the table from (host, port) to endpoint slot.

Hosts are IP literals in canonical form or lower-case names; nothing is ever looked up in DNS.
"""

import socket
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from pipeline.model import Dictionary, Int32s, Int64s
from pipeline.symbols import Symbols

ANY_PORT: Final = 65_536
"""Stands for every port of a host whose engine is scraped on another port than it serves on."""

_MAPPED: Final = bytes(10) + b"\xff\xff"
"""Prefix of IPv4 addresses inside IPv6."""
_HERE: Final = frozenset({bytes(4), bytes(16), bytes(15) + b"\x01"})
"""Unspecified and loopback."""

_DEFAULT_PORTS: Final = {"http": 80, "https": 443, "grpc": 80, "grpcs": 443}


class Address(NamedTuple):
    """A host (canonical IP literal or lower-case name, no brackets) and a port (0 = not given)."""

    host: str
    port: int

    def __str__(self) -> str:
        """`host:port`, IPv6 in brackets; the bare host without a port."""
        if not self.port:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


NOWHERE: Final = Address("", 0)


def _packed(host: str) -> bytes:
    """The bytes of an IP literal, b"" for anything else."""
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    except (OSError, ValueError):  # ValueError: not ASCII, or a zero inside
        return b""


def is_ip(host: str) -> bool:
    """Whether `host` is an IP literal."""
    return bool(_packed(host))


def is_loopback(host: str) -> bool:
    """Whether `host` means the machine that says it: localhost, loopback, unspecified."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    packed = _packed(host).removeprefix(_MAPPED)
    return packed[:1] == b"\x7f" if len(packed) == 4 and any(packed) else packed in _HERE


def is_local_peer(peer: str) -> bool:
    """Whether a transport peer (gRPC's or plain spelling) is on this machine."""
    host = peer.removeprefix("ipv4:").removeprefix("ipv6:").replace("%5B", "[").replace("%5D", "]")
    return host.startswith("unix") or is_loopback(canonical_host(host))


def canonical_host(host: str) -> str:
    """Brackets and zone removed, IP literals in canonical form, names in lower case.

    An IPv4 address inside IPv6, as dual-stack sockets report it, is that IPv4 address.

    >>> canonical_host("[2001:DB8:0:0::1]"), canonical_host("Node-3.")
    ('2001:db8::1', 'node-3')
    """
    bare = host.strip().removeprefix("[").removesuffix("]").partition("%")[0]
    packed = _packed(bare).removeprefix(_MAPPED)
    if packed:
        return socket.inet_ntop(socket.AF_INET6 if len(packed) == 16 else socket.AF_INET, packed)
    return bare.lower().rstrip(".")


def parse_address(text: str) -> Address:
    """`host:port`, `[v6]:port`, a bare host or a bare IPv6 literal; NOWHERE for anything else.

    >>> str(parse_address("[::1]:8000")), parse_address("10.0.0.7"), parse_address("a:b:c")
    ('[::1]:8000', Address(host='10.0.0.7', port=0), Address(host='', port=0))
    """
    text = text.strip()
    if not text or text == "-" or any(c in text for c in "/ @?#"):
        return NOWHERE
    host, colon, port = text.rpartition(":")
    if text.endswith("]") or not colon or is_ip(text):
        return Address(canonical_host(text), 0)
    if not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < ANY_PORT:
        return NOWHERE
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return NOWHERE
    return Address(canonical_host(host), int(port))


def parse_url(text: str) -> Address:
    """Host and port of a URL, the scheme's port where none is given; NOWHERE when there is none.

    >>> str(parse_url("http://10.0.0.7:8000/v1/chat/completions?x=1"))
    '10.0.0.7:8000'
    """
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        return NOWHERE
    if not url.hostname:
        return NOWHERE
    return Address(canonical_host(url.hostname), port or _DEFAULT_PORTS.get(url.scheme, 0))


def spellings(address: Address) -> Iterable[tuple[str, int]]:
    """The (text, port) pairs by which columns may name `address`."""
    yield address.host, address.port
    if address.port not in (0, ANY_PORT):
        yield str(address), 0
    if ":" in address.host:
        yield f"[{address.host}]", address.port


class AddressTable:
    """Known addresses -> slots, as arrays: whole columns are looked up without a Python loop.

    Built once per change of the directory's addresses; unknown hosts leave nothing behind.
    """

    def __init__(self, slots: Mapping[Address, int]) -> None:
        """`slots` may hold port 0 (the host alone names one endpoint) and ANY_PORT."""
        pairs = {pair: slot for address, slot in slots.items() for pair in spellings(address)}
        self._hosts = Symbols(len(pairs))
        keyed = sorted(
            ((self._hosts.add(text.encode()) << 17) | port, slot)
            for (text, port), slot in pairs.items()
        )
        self._keys = np.array([key for key, _ in keyed], np.int64)
        self._slots = np.array([slot for _, slot in keyed], np.int32)
        self._by_address = dict(slots)
        self.has_any_port = any(address.port == ANY_PORT for address in slots)

    def get(self, address: Address) -> int:
        """The slot of one address, or -1."""
        slot = self._by_address.get(address, -1)
        if slot < 0 and address.port:
            slot = self._by_address.get(Address(address.host, ANY_PORT), -1)
        return slot

    def find(self, host: Int32s, port: Int32s, strings: Dictionary) -> Int32s:
        """int32[n] slots of (host code, port) rows; -1 where unknown."""
        if not len(self._keys) or not len(host):
            return np.full(len(host), -1, np.int32)
        pairs = (host.astype(np.int64) << 17) | np.clip(port, 0, ANY_PORT)
        distinct, inverse = np.unique(pairs, return_inverse=True)
        codes = (distinct >> 17).astype(np.int32)
        symbols = self._hosts.find(strings, codes).astype(np.int64)
        found = self._lookup(symbols, distinct & 0x1FFFF)
        if self.has_any_port:
            missing = np.flatnonzero((found < 0) & (distinct & 0x1FFFF > 0))
            found[missing] = self._lookup(symbols[missing], np.full(len(missing), ANY_PORT))
        return found[inverse]

    def _lookup(self, symbols: Int64s, ports: Int64s) -> Int32s:
        keys = np.where(symbols < 0, -1, (symbols << 17) | ports)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[at] == keys, self._slots[at], np.int32(-1))
