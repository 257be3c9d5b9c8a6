"""What an evaluation found: rows for programs, tables for a person.

Enters: rows of figures. Leaves: one JSON document {"rows": [...]}, or a table of all configurations
and one of everything known about the detector, a set at a time. A metric's suffix says which rule
chose the threshold; `@oracle` ones were chosen on the test labels: upper bounds, never a result.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.evaluate.anchors import beside

HEADLINES: Final[Mapping[str, tuple[str, ...]]] = {
    "nab": ("standard", "low_fp", "low_fn", "standard@left_out", "vus_pr"),
    "kpi": ("event_f1", "delay7_f1", "alarms_per_series_day", "median_delay_rows", "vus_pr"),
    "services": ("event_f1", "alarms_per_series_day", "event_f1@oracle", "vus_pr"),
    "apps": ("event_f1", "alarms_per_series_day", "event_f1@oracle", "hit_at_3", "vus_pr"),
}
"""What the table of all configurations shows."""
NOTES: Final = (
    "plain: threshold from the train part (its labels, or 0.4 alarms/series/day); NAB: best on"
    " the corpus, NAB's own rule",
    "@left_out: threshold of each NAB category from the others; @budget=b: b alarms/series/day on"
    " the train part; @delay7_f1: at that metric's threshold",
    "@oracle, @oracle_per_series: best on the test labels, an upper bound and no result",
    "rows above: each row above the threshold is an alarm, thresholds from a coarse grid, as the"
    " published naive rows were computed; all others: one row an alarm",
)


class Row(msgspec.Struct, frozen=True):
    """One figure."""

    set: str
    metric: str
    value: float | None
    """None where there is nothing to measure."""
    threshold: float | None
    """The score that alarms begin above (NAB: at); None where there is not one, or none alarms."""
    config: str
    """Name of the scorer; `published: ...` and `aim` for what was not measured here."""
    part: str
    """`given`, `full` or `other` part of the set, and the rows of it that count."""


class Report(msgspec.Struct, frozen=True):
    """All figures of one evaluation, the detector's first in each set."""

    rows: list[Row]


def row(
    name: str, metric: str, value: float, config: str, part: str, threshold: float = math.nan
) -> Row:
    """A figure of the set `name`; what is not finite becomes None."""
    return Row(name, metric, _finite(value), _finite(threshold), config, part)


def anchors(name: str, extent: str, rows: str) -> list[Row]:
    """Published figures and aims for a part of the set `name`; `rows` as in `Row.part`."""
    return [
        row(name, metric, value, anchor.config, f"{extent} {rows}")
        for anchor in beside(name, extent)
        for metric, value in anchor.figures
    ]


def encoded(report: Report) -> bytes:
    """The report as one JSON document.

    >>> encoded(Report([row("nab", "standard", 55.2, "x", "given corpus")])).decode()[:48]
    '{"rows":[{"set":"nab","metric":"standard","value'
    """
    return msgspec.json.encode(report)


def show(report: Report, detector: str, console: Console) -> None:
    """Print the report for a person; `detector` is the configuration that it is about."""
    for name in dict.fromkeys(each.set for each in report.rows):
        mine = [each for each in report.rows if each.set == name]
        for table in (_compared(name, mine), _detailed(name, detector, mine)):
            console.print(table)
    for note in NOTES:
        console.print(Text(note, "dim"))


def _compared(name: str, rows: Sequence[Row]) -> RenderableType:
    metrics = HEADLINES[name]
    parts = dict.fromkeys(each.part for each in rows)
    table = _table(f"{name}: {', '.join(parts)}", ("configuration",), metrics)
    for config in dict.fromkeys(each.config for each in rows):
        found = {each.metric: each.value for each in rows if each.config == config}
        if not found.keys() & set(metrics):
            continue
        table.add_row(Text(config), *(_number(found.get(metric)) for metric in metrics))
    return table


def _detailed(name: str, detector: str, rows: Iterable[Row]) -> RenderableType:
    table = _table(f"{name}: {detector}", ("metric",), ("value", "threshold"))
    for each in rows:
        if each.config == detector:
            table.add_row(each.metric, _number(each.value), _number(each.threshold))
    return table


def _table(title: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=Text(title), title_justify="left")
    for name in names:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _number(value: float | None) -> str:
    """Four digits at most; scores are no more exact.

    >>> _number(55.2141), _number(0.46151), _number(None), _number(1234.5)
    ('55.21', '0.4615', '-', '1234')
    """
    if value is None:
        return "-"
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
