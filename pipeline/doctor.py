"""What is here and how the missing is had; what is wrong with a service that runs."""

import importlib
import importlib.util
import json
import platform
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipeline.decode.columns import DECODER
from pipeline.diagnose import diagnose, fetch, summary

COLLECTOR: Final = Path(".cache/otelcol/otelcol")
NATIVE: Final = "pipeline.decode._native"


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


def why_not_native() -> str:
    """Why the native decoder cannot serve: not built, or what its import says; "" = it can."""
    if importlib.util.find_spec(NATIVE) is None:
        cargo = "here" if shutil.which("cargo") else "missing"
        return f"not built (cargo is {cargo})"
    try:
        importlib.import_module(NATIVE)
    except ImportError as error:
        return f"does not load: {error}"
    return ""


PARTS: Final = (
    Part(
        "native",
        "the decoder in Rust, many times faster than the reference decoder",
        lambda: not why_not_native(),
        "cargo from https://rustup.rs, then make demo or pip install again; -v shows the build",
    ),
    Part("cargo", "builds the native decoder", _command("cargo"), "https://rustup.rs"),
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
        told = {"decoder": DECODER, "why_not_native": why_not_native()}
        print(json.dumps(told | {"parts": found, "unmet": unmet}))
    else:
        _print(found)
        for name in unmet:
            print(f"required and missing: {name}")
    return 1 if unmet else 0


def connect(address: str, *, as_json: bool) -> int:
    """Print what is wrong with the service whose metrics are at `address`; 1 when something is.

    `DependencyLost` when no service answers there.
    """
    page = fetch(address)
    findings = diagnose(page, time.time())
    items = summary(page)
    if as_json:
        told = [finding._asdict() for finding in findings]
        print(json.dumps({"findings": told, "items": items}))
        return 1 if findings else 0
    came = ", ".join(f"{count:,.0f} {signal}" for signal, count in sorted(items.items()))
    print(f"since it started the service at {address} took in: {came or 'nothing'}")
    for finding in findings:
        print(f"- {finding.text}")
    if not findings:
        print("nothing is wrong")
    return 1 if findings else 0


def _decoder() -> str:
    """Which decoder serves, and if it is the slow one, why."""
    if DECODER == "native":
        return f"decoder: {DECODER}"
    why = why_not_native() or "set aside by TAILRACE_DECODER in the environment"
    return f"decoder: {DECODER}; native: {why}"


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
    console.print(escape(_decoder()))
