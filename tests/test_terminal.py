"""What reaches a person's terminal, and what a person may type."""

from io import StringIO

import pytest
from rich.console import Console

from pipeline.client import View
from pipeline.errors import ConfigError
from pipeline.terminal import _not_found, _print_overrides, fleet, override
from pipeline.wire import decisions_pb2 as wire

EVIL = "\x1b[2J\x1b]0;title\x07[red]x[/red]\u202e"


def test_names_cannot_steer_the_terminal_or_its_markup() -> None:
    view = View()
    view.apply(
        wire.Snapshot(
            full=True,
            endpoints=[wire.Endpoint(id=EVIL, rule=EVIL, state=wire.STATE_OPEN)],
            pools=[wire.Pool(name=EVIL, note=EVIL)],
            unmatched=[wire.Unmatched(id="b", why=EVIL)],
            events=[wire.Event(endpoint=EVIL, text=EVIL)],
        )
    )
    shown = StringIO()
    Console(file=shown, width=300).print(fleet(view))
    assert not set("\x1b\x07\u202e") & set(shown.getvalue())
    assert shown.getvalue().count("[red]x[/red]") == 7


def test_an_event_of_a_pool_names_the_pool() -> None:
    view = View()
    view.apply(wire.Snapshot(full=True, events=[wire.Event(pool="chat", text="weights hold")]))
    shown = StringIO()
    Console(file=shown, width=80).print(fleet(view))
    assert "pool chat: weights hold" in shown.getvalue()


def test_why_tells_what_is_no_target_from_what_never_reported() -> None:
    snapshot = wire.Snapshot(
        endpoints=[wire.Endpoint(id="10.0.0.1:8000")],
        unmatched=[wire.Unmatched(id="gpu-17/127.0.0.1:8000", why="no member of pool chat")],
    )
    told = "gpu-17/127.0.0.1:8000 reports, but is no target: no member of pool chat"
    assert _not_found("gpu-17/127.0.0.1:8000", snapshot) == told
    assert _not_found("127.0.0.1:8000", snapshot) == told
    assert _not_found("nobody", snapshot) == "no endpoint 'nobody'; known: 10.0.0.1:8000"


def test_overrides_show_everything_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    one = wire.Override(
        scope=wire.Override.SCOPE_ENDPOINT,
        action=wire.Override.ACTION_EXCLUDE,
        target="10.100.200.17:8000",
        owner="ops",
        reason="a fan that has been loud for days",
        expires_unix_ns=1_893_499_200 * 10**9,  # noon of 2030-01-01 in UTC
        source="operator",
    )
    _print_overrides([one], as_json=False)
    shown = capsys.readouterr().out
    for part in ("10.100.200.17:8000", "exclude", "ops", "loud", "2030-01-01", "operator"):
        assert part in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ({"expires": "99999999999999d"}, "--expires"),
        ({"expires": "9" * 400 + "d"}, "--expires"),
        ({"target": "x\udcff"}, "target"),
        ({"owner": "\x1b[0m"}, "--owner"),
        ({"reason": "a\nb"}, "--reason"),
    ],
)
async def test_an_override_that_cannot_be_sent_is_one_line(
    typed: dict[str, str], told: str
) -> None:
    given = {"target": "a", "scope": "endpoint", "reason": "", "owner": "o", "expires": "", **typed}
    with pytest.raises(ConfigError, match=told):
        await override("127.0.0.1:1", "pin", value=5, as_json=False, **given)
