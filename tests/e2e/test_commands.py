"""The commands as a person types them, against a running service and without one."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.embedded import Running, running, tailrace
from tests.hand_fleet import static_pool

MEMBER = "10.0.0.1:8000"


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with running(static_pool([MEMBER, "10.0.0.2:8000"])) as found:
        yield found


def test_why_explains_an_endpoint_by_id_or_address(service: Running) -> None:
    told = tailrace("why", MEMBER, "-a", service.decisions)
    assert told.returncode == 0, told.stderr
    assert MEMBER in told.stdout
    assert "weight 1000" in told.stdout
    assert "authority act" in told.stdout
    as_json = tailrace("why", MEMBER, "-a", service.decisions, "--json")
    assert json.loads(as_json.stdout)["pool"] == "chat"


def test_why_names_what_it_knows_when_asked_for_what_it_does_not(service: Running) -> None:
    told = tailrace("why", "nobody", "-a", service.decisions)
    assert told.returncode == 1
    assert "no endpoint 'nobody'" in told.stdout
    assert MEMBER in told.stdout


def test_watch_shows_every_endpoint_to_people_and_programs(service: Running) -> None:
    table = tailrace("watch", service.decisions, "--count", "1")
    assert table.returncode == 0, table.stderr
    assert MEMBER in table.stdout
    line = tailrace("watch", service.decisions, "--json", "--count", "1")
    [view] = [json.loads(each) for each in line.stdout.splitlines()]
    assert sorted(view["endpoints"]) == [MEMBER, "10.0.0.2:8000"]
    assert view["endpoints"][MEMBER]["weight"] == 1000


def test_an_override_is_set_listed_and_removed(service: Running) -> None:
    at = ("-a", service.decisions)
    assert tailrace("override", "cap", MEMBER, "--value", "300", *at).returncode == 0
    [listed] = json.loads(tailrace("override", "list", "--json", *at).stdout)
    assert (listed["target"], listed["value"]) == (MEMBER, 300)
    assert tailrace("override", "remove", MEMBER, *at).returncode == 0
    assert json.loads(tailrace("override", "list", "--json", *at).stdout) == []
    assert tailrace("override", "remove", MEMBER, *at).returncode == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("explode", MEMBER), "action: 'explode' is none of"),
        (("pin", MEMBER), "override.value: pin takes a weight"),
        (("drain", MEMBER, "--scope", "galaxy"), "--scope: 'galaxy' is none of"),
        (("drain", MEMBER, "--expires", "soon"), "--expires: 'soon' is no duration"),
        (("drain",), "override.target: scope endpoint needs one"),
    ],
)
def test_an_override_that_cannot_be_meant_is_one_line(
    service: Running, arguments: tuple[str, ...], told: str
) -> None:
    done = tailrace("override", *arguments, "-a", service.decisions)
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("why", MEMBER, "-a", "127.0.0.1:1"),
        ("watch", "127.0.0.1:1", "--json"),
        ("override", "list", "-a", "127.0.0.1:1"),
    ],
)
def test_a_service_that_is_not_there_is_one_line(arguments: tuple[str, ...]) -> None:
    done = tailrace(*arguments)
    assert done.returncode == 1
    assert "no answer from 127.0.0.1:1" in done.stderr
    assert done.stderr.count("\n") == 1


def test_replaying_what_is_no_journal_is_one_line(tmp_path: Path) -> None:
    done = tailrace("replay", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == f"tailrace: {tmp_path} holds no journal (*.journal)\n"


def test_doctor_names_parts_and_fails_only_for_required_ones() -> None:
    told = tailrace("doctor", "--json")
    assert told.returncode == 0
    parts = json.loads(told.stdout)["parts"]
    assert {"llama.cpp", "otelcol", "kernel-btf"} <= set(parts)
    assert tailrace("doctor", "--require", "a-part-that-does-not-exist").returncode == 1


def test_watch_says_that_the_service_has_stopped() -> None:
    with running(static_pool([MEMBER])) as service:
        watching = subprocess.Popen(
            [sys.executable, "-m", "pipeline", "watch", service.decisions, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["epoch"]
    _, told = watching.communicate(timeout=30)
    assert watching.returncode == 1
    assert told == f"tailrace: {service.decisions} has ended the stream: the service stops\n"
