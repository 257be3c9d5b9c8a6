"""Operator requests: what is refused, with which words, and what reaches the loop."""

import pytest

from pipeline.errors import Rejected
from pipeline.journal import Operation
from pipeline.model import Override
from pipeline.publish.operate import (
    ACTIONS,
    MAX_TEXT,
    SCOPES,
    overrides_on_wire,
    remove_operation,
    set_operation,
    was_removed,
)
from pipeline.wire import decisions_pb2 as wire

NOW_NS = 1_000


def request(**changed: object) -> wire.SetOverrideRequest:
    fields: dict[str, object] = {
        "scope": wire.Override.SCOPE_ENDPOINT,
        "target": "a",
        "action": wire.Override.ACTION_PIN,
        "value": 500,
        "owner": "ann",
        "reason": "test",
    }
    return wire.SetOverrideRequest(override=wire.Override(**(fields | changed)))  # type: ignore[arg-type]  # any field


def test_a_valid_override_reaches_the_loop_as_it_was_sent() -> None:
    assert set_operation(request(expires_unix_ns=2_000), NOW_NS) == Operation(
        set=Override(
            scope="endpoint",
            target="a",
            action="pin",
            value=500,
            owner="ann",
            reason="test",
            expires_ns=2_000,
            source="operator",
        )
    )


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"scope": 0}, "override.scope"),
        ({"scope": 99}, "override.scope"),
        ({"action": 0}, "override.action"),
        ({"target": ""}, "override.target"),
        ({"target": "  "}, "override.target"),
        ({"target": "a\nb"}, "override.target"),
        ({"target": "x" * (MAX_TEXT + 1)}, "override.target"),
        ({"scope": 4, "target": "a"}, "override.target"),
        ({"value": 0}, "override.value"),
        ({"value": 10_001}, "override.value"),
        ({"action": wire.Override.ACTION_CAP, "value": 0}, "override.value"),
        ({"action": wire.Override.ACTION_DRAIN}, "override.value"),
        ({"owner": ""}, "override.owner"),
        ({"owner": "\x1b[31m"}, "override.owner"),
        ({"reason": "x" * (MAX_TEXT + 1)}, "override.reason"),
        ({"expires_unix_ns": NOW_NS}, "override.expires_unix_ns"),
        ({"expires_unix_ns": 1 << 63}, "override.expires_unix_ns"),
        ({"source": "file"}, "override.source"),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(changed: dict[str, object], path: str) -> None:
    with pytest.raises(Rejected) as refusal:
        set_operation(request(**changed), NOW_NS)
    assert refusal.value.description.startswith(f"{path}: ")


def test_a_request_without_an_override_is_refused() -> None:
    with pytest.raises(Rejected, match="override: missing"):
        set_operation(wire.SetOverrideRequest(), NOW_NS)


def test_scopes_and_actions_have_the_numbers_of_the_wire() -> None:
    for names, enum, prefix in (
        (SCOPES, wire.Override.Scope, "SCOPE_"),
        (ACTIONS, wire.Override.Action, "ACTION_"),
    ):
        known = {f"{prefix}{name.upper()}": number for number, name in names.items()}
        assert {f"{prefix}UNSPECIFIED": 0} | known == dict(enum.items())


def test_removal_takes_a_scope_and_its_target() -> None:
    sent = wire.RemoveOverrideRequest(scope=wire.Override.SCOPE_NODE, target="n")
    assert remove_operation(sent) == Operation(remove=("node", "n"))
    everything = wire.RemoveOverrideRequest(scope=wire.Override.SCOPE_ALL)
    assert remove_operation(everything) == Operation(remove=("all", ""))
    with pytest.raises(Rejected, match=r"^target: scope pool needs one"):
        remove_operation(wire.RemoveOverrideRequest(scope=wire.Override.SCOPE_POOL))


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("action", ACTIONS)
def test_every_override_survives_the_way_to_the_wire_and_back(scope: int, action: int) -> None:
    sent = request(
        scope=scope,
        target="" if scope == wire.Override.SCOPE_ALL else "t",
        action=action,
        value=7 if ACTIONS[action] in {"pin", "cap"} else 0,
    )
    operation = set_operation(sent, NOW_NS)
    assert operation.set is not None
    (back,) = overrides_on_wire([operation.set])
    sent.override.source = "operator"
    assert back == sent.override


def test_only_an_operators_override_counts_as_removed() -> None:
    by_operator = Override(scope="pool", target="p", action="hold")
    by_file = Override(scope="pool", target="p", action="off", source="file")
    key = ("pool", "p")
    assert was_removed(key, [by_operator, by_file], [by_file])
    assert not was_removed(key, [by_file], [by_file])
    assert not was_removed(key, [], [])
    assert not was_removed(("pool", "q"), [by_operator], [])
