"""Addresses as senders, gRPC and configuration write them; nothing is ever looked up in DNS.

Two questions look alike and are not: `is_loopback` asks who can connect to a listening address,
`is_own_machine` whether a host means the machine that says it. The unspecified address is open to
everybody for the first, and its own machine for the second.
"""

import socket
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from pipeline.errors import ConfigError

MAX_PORT: Final = 65_535

_UNIX: Final = "unix:"
_MAPPED: Final = bytes(10) + b"\xff\xff"
"""Prefix of IPv4 addresses inside IPv6."""
_LOOPBACK_4: Final = b"\x7f"
"""First byte of 127.0.0.0/8."""
_LOOPBACK_6: Final = bytes(15) + b"\x01"
_UNSPECIFIED: Final = frozenset({bytes(4), bytes(16)})
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

    @property
    def is_ip_and_port(self) -> bool:
        """Whether requests can be sent there without a look-up."""
        return self.port > 0 and is_ip(self.host)


NOWHERE: Final = Address("", 0)


def is_ip(host: str) -> bool:
    """Whether `host` is an IP literal."""
    return bool(_packed(host))


def is_own_machine(host: str) -> bool:
    """Whether `host` means the machine that says it: localhost, loopback, unspecified."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    packed = _unmapped(host)
    return _is_loopback(packed) or packed in _UNSPECIFIED


def is_loopback(listen: str) -> bool:
    """Whether only this machine can connect to `listen`: `host:port` or `unix:path`.

    >>> is_loopback("[::1]:4317"), is_loopback("unix:/run/x.sock"), is_loopback("0.0.0.0:4317")
    (True, True, False)
    """
    if listen.startswith(_UNIX):
        return True
    host = canonical_host(listen.rpartition(":")[0])
    return host == "localhost" or _is_loopback(_packed(host))


def is_local_peer(peer: str) -> bool:
    """Whether a transport peer (gRPC's or plain spelling, no port) is on this machine."""
    host = unquote(peer).removeprefix("ipv4:").removeprefix("ipv6:")
    return host.startswith("unix") or is_own_machine(canonical_host(host))


def peer_host(peer: str) -> str:
    """The peer as gRPC names it -> its canonical host without port; `unix` for local sockets.

    >>> peer_host("ipv4:10.0.0.7:53412"), peer_host("ipv6:%5B::1%5D:53412"), peer_host("unix:")
    ('10.0.0.7', '::1', 'unix')
    """
    if peer.startswith(_UNIX):
        return "unix"
    return canonical_host(unquote(peer).partition(":")[2].rpartition(":")[0])


def split_listen(field: str, listen: str) -> tuple[str, str]:
    """`host:port` -> (host, port), brackets of IPv6 kept; `ConfigError` names `field`."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > MAX_PORT:
        raise ConfigError(f"{field}: {listen!r} is not host:port")
    return host, port


def canonical_host(host: str) -> str:
    """Brackets and zone removed, IP literals in canonical form, names in lower case.

    An IPv4 address inside IPv6, as dual-stack sockets report it, is that IPv4 address.

    >>> [canonical_host(host) for host in ("[2001:DB8:0:0::1]", "Node-3.", "::ffff:1.2.3.4")]
    ['2001:db8::1', 'node-3', '1.2.3.4']
    """
    bare = host.strip().removeprefix("[").removesuffix("]").partition("%")[0]
    packed = _unmapped(bare)
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
    if not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) <= MAX_PORT:
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


def _packed(host: str) -> bytes:
    """The bytes of an IP literal, b"" for anything else."""
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    except (OSError, ValueError):  # ValueError: not ASCII, or a zero inside
        return b""


def _unmapped(host: str) -> bytes:
    """The bytes of an IP literal, IPv4's also where it came inside IPv6; b"" for anything else."""
    return _packed(host).removeprefix(_MAPPED)


def _is_loopback(packed: bytes) -> bool:
    return packed == _LOOPBACK_6 or (len(packed) == 4 and packed.startswith(_LOOPBACK_4))
