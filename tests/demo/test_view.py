"""The live screen and the summary fit the terminal and say what there is to say."""

import io

import pytest
from rich.console import Console, RenderableType

from pipeline.demo import run
from pipeline.demo.measure import Outcome, Row
from pipeline.demo.story import Phase
from pipeline.demo.view import SHOWN_EVENTS, EngineLine, Frame, Happening, screen, summary
from pipeline.model import State

ENGINES = [
    EngineLine("A", "127.0.0.1:39955", State.HEALTHY, 10_000, 1.0, 23.0, 55.0, 1, ""),
    EngineLine("B", "127.0.0.1:40001", State.HALF_OPEN, 20, 0.02, 1230.4, 4999.9, 96, "slow " * 30),
    EngineLine("C", "127.0.0.1:40002", State.UNKNOWN, 0, None, None, None, 0, ""),
]
EVENTS = [f"{i:5.1f} s  event {i} " + "word " * 30 for i in range(20)]
FRAME = Frame(12.3, 40.0, "B is 6 times slower", ENGINES, EVENTS, ["pool x: frozen"])
GOOD = Outcome(3, 400, 10.0, 1.0, 0.33, 0.1, 1.0, 8.0, 999, 2, 1, 80.0, 200.0, 90.0, "scraper")
ROWS = [Row(phase, 123_456, 0.333, 23.4, 4999.9, 12, 3) for phase in Phase]


def printed(what: RenderableType, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_the_screen_takes_one_line_for_each_thing_and_never_more_than_the_width(width: int) -> None:
    lines = printed(screen(FRAME), width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for wanted in ("B is 6 times slower", ":39955", "HALF_OPEN", "10000", "100%", "5000", "96"):
        assert wanted in text
    assert sum("event" in line for line in lines) == SHOWN_EVENTS
    assert "event 19" in text
    assert "pool x: frozen" in text


def test_the_screen_keeps_its_height_when_reasons_come_and_go() -> None:
    quiet = [line._replace(because="") for line in ENGINES]
    assert len(printed(screen(FRAME._replace(engines=quiet)), 80)) == len(
        printed(screen(FRAME), 80)
    )


def test_the_summary_tells_what_happened_what_it_cost_and_what_was_not_seen() -> None:
    happenings = [Happening(8.0, "B was made slow", "noticed after 1.0 s")]
    lines = printed(summary(GOOD, ROWS, happenings, "B"), 80)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for wanted in ("8.0 s  B was made slow", "noticed after 1.0 s", "10.0 a second", "scraper"):
        assert wanted in text
    assert all(str(phase) in text for phase in Phase)
    missed = GOOD._replace(recovered_s=None)
    assert missed.shortfalls()[0] in printed(summary(missed, ROWS, happenings, "B"), 80)


def test_a_missing_part_is_one_sentence_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "NEEDED", ("json", "no_such_part", "nor.this"))
    assert run.run(20, headless=True, as_json=True) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    wanted = (
        "tailrace demo: needs no_such_part, nor.this: "
        "make demo, or pip install '.[demo]' in a checkout"
    )
    assert captured.err.strip() == wanted
