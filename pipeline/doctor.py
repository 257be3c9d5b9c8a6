"""Which real parts and kernel abilities are here, and how the missing ones are had."""

import importlib.util
import json
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipeline.decode.columns import DECODER

COLLECTOR: Final = Path(".cache/otelcol/otelcol")


class Part(NamedTuple):
    """A real part: what it is for, whether it is here, how to get it."""

    name: str
    use: str
    is_here: Callable[[], bool]
    how: str


def _command(*names: str) -> Callable[[], bool]:
    return lambda: all(shutil.which(name) for name in names)


def _module(name: str) -> Callable[[], bool]:
    return lambda: importlib.util.find_spec(name) is not None


def _path(name: str) -> Callable[[], bool]:
    return lambda: Path(name).exists()


PARTS: Final = (
    Part(
        "llama.cpp",
        "real engines for the demo and the end-to-end tests",
        lambda: _module("xllamacpp")() and _module("gguf")(),
        "make demo, or pip install '.[demo]' in a checkout",
    ),
    Part(
        "otel-sdk",
        "real OTLP senders",
        _module("opentelemetry.sdk"),
        "make demo, or pip install '.[demo]' in a checkout",
    ),
    Part(
        "otelcol",
        "the real Collector",
        lambda: COLLECTOR.exists() or shutil.which("otelcol") is not None,
        "make collector in a checkout (needs go; takes minutes once)",
    ),
    Part("go", "builds the Collector", _command("go"), "https://go.dev or your distribution"),
    Part(
        "kernel-btf",
        "eBPF programs that fit this kernel",
        _path("/sys/kernel/btf/vmlinux"),
        "a kernel with CONFIG_DEBUG_INFO_BTF=y",
    ),
    Part(
        "kernel-tracing",
        "uprobes and tracepoints",
        lambda: (
            _path("/sys/kernel/tracing/uprobe_events")()
            or _path("/sys/kernel/debug/tracing/uprobe_events")()
        ),
        "a kernel with CONFIG_UPROBE_EVENTS=y, and tracefs mounted",
    ),
)


def run(require: list[str], *, as_json: bool) -> int:
    """Print every part; 1 when a required one is missing or unknown, else 0."""
    found = {part.name: part.is_here() for part in PARTS}
    wanted = set(found) if "all" in require else set(require)
    unmet = sorted(name for name in wanted if not found.get(name, False))
    if as_json:
        print(json.dumps({"decoder": DECODER, "parts": found, "unmet": unmet}))
    else:
        _print(found)
        for name in unmet:
            print(f"required and missing: {name}")
    return 1 if unmet else 0


def _print(found: dict[str, bool]) -> None:
    table = Table(title=f"Tailrace on Python {platform.python_version()}, {platform.platform()}")
    for title in ("part", "", "what for", "how to get it"):
        table.add_column(title)
    for part in PARTS:
        here = found[part.name]
        table.add_row(
            part.name,
            "[green]here[/]" if here else "[yellow]missing[/]",
            part.use,
            "" if here else escape(part.how),
        )
    console = Console()
    console.print(table)
    console.print(f"decoder: {DECODER}")
