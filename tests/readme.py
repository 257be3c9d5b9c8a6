"""The generated tables of the README; `python -m tests.readme` rewrites them."""

import json
import re
from pathlib import Path
from typing import Any, Final

from pipeline.config import settings
from pipeline.telemetry import Telemetry

README: Final = Path(__file__).parents[1] / "README.md"
INGEST: Final = Path(__file__).parent / "bench" / "ingest.json"
"""What `tailrace bench ingest --peers --json` printed last; renew it with every figure."""

GIVEN: Final = Path(__file__).parent / "evaluate" / "given.json"
"""What `tailrace evaluate --json` printed last on the parts of the sets that we develop on."""
DETECTION: Final = (
    ("nab", "standard", "NAB, 31 files: standard"),
    ("nab", "low_fp", "NAB: reward low FP"),
    ("nab", "low_fn", "NAB: reward low FN"),
    ("nab", "standard@left_out", "NAB: standard, threshold from other categories"),
    ("kpi", "event_f1", "KPI, 12 curves: event-F1"),
    ("kpi", "delay7_f1", "KPI: delay-7 F1"),
    ("services", "event_f1", "services, 10: event-F1"),
    ("apps", "event_f1", "apps, 6: event-F1"),
    ("apps", "hit_at_3", "apps: hit@3, missed = 0"),
)


def settings_table() -> str:
    """Every setting with its default and its text."""
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for setting in settings():
        default = f"`{setting.default}`" if setting.default != "-" else "-"
        rows.append(f"| `{setting.path}` | {_cell(default)} | {_cell(setting.text)} |")
    return "\n".join(rows)


def metrics_table() -> str:
    """Every own metric with its type, labels and text."""
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    telemetry = Telemetry()
    declared = [each for each in vars(telemetry).values() if hasattr(each, "describe")]
    for metric in declared:
        if metric is telemetry.registry:
            continue
        [family] = metric.describe()
        suffix = "_total" if family.type == "counter" else ""
        labels = ", ".join(metric._labelnames)
        rows.append(
            f"| `{family.name}{suffix}` | {family.type} | {labels} | {family.documentation} |"
        )
    return "\n".join(rows)


def ingest_table() -> str:
    """Items per second and core beside the peers, from the recorded run."""
    run = json.loads(INGEST.read_text(encoding="utf-8"))
    machine, method = run["machine"], run["method"]
    cells: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in run["rows"]:
        keys = ("signal", "level", "batch", "compression", "transport")
        engine = f"{row['engine']} {row['variant']}".strip()
        cells.setdefault(tuple(row[key] for key in keys), {})[engine] = row
    rounds: dict[int, set[int]] = {}
    for row in run["rows"]:
        rounds.setdefault(row["batch"], set()).add(row["rounds"])
    of_each = ", ".join(
        f"{'-'.join(map(str, sorted({min(found), max(found)})))} at {batch:,}"
        for batch, found in sorted(rounds.items())
    )
    lines = [
        f"{machine['date']}, {machine['cpu']}, {machine['cores']} cores, kernel "
        f"{machine['kernel']}, Python {machine['python']}, decoder {machine['decoder']}; medians "
        f"of interleaved rounds ({of_each} items a request) of {method['seconds']:g} s or more; "
        "thousands of items per CPU second, and in brackets Tailrace's multiple of the peer.",
        "",
        "| level, items, a request | Tailrace | Rotel | Rotel, no batching | Collector "
        "| MB | ack p99 ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for (signal, level, batch, compression, transport), engines in cells.items():
        own = engines["tailrace"]
        what = f"{level} {signal}, {batch:,}, {compression}"
        if transport != "grpc":
            what += f", {transport}"
        peers = ("rotel default batching", "rotel no batching", "otelcol")
        others = [
            next((row for name, row in engines.items() if name.startswith(peer)), None)
            for peer in peers
        ]
        figures = " | ".join(_beside(own, other) for other in others)
        served = transport == "grpc" and own["rss_mb"] is not None
        memory_mb = f"{own['rss_mb']:.0f}" if served else "-"
        wait_ms = "-" if own["ack_p99_ms"] is None else f"{own['ack_p99_ms']:.0f}"
        lines.append(f"| {what} | {_thousands(own)} | {figures} | {memory_mb} | {wait_ms} |")
    return "\n".join(lines)


def detection_table() -> str:
    """Accuracy on the labelled sets beside the best control, naive row and published figure."""
    rows = json.loads(GIVEN.read_text(encoding="utf-8"))["rows"]
    lines = [
        "| set and metric | Tailrace | alarms a series and day | best control | best naive "
        "| published | aim |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, metric, label in DETECTION:
        found = {
            row["config"]: row["value"]
            for row in rows
            if (row["set"], row["metric"]) == (name, metric) and row["value"] is not None
        }
        own = found.pop("peaks over threshold")
        alarms = next(
            row["value"]
            for row in rows
            if (row["set"], row["metric"]) == (name, "alarms_per_series_day")
            and row["config"] == "peaks over threshold"
        )
        kinds = ("control: ", "naive: ", "published: ", "aim")
        cells = " | ".join(_best(found, kind) for kind in kinds)
        lines.append(f"| {label} | **{_score(own)}** | {alarms:.2f} | {cells} |")
    return "\n".join(lines)


def _best(found: dict[str, float], kind: str) -> str:
    """The largest figure of a kind of configuration, with its name."""
    of_kind = {name: value for name, value in found.items() if name.startswith(kind)}
    if not of_kind:
        return "-"
    name = max(of_kind, key=lambda each: of_kind[each])
    text = name.removeprefix(kind)
    return f"{_score(of_kind[name])} {text}".strip()


def _score(value: float) -> str:
    return f"{value:.1f}" if value > 1 else f"{value:.3f}"


def _thousands(row: dict[str, Any]) -> str:
    figure = row["items_per_core_s"]
    return f"{figure / 1000:,.0f}" if figure else "no figure"


def _beside(own: dict[str, Any], peer: dict[str, Any] | None) -> str:
    if peer is None:
        return "-"
    if not (own["items_per_core_s"] and peer["items_per_core_s"]):
        return _thousands(peer)
    return f"{_thousands(peer)} ({own['items_per_core_s'] / peer['items_per_core_s']:.1f}x)"


TABLES: Final = {
    "settings": settings_table,
    "metrics": metrics_table,
    "ingest": ingest_table,
    "detection": detection_table,
}


def rewritten(text: str) -> str:
    """The README's text with every table as it should be."""
    for name, table in TABLES.items():
        pattern = re.compile(f"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        assert pattern.search(text), f"no place for {name}"
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        text = pattern.sub(f"{begin}{table()}\n{end}".replace("\\", "\\\\"), text)
    return text


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    README.write_text(rewritten(README.read_text(encoding="utf-8")), encoding="utf-8")
