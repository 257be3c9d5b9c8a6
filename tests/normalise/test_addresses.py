import ipaddress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.model import Sender
from pipeline.normalise.addresses import (
    ANY_PORT,
    NOWHERE,
    Address,
    AddressTable,
    is_ip,
    is_local_peer,
    is_loopback,
    parse_address,
    parse_url,
)
from tests.builders import COLLECTOR, spans

PORTS = st.integers(1, 65_535)


@given(st.ip_addresses(), PORTS)
def test_an_address_survives_being_written_and_parsed(
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int
) -> None:
    address = parse_address(str(Address(str(ip), port)))
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    assert ipaddress.ip_address(address.host) == (mapped or ip)
    assert address.port == port
    assert parse_address(str(address)) == address
    assert parse_url(f"http://{address}/v1/completions") == address


@given(st.ip_addresses())
def test_literals_and_loopback_agree_with_the_standard_library(
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    assert is_ip(str(ip))
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    expected = (mapped or ip).is_loopback or (mapped or ip).is_unspecified
    assert is_loopback(str(ip)) == expected


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "0.0.0.0", "::1", "::", "localhost"])
def test_a_host_that_means_the_speakers_machine_is_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("peer", ["127.0.0.1", "ipv4:127.0.0.1", "ipv6:%5B::1%5D", "::1", "unix:"])
def test_local_peers_are_known_in_every_spelling(peer: str) -> None:
    assert is_local_peer(Sender(peer, COLLECTOR.rights).peer)


def test_a_remote_peer_is_not_local() -> None:
    assert not is_local_peer("ipv4:10.0.0.1")


@pytest.mark.parametrize(
    "text", ["", "-", "a:b:c", "10.0.0.7:0", "10.0.0.7:65536", "host:port", "http://x:1", "a b:1"]
)
def test_what_is_no_address_is_nowhere(text: str) -> None:
    assert parse_address(text) == NOWHERE


def test_hostile_text_is_nowhere_and_raises_nothing() -> None:
    for text in ("1" * 10_000, "x:" + "9" * 10_000, "[::1", "\x00:1", "\u0661:8000", "a:\u0661"):
        parse_address(text)
        parse_url(f"http://{text}/")


def test_the_table_finds_hosts_pairs_and_hosts_with_any_port() -> None:
    table = AddressTable(
        {Address("10.0.0.1", 80): 0, Address("10.0.0.2", 0): 1, Address("10.0.0.2", ANY_PORT): 1}
    )
    columns = spans({}, [{"server.address": h} for h in ("10.0.0.1", "10.0.0.2", "10.0.0.3")])
    one, two, other = columns.attributes.codes("server.address").tolist()
    host = np.array([one, one, one, two, two, other, -1], np.int32)
    port = np.array([80, 81, 0, 0, 99, 80, 80], np.int32)
    assert table.find(host, port, columns.strings).tolist() == [0, -1, -1, 1, 1, -1, -1]
    assert table.get(Address("10.0.0.2", 77)) == 1
    assert table.get(Address("10.0.0.1", 77)) == -1


def test_an_empty_table_finds_nothing() -> None:
    columns = spans({}, [{"server.address": "10.0.0.1"}])
    codes = columns.attributes.codes("server.address")
    assert AddressTable({}).find(codes, np.array([80], np.int32), columns.strings).tolist() == [-1]
