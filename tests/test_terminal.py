"""What reaches a person's terminal, and what a person may type."""

from io import StringIO

import pytest
from rich.console import Console

from pipeline.client import View
from pipeline.errors import ConfigError
from pipeline.terminal import fleet, override
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
