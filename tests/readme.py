"""The generated tables of the README; `python -m tests.readme` rewrites them."""

import re
from pathlib import Path
from typing import Final

from pipeline.config import settings
from pipeline.telemetry import Telemetry

README: Final = Path(__file__).parents[1] / "README.md"


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


TABLES: Final = {"settings": settings_table, "metrics": metrics_table}


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
