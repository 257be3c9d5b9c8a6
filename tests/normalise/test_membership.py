import json

import pytest

from pipeline.errors import ConfigError
from pipeline.model import Member, PoolConfig
from pipeline.normalise.identity import Identity, IdentityConfig
from pipeline.normalise.membership import MembershipError, parse_members

GROUPS = [
    {
        "targets": ["10.0.0.7:8000", "[2001:DB8::1]:8000"],
        "labels": {"node": "n1", "zone": "a", "role": "prefill", "__meta_x": "y", "env": "prod"},
    },
    {"targets": ["10.0.0.8:8000"], "labels": {"id": "gpu-8"}},
    {"targets": ["10.0.0.9:8000"]},
]
MEMBERS = (
    Member(address="10.0.0.7:8000", node="n1", zone="a", role="prefill"),
    Member(address="[2001:db8::1]:8000", node="n1", zone="a", role="prefill"),
    Member(address="10.0.0.8:8000", id="gpu-8"),
    Member(address="10.0.0.9:8000"),
)
YAML = """
- targets: ["10.0.0.7:8000", "[2001:DB8::1]:8000"]
  labels: {node: n1, zone: a, role: prefill, __meta_x: y, env: prod}
- targets: ["10.0.0.8:8000"]
  labels: {id: gpu-8}
- targets:
  - 10.0.0.9:8000
"""


def test_json_and_yaml_give_the_same_members() -> None:
    assert parse_members(json.dumps(GROUPS).encode(), "pool.json") == MEMBERS
    assert parse_members(YAML.encode(), "pool.yaml") == MEMBERS


def test_an_empty_list_has_no_members() -> None:
    assert parse_members(b"[]", "pool.yaml") == ()


@pytest.mark.parametrize("data", [b"", b"\n", b"# nobody\n", b"null"])
def test_an_empty_file_is_no_list(data: bytes) -> None:
    with pytest.raises(MembershipError, match="is empty"):
        parse_members(data, "pool.yaml")


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("{", "pool.json"),
        ("{}", "Expected `array`"),
        ('[{"targets": "10.0.0.7:8000"}]', "$[0].targets"),
        ('[{"labels": {}}]', "targets"),
        ('[{"targets": ["10.0.0.7"]}]', "[0].targets[0]: '10.0.0.7' is not an ip:port"),
        ('[{"targets": ["10.0.0.7:99999"]}]', "is not an ip:port"),
        ('[{"targets": ["a:1", "gpu.example:8000"]}]', "'a:1' is a host name"),
        ('[{"targets": ["10.0.0.7:1"], "labels": {"role": "chef"}}]', "[0].labels.role: 'chef'"),
        ('[{"targets": ["10.0.0.7:1"], "labels": {"draining": "yes"}}]', "[0].labels.draining"),
        ('[{"targets": ["10.0.0.7:1", "10.0.0.7:1"]}]', "'10.0.0.7:1' is listed twice"),
        ('[{"targets": ["10.0.0.7:1", "10.0.0.8:1"], "labels": {"id": "x"}}]', "[0].labels.id"),
        ('[{"targets": ["10.0.0.7:1"], "labels": {"node": 3}}]', "Expected `str`"),
    ],
)
def test_errors_name_the_file_and_the_entry(data: str, complaint: str) -> None:
    with pytest.raises(MembershipError) as error:
        parse_members(data.encode(), "pool.json")
    assert str(error.value).startswith("pool.json")
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    "data", [b"a: [", b"\xff\xfe\x00", b"- !!python/object:os.system {}", b"[1]"]
)
def test_yaml_that_cannot_be_read_is_one_error(data: bytes) -> None:
    with pytest.raises(MembershipError):
        parse_members(data, "pool.yaml")


def test_a_host_name_in_the_configuration_stops_the_start() -> None:
    pool = PoolConfig(name="p", membership="static", members=(Member(address="gpu-1:8000"),))
    with pytest.raises(ConfigError, match="pool 'p': member 0: 'gpu-1:8000' is a host name"):
        Identity(IdentityConfig(), (pool,))


def test_an_unusable_list_keeps_the_membership_and_says_so() -> None:
    identity = Identity(IdentityConfig(), (PoolConfig(name="p", membership="file"),))
    assert identity.set_members("p", MEMBERS) == ()
    before = identity.directory()
    notes = identity.set_members("p", (Member(address="gpu-1:8000"),))
    assert len(notes) == 1
    assert "stays as it was" in notes[0]
    assert identity.directory() is before
    assert before.member.sum() == 4
