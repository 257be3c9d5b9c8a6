"""Configuration: defaults, rights, the table of settings."""

import pytest

from pipeline.config import TailraceConfig, dump, parse, sender, settings
from pipeline.errors import ConfigError
from pipeline.model import Rights


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
    assert sender(config, "10.1.2.3").rights == ~Rights.NONE
    assert sender(config, "10.2.2.3").rights == Rights.METRICS
    assert sender(config, "::1").rights == Rights.REQUESTS
    assert sender(config, "192.168.0.1").rights == Rights.NONE


def test_by_default_nobody_may_claim_an_identity() -> None:
    for peer in ("127.0.0.1", "10.0.0.1", "::1", "unix:/run/x.sock"):
        assert sender(TailraceConfig(), peer).rights == Rights.METRICS | Rights.REQUESTS


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("pools: [{name: a, membership: file}]", "pools[0].file"),
        ("pools: [{name: a, membership: telemetry, members: [{address: '1.1.1.1:1'}]}]", "members"),
        ("pools: [{name: a, membership: static, file: x}]", "pools[0].file"),
        ("pools: [{name: a}, {name: a}]", "listed twice"),
        ("pools: [{name: ''}]", "pools[0].name"),
        ("pools: [{name: '*', membership: file, file: x}]", "pools[0].membership"),
        ("pools: [{name: a, membership: static, members: [{address: 'host:1'}]}]", "not ip:port"),
        ("pools: [{name: a, authority: maybe}]", "pools[0].authority"),
    ],
)
def test_a_pool_that_cannot_work_is_refused_with_its_path(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told.replace("[", r"\[").replace("]", r"\]")):
        parse(text, "test")


def test_every_setting_is_explained() -> None:
    rows = list(settings())
    assert len(rows) > 40
    assert [row.path for row in rows if not row.text] == []
