"""What a person sees: the live screen, and the summary at the end.

Enters: a `Frame` (everything on the screen at one moment) or an `Outcome`. Leaves: rich
renderables that fit 80 columns and use more when there are more.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.demo.measure import Outcome, Row
from pipeline.model import State
from pipeline.terminal import STATE_STYLES

SHOWN_EVENTS: Final = 7
BAR_WIDTH: Final = 10
BAR_FULL: Final = 1500
"""The weight of a full bar: half more than neutral."""


class EngineLine(NamedTuple):
    """One engine on the screen; None is not known."""

    name: str
    address: str
    state: State
    weight: int
    share: float | None
    p50_ms: float | None
    p99_ms: float | None
    in_flight: int
    because: str


class Frame(NamedTuple):
    """The screen at one moment."""

    elapsed_s: float
    seconds: float
    now: str
    engines: Sequence[EngineLine]
    events: Sequence[str]
    notes: Sequence[str]


def print_line(console: Console, text: str) -> None:
    """Print one line as it is, however wide the terminal."""
    console.print(text, markup=False, soft_wrap=True)


def screen(frame: Frame) -> Group:
    """The live screen."""
    title = Text.assemble(
        ("tailrace demo", "bold"), f"  {frame.elapsed_s:4.0f} of {frame.seconds:.0f} s   "
    )
    title.append(frame.now, "bold yellow")
    return Group(
        title,
        _engines(frame.engines),
        *(_one_line(f"{line.name}  {line.because or '-'}", "dim") for line in frame.engines),
        Text(),
        *(_one_line(event) for event in frame.events[-SHOWN_EVENTS:]),
        *(_one_line(note, "yellow") for note in frame.notes),
    )


def _engines(lines: Sequence[EngineLine]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("engine", no_wrap=True)
    table.add_column("state", no_wrap=True, min_width=9)
    table.add_column("weight", no_wrap=True, min_width=4 + 1 + BAR_WIDTH)
    for name in ("share", "p50 ms", "p99 ms", "in flight"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        table.add_row(
            f"{line.name} :{line.address.rpartition(':')[2]}",
            Text(line.state.name, STATE_STYLES[line.state.name]),
            _weight(line),
            _percent(line.share),
            _ms(line.p50_ms),
            _ms(line.p99_ms),
            str(line.in_flight),
        )
    return table


def _weight(line: EngineLine) -> Text:
    filled = min(BAR_WIDTH, round(line.weight / BAR_FULL * BAR_WIDTH))
    return Text.assemble(f"{line.weight:4d} ", ("=" * filled, STATE_STYLES[line.state.name]))


def _one_line(text: str, style: str = "") -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


class Happening(NamedTuple):
    """One act of the story and what came of it, for the summary."""

    at_s: float
    what: str
    result: str


def summary(
    outcome: Outcome, rows: Sequence[Row], happenings: Sequence[Happening], target: str
) -> Group:
    """What happened, when it was noticed, and what it did to latency."""
    parts: list[RenderableType] = [Text("\nWhat happened", "bold")]
    for happening in happenings:
        parts.append(Text(f"  {happening.at_s:5.1f} s  {happening.what}"))
        parts.append(Text(f"           -> {happening.result}"))
    parts += [Text(f"\nWhat it did to the requests ({target} is that engine)", "bold")]
    parts += [_phases(rows, target), Text(_totals(outcome))]
    parts += [Text(sentence, "red bold") for sentence in outcome.shortfalls()]
    return Group(*parts)


def _phases(rows: Sequence[Row], target: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("while", no_wrap=True)
    for name in ("requests", f"to {target}", "p50 ms", "p99 ms", "retried", "failed"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row.phase),
            str(row.requests),
            _percent(row.share),
            _ms(row.p50_ms),
            _ms(row.p99_ms),
            str(row.retried),
            str(row.failed),
        )
    return table


def _totals(outcome: Outcome) -> str:
    return (
        f"{outcome.requests} requests, {outcome.retried_requests} of them tried twice, "
        f"{outcome.failed_requests} failed.\n"
        f"{outcome.epochs} times decided, {outcome.updates_per_s:.1f} a second; "
        f"engine metrics came through the {outcome.telemetry}."
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
