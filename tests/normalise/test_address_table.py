import numpy as np

from pipeline.address import Address
from pipeline.normalise.address_table import ANY_PORT, AddressTable
from tests.builders import spans


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
