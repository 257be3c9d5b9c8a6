"""Peers and listening addresses."""

import doctest

import pytest

from pipeline.receive import address


def test_the_examples_of_the_module_hold() -> None:
    assert doctest.testmod(address).failed == 0


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:192.0.2.1:80", "192.0.2.1"),
        ("ipv6:[2001:db8::7]:4317", "2001:db8::7"),
        ("ipv6:%5Bfe80::1%25eth0%5D:4317", "fe80::1"),
        ("unix:/run/x.sock", "unix"),
        ("unix-abstract:x", ""),
        ("", ""),
    ],
)
def test_a_peer_is_its_address_without_the_port(peer: str, host: str) -> None:
    assert address.peer_host(peer) == host


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
    ],
)
def test_only_this_machine_reaches_loopback(listen: str, loopback: bool) -> None:
    assert address.is_loopback(listen) is loopback
