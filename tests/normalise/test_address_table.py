from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.address import Address
from pipeline.model import Dictionary
from pipeline.normalise.address_table import ANY_PORT, AddressTable
from pipeline.symbols import hash64
from tests.builders import spans


def dictionary(texts: Sequence[str]) -> Dictionary:
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    hashes = np.array([hash64(text) for text in encoded], np.uint64)
    return Dictionary(b"".join(encoded), offsets, hashes)


def test_the_table_finds_hosts_pairs_and_hosts_with_any_port() -> None:
    table = AddressTable(
        {Address("10.0.0.1", 80): 0, Address("10.0.0.2", 0): 1, Address("10.0.0.2", ANY_PORT): 1}
    )
    columns = spans({}, [{"server.address": h} for h in ("10.0.0.1", "10.0.0.2", "10.0.0.3")])
    codes = columns.attributes.codes("server.address")
    one, two, other = codes.tolist()
    host = np.array([one, one, one, two, two, other, -1], np.int32)
    port = np.array([80, 81, 0, 0, 99, 80, 80], np.int32)
    assert table.find(host, port, columns.strings).tolist() == [0, -1, -1, 1, 1, -1, -1]
    assert table.get(Address("10.0.0.2", 77)) == 1
    assert table.get(Address("10.0.0.1", 77)) == -1


def test_an_empty_table_finds_nothing() -> None:
    columns = spans({}, [{"server.address": "10.0.0.1"}])
    codes = columns.attributes.codes("server.address")
    assert AddressTable({}).find(codes, np.array([80], np.int32), columns.strings).tolist() == [-1]


HOST = st.text("ab1.", min_size=1, max_size=18)
PORT = st.integers(0, 3)


@given(
    st.dictionaries(st.tuples(HOST, PORT), st.integers(0, 9), max_size=40),
    st.lists(st.tuples(HOST, PORT), max_size=40),
)
def test_columns_find_what_a_map_of_spellings_finds(
    known: dict[tuple[str, int], int], asked: list[tuple[str, int]]
) -> None:
    spelled = {}
    for (host, port), slot in known.items():
        spelled[host, port] = slot
        if port:
            spelled[f"{host}:{port}", 0] = slot
    asked = [*asked, *spelled]
    strings = dictionary(sorted({host for host, _ in asked}))
    code = {text: i for i, text in enumerate(strings.texts())}
    found = AddressTable({Address(*pair): slot for pair, slot in known.items()}).find(
        np.array([code[host] for host, _ in asked], np.int32),
        np.array([port for _, port in asked], np.int32),
        strings,
    )
    assert found.tolist() == [spelled.get(pair, -1) for pair in asked]


def test_a_thousand_hosts_are_found_and_their_neighbours_are_not() -> None:
    hosts = [f"10.0.{i >> 8}.{i & 255}" for i in range(1000)]
    table = AddressTable({Address(host, 8000): i for i, host in enumerate(hosts)})
    strings = dictionary([*hosts, *(f"11{host[2:]}" for host in hosts)])
    codes = np.arange(2000, dtype=np.int32)
    port = np.full(2000, 8000, np.int32)
    assert table.find(codes, port, strings).tolist() == [*range(1000), *[-1] * 1000]
    assert set(table.find(codes, port + 1, strings).tolist()) == {-1}


def test_a_string_with_the_hash_of_a_known_host_is_not_taken_for_it() -> None:
    known = "engine-0.models.svc"
    table = AddressTable({Address(known, 80): 0})
    for other in ("engine-1.models.svc", "engine-0.models.svd", "engine-0.models.sv", ""):
        strings = dictionary([other, known])
        forged = replace(strings, hashes=np.repeat(strings.hashes[1:], 2))
        port = np.full(2, 80, np.int32)
        assert table.find(np.array([0, 1], np.int32), port, forged).tolist() == [-1, 0]


def test_known_addresses_of_equal_hashes_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.normalise.address_table.hash64", lambda _: 7)
    hosts = [f"host-{i}" for i in range(20)]
    table = AddressTable({Address(host, 80): i for i, host in enumerate(hosts)})
    strings = replace(dictionary([*hosts, "host-x"]), hashes=np.full(21, 7, np.uint64))
    codes = np.arange(20, -1, -1, dtype=np.int32)
    found = table.find(codes, np.full(21, 80, np.int32), strings)
    assert found.tolist() == [-1, *range(19, -1, -1)]
