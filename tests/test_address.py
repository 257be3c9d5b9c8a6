"""Hosts, ports, listening addresses and peers as text."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.address import (
    NOWHERE,
    Address,
    is_ip,
    is_local_peer,
    is_loopback,
    is_own_machine,
    parse_address,
    parse_url,
    peer_host,
    split_listen,
)
from pipeline.errors import ConfigError

PORTS = st.integers(1, 65_535)


@given(st.ip_addresses(), PORTS)
def test_an_address_survives_being_written_and_parsed(
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int
) -> None:
    address = parse_address(str(Address(str(ip), port)))
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    assert ipaddress.ip_address(address.host) == (mapped or ip)
    assert address.port == port
    assert address.is_ip_and_port
    assert parse_address(str(address)) == address
    assert parse_url(f"http://{address}/v1/completions") == address


@given(st.ip_addresses(), PORTS)
def test_literals_and_loopback_agree_with_the_standard_library(
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int
) -> None:
    assert is_ip(str(ip))
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    real = mapped or ip
    assert is_own_machine(str(ip)) == (real.is_loopback or real.is_unspecified)
    assert is_loopback(str(Address(str(ip), port))) == real.is_loopback


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1.2.3", "0.0.0.0", "::1", "::", "localhost", "a.localhost"]
)
def test_a_host_can_mean_the_machine_that_says_it(host: str) -> None:
    assert is_own_machine(host)


@pytest.mark.parametrize("host", ["", "10.0.0.1", "fe80::1", "localhost.example", "gpu-1"])
def test_another_host_is_another_machine(host: str) -> None:
    assert not is_own_machine(host)


@pytest.mark.parametrize(
    ("listen", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("unix:/run/x.sock", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("localhost.example:1", False),
        ("a.localhost:1", False),
        ("", False),
    ],
)
def test_only_this_machine_reaches_loopback(listen: str, loopback: bool) -> None:
    assert is_loopback(listen) is loopback


@pytest.mark.parametrize("listen", ["4317", ":4317", "host:", "host:x", "127.0.0.1:65536", ""])
def test_what_is_no_listening_address_is_an_error_that_names_the_field(listen: str) -> None:
    with pytest.raises(ConfigError, match=r"^a\.listen: .* is not host:port$"):
        split_listen("a.listen", listen)


def test_a_listening_address_keeps_its_brackets() -> None:
    assert split_listen("a.listen", "[::1]:0") == ("[::1]", "0")


@pytest.mark.parametrize("peer", ["127.0.0.1", "ipv4:127.0.0.1", "ipv6:%5B::1%5D", "::1", "unix:"])
def test_local_peers_are_known_in_every_spelling(peer: str) -> None:
    assert is_local_peer(peer)


def test_a_remote_peer_is_not_local() -> None:
    assert not is_local_peer("ipv4:10.0.0.1")


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:192.0.2.1:80", "192.0.2.1"),
        ("ipv6:[2001:db8::7]:4317", "2001:db8::7"),
        ("ipv6:[::ffff:10.0.0.7]:1", "10.0.0.7"),
        ("ipv6:%5Bfe80::1%25eth0%5D:4317", "fe80::1"),
        ("unix:/run/x.sock", "unix"),
        ("unix-abstract:x", ""),
        ("", ""),
    ],
)
def test_a_peer_is_its_address_without_the_port(peer: str, host: str) -> None:
    assert peer_host(peer) == host


@pytest.mark.parametrize(
    "text", ["", "-", "a:b:c", "10.0.0.7:0", "10.0.0.7:65536", "host:port", "http://x:1", "a b:1"]
)
def test_what_is_no_address_is_nowhere(text: str) -> None:
    assert parse_address(text) == NOWHERE


@pytest.mark.parametrize("text", ["gpu-1:8000", "10.0.0.7", "::1", ""])
def test_names_and_bare_hosts_are_no_ip_and_port(text: str) -> None:
    assert not parse_address(text).is_ip_and_port


def test_hostile_text_is_nowhere_and_raises_nothing() -> None:
    for text in ("1" * 10_000, "x:" + "9" * 10_000, "[::1", "\x00:1", "\u0661:8000", "a:\u0661"):
        parse_address(text)
        parse_url(f"http://{text}/")
