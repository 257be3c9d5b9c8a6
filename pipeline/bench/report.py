"""What the benchmarks read from the command line and show: progress, tables, JSON."""

import json
import sys
from collections.abc import Iterable
from typing import Any, Final, TypeVar

from rich.console import Console
from rich.table import Table

from pipeline.bench.ingest import Plan
from pipeline.bench.jobs import Compression
from pipeline.errors import ConfigError

QUICK: Final = {"rounds": 1, "seconds": 2.0, "warm_s": 1.0, "most_batches": 100}
T = TypeVar("T")


def tell(line: str) -> None:
    """Progress, for whoever waits."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(line)


def plan(
    *,
    quick: bool,
    peers: bool,
    rounds: int,
    seconds: float,
    warm_s: float,
    batches: str,
    compressions: str,
    signals: str,
    levels: str,
    connections: int,
    in_flight: int,
) -> Plan:
    """The plan that the options mean; `ConfigError` names the one that means nothing.

    `quick` cuts every choice that was left at its default.
    """
    sizes = counts("--batches", batches)
    kinds: dict[str, Any] = {
        "signals": _choices("--signals", signals, ("spans", "points")),
        "compressions": _choices("--compression", compressions, ("none", "gzip")),
        "levels": _choices("--levels", levels, ("A", "B")),
        "batches": sizes,
    }
    if quick:
        kinds |= QUICK
        kinds["batches"] = (1000,) if len(sizes) == 4 else kinds["batches"]
    else:
        kinds |= {"rounds": rounds, "seconds": seconds, "warm_s": warm_s}
    return Plan(peers=peers, connections=connections, in_flight=in_flight, **kinds)


def counts(option: str, text: str) -> tuple[int, ...]:
    """The numbers above 0 that an option lists; `ConfigError` names it."""
    if not all(each.isdigit() and int(each) for each in _split(text)):
        raise ConfigError(f"{option}: {text!r} is not a list of numbers")
    return tuple(map(int, _split(text)))


def compression(text: str) -> Compression:
    """The one compression that an option names."""
    chosen: tuple[Compression, ...] = _choices("--compression", text, ("none", "gzip"))
    return chosen[0]


def seconds(option: str, text: str) -> list[float]:
    """Positive numbers of seconds, separated by commas."""
    try:
        values = [float(part) for part in _split(text)]
    except ValueError:
        values = []
    if not values or not all(0 < value < float("inf") for value in values):
        raise ConfigError(f"{option}: {text!r} is not a list of seconds")
    return values


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _choices(option: str, text: str, known: tuple[T, ...]) -> tuple[T, ...]:
    chosen = _split(text)
    wrong = [each for each in chosen if each not in known]
    if wrong or not chosen:
        raise ConfigError(f"{option}: {text!r} is not a list of {', '.join(map(str, known))}")
    return tuple(each for each in known if each in chosen)


def dump(document: dict[str, Any]) -> None:
    """The result, for programs: one line."""
    sys.stdout.write(json.dumps(document) + "\n")


def ingest(document: dict[str, Any], *, as_json: bool) -> None:
    """The result of `bench ingest`."""
    if as_json:
        dump(document)
        return
    console = _console()
    console.print(_facts(document["machine"]), soft_wrap=True)
    table = _table(
        "Items acknowledged per second and core",
        ("engine", "what"),
        ("items/s/core", "spread", "MB", "p99 ms", "load cores"),
    )
    for row in document["rows"]:
        what = f"{_cell(row)} {row['transport']}"
        if row["items_per_core_s"] is None:
            table.add_row(_name(row, "engine"), what, "none", "", "", "", "")
            continue
        table.add_row(
            *(_name(row, "engine"), what, _number(row["items_per_core_s"])),
            *(f"{row['spread']:.0%}", _number(row["rss_mb"])),
            *(_number(row["ack_p99_ms"]), _number(row.get("load_cores"))),
        )
    console.print(table)
    if document["ratios"]:
        ratios = _table("Tailrace / peer at the same level", ("peer", "what"), ("ratio",))
        for row in document["ratios"]:
            ratios.add_row(_name(row, "peer"), _cell(row), f"{row['ratio']:.2f}")
        console.print(ratios)
    _remarks(console, document)


def _remarks(console: Console, document: dict[str, Any]) -> None:
    for row in document["rows"]:
        if row["items_per_core_s"] is None:
            text = f"no figure: {_name(row, 'engine')}, {_cell(row)}: {row['why']}"
            console.print(text, soft_wrap=True)
    for each in document["skipped"]:
        console.print(f"skipped: {each['engine']}: {each['why']}", soft_wrap=True)
    for name, text in document["method"].items():
        if isinstance(text, str):
            console.print(f"{name}: {text}", soft_wrap=True)
    for name, text in document["method"]["levels"].items():
        console.print(f"{name}: {text}", soft_wrap=True)


def _name(row: dict[str, Any], key: str) -> str:
    return f"{row[key]} {row['variant']}".strip()


def _cell(row: dict[str, Any]) -> str:
    return f"{row['level']} {row['signal']} {row['batch']:,} {row['compression']}"


def figures(title: str, documents: Iterable[dict[str, Any]], *, as_json: bool) -> None:
    """Results that are names and numbers: a line of JSON each, or a table with a column each."""
    rows = list(documents)
    if as_json:
        for row in rows:
            dump(row)
        return
    console = _console()
    table = _table(title, ("",), tuple(str(i + 1) for i in range(len(rows))))
    table.show_header = len(rows) > 1
    for name in rows[0]:
        if not isinstance(rows[0][name], dict):
            table.add_row(name, *(_number(row[name]) for row in rows))
    console.print(table)
    for name, value in rows[0].items():
        if isinstance(value, dict):
            console.print(f"{name}: {_facts(value)}", soft_wrap=True)


def detectors(document: dict[str, Any], *, as_json: bool) -> None:
    """What each detector costs, a row for a detector and a number of series."""
    if as_json:
        dump(document)
        return
    console = _console()
    title = "Cost of detection, one sample of every series at once"
    columns = ("updates_per_s", "us_per_update", "bytes_per_series")
    table = _table(title, ("detector",), ("series", *columns, "spread"))
    for row in document["rows"]:
        figures = (_number(row[column]) for column in ("series", *columns))
        table.add_row(row["detector"], *figures, f"{row['spread']:.0%}")
    console.print(table)
    console.print(_facts(document["machine"]), soft_wrap=True)


def _console() -> Console:
    """In a pipe as wide as the tables need."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=110)


def _table(title: str, names: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in names:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _facts(facts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _number(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int | float) else str(value)
