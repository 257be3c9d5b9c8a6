"""Listening addresses and peers as gRPC writes them."""

import ipaddress
from urllib.parse import unquote

from pipeline.errors import ConfigError

_UNIX = "unix:"


def split_listen(field: str, listen: str) -> tuple[str, str]:
    """`host:port` -> (host, port), brackets of IPv6 kept; `ConfigError` names `field`."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{field}: {listen!r} is not host:port")
    return host, port


def is_loopback(listen: str) -> bool:
    """Whether only processes of this machine can connect to `listen`."""
    if listen.startswith(_UNIX):
        return True
    host = listen.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def peer_host(peer: str) -> str:
    """The peer as gRPC names it -> its IP address without port; `unix` for local sockets.

    >>> peer_host("ipv4:10.0.0.7:53412"), peer_host("ipv6:%5B::1%5D:53412"), peer_host("unix:")
    ('10.0.0.7', '::1', 'unix')
    >>> peer_host("ipv6:[::ffff:10.0.0.7]:1")
    '10.0.0.7'
    """
    if peer.startswith(_UNIX):
        return "unix"
    host = unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
