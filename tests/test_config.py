"""Configuration: defaults, rights, the table of settings."""

import pytest

from pipeline.config import Senders, TailraceConfig, dump, parse, settings
from pipeline.errors import ConfigError
from pipeline.model import Client, Rights


def test_an_empty_file_is_a_valid_configuration() -> None:
    assert parse("", "empty") == TailraceConfig()
    assert parse(dump(TailraceConfig()), "dumped") == TailraceConfig()


def test_the_first_matching_network_gives_the_rights() -> None:
    config = parse(
        """
        senders:
          - {network: 10.1.0.0/16, rights: [metrics, requests, identity]}
          - {network: 10.0.0.0/8, rights: [metrics]}
          - {network: "::1/128", rights: [requests]}
        """,
        "test",
    )
    assert Senders(config.senders).of(Client("10.1.2.3")).rights == ~Rights.NONE
    assert Senders(config.senders).of(Client("10.2.2.3")).rights == Rights.METRICS
    assert Senders(config.senders).of(Client("::1")).rights == Rights.REQUESTS
    assert Senders(config.senders).of(Client("192.168.0.1")).rights == Rights.NONE


def test_a_name_gives_rights_only_to_who_proved_it() -> None:
    config = parse(
        """
        senders:
          - {name: "gateway-*", network: 10.0.0.0/8, rights: [identity]}
          - {name: "gateway-*", rights: [metrics]}
          - {network: 10.0.0.0/8, rights: [requests]}
        """,
        "test",
    )
    senders = Senders(config.senders)
    assert senders.of(Client("10.0.0.1", "gateway-eu")).rights == Rights.IDENTITY
    assert senders.of(Client("11.0.0.1", "gateway-eu")).rights == Rights.METRICS
    assert senders.of(Client("10.0.0.1", "other")).rights == Rights.REQUESTS
    assert senders.of(Client("10.0.0.1")).rights == Rights.REQUESTS
    assert senders.of(Client("11.0.0.1")).rights == Rights.NONE
    assert senders.of(Client("10.0.0.1", "gateway-eu")).peer == "10.0.0.1"


def test_a_pattern_for_every_name_leaves_out_those_without_one() -> None:
    config = parse('senders: [{name: "*", rights: [metrics]}]', "test")
    assert Senders(config.senders).of(Client("10.0.0.1")).rights == Rights.NONE


def test_by_default_nobody_may_claim_an_identity() -> None:
    for peer in ("127.0.0.1", "10.0.0.1", "::1", "unix:/run/x.sock"):
        sender = Senders(TailraceConfig().senders).of(Client(peer))
        assert sender.rights == Rights.METRICS | Rights.REQUESTS


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("pools: [{name: a, membership: file}]", "pools[0].file"),
        ("pools: [{name: a, membership: telemetry, members: [{address: '1.1.1.1:1'}]}]", "members"),
        ("pools: [{name: a, membership: static, file: x}]", "pools[0].file"),
        ("pools: [{name: a}, {name: a}]", "listed twice"),
        ("senders: [{rights: [metrics]}]", "senders[0]: needs a network, a name or both"),
        ("senders: [{network: 10.0.0.1/8, rights: []}]", "senders[0].network"),
        ("receive: {plaintext_off_loopback: true, http: {listen: '0.0.0.0:1'}}", "pools:"),
        ("pools: [{name: ''}]", "pools[0].name"),
        ("telemetry: {metrics_listen: '0.0.0.0:9464'}", "telemetry.metrics_listen"),
        ("telemetry: {metrics_listen: 'here'}", "telemetry.metrics_listen"),
        ("pools: [{name: '*', membership: file, file: x}]", "pools[0].membership"),
        ("pools: [{name: a, membership: static, members: [{address: 'host:1'}]}]", "not ip:port"),
        ("pools: [{name: a, membership: static, members: [{address: '1::2:80'}]}]", "not ip:port"),
        (
            "pools: [{name: a, membership: static, members: [{address: '::1:\u00b2'}]}]",
            "not ip:port",
        ),
        ("pools: [{name: a, authority: maybe}]", "pools[0].authority"),
    ],
)
def test_what_cannot_work_is_refused_with_its_path(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told.replace("[", r"\[").replace("]", r"\]")):
        parse(text, "test")


def test_every_setting_is_explained() -> None:
    rows = list(settings())
    assert len(rows) > 40
    assert [row.path for row in rows if not row.text] == []


@pytest.mark.parametrize(
    "text", ["a: 2020-13-45", "a: 0x_", "a: !!bool x", "- " * 5_000, "[" * 5_000]
)
def test_whatever_is_wrong_with_the_text_is_one_line_about_yaml(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^test: not YAML: [^\n]+$"):
        parse(text, "test")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "pools: [{name: a, membership: static, members: [&x {address: '1.1.1.1:1'}, *x]}]",
            "pools[0].members: member 1: '1.1.1.1:1' is listed twice",
        ),
        (
            'pools: [{name: a, membership: static, members: [{address: "1.1.1.1:1", id: "\\e"}]}]',
            "pools[0].members: member 0: id is too long or not printable",
        ),
        ('pools: [{name: "a\\e[0m"}]', "pools[0].name: must be 1 to 512 printable characters"),
        ("receive: {max_bytes_in_flight: 1048576}", "receive.max_bytes_in_flight: below"),
    ],
)
def test_what_would_stop_a_start_is_found_when_the_file_is_checked(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text, "test")
    assert told in str(error.value)
