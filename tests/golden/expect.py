"""Decisions expected of the golden recordings; `python -m tests.golden.expect` renews them.

Weights, states and events are compared exactly, floats to four significant digits. With a folder as
argument, its journal becomes the recording `collector-run` first: real engines scraped by the real
Collector, SDK spans, one server killed (see `tests/e2e/collector_run.py`).
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any, Final

from pipeline.model import Snapshot, State
from pipeline.replay import replay
from pipeline.signals import SIGNALS

HERE: Final = Path(__file__).parent
RECORDINGS: Final = ("collector-run",)


def expectation(recording: str) -> dict[str, Any]:
    """What the recording decides: rows by epoch where anything changed, and all events."""
    rows: list[Any] = []
    events: list[Any] = []
    before: Any = None
    epochs = 0
    for snapshot in replay(HERE / recording):
        epochs += 1
        events += [[snapshot.epoch, e.kind, e.endpoint, e.text] for e in snapshot.events]
        decided = endpoints(snapshot)
        if decided != before:
            rows.append([snapshot.epoch, decided])
        before = decided
    assert before is not None
    return {"epochs": epochs, "events": events, "rows": rows}


def endpoints(snapshot: Snapshot) -> dict[str, Any]:
    """Weight, state, confidence, score and the strongest reason of every endpoint."""
    directory = snapshot.directory
    return {
        directory.id[i]: [
            int(snapshot.weight[i]),
            State(int(snapshot.state[i])).name,
            _short(snapshot.confidence[i]),
            _short(snapshot.score[i]),
            _reason(snapshot, i),
        ]
        for i in directory.slots().tolist()
    }


def _reason(snapshot: Snapshot, slot: int) -> Any:
    signal = int(snapshot.reason_signal[slot, 0])
    if signal < 0:
        return None
    return [SIGNALS[signal], _short(snapshot.reason_points[slot, 0])]


def _short(value: float) -> str:
    return f"{value:.4g}"


def path(recording: str) -> Path:
    """Where the expectation is kept."""
    return HERE / f"{recording}.json"


def write(recording: str) -> None:
    """Renew an expectation, one line a row, so that a change reads well as a diff."""
    found = expectation(recording)
    lines = [f'{{"epochs": {found["epochs"]},', '"events": [']
    lines.append(",\n".join(json.dumps(event) for event in found["events"]))
    lines.append('],\n"rows": [')
    lines.append(",\n".join(json.dumps(row) for row in found["rows"]))
    lines.append("]}")
    path(recording).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        shutil.rmtree(HERE / "collector-run", ignore_errors=True)
        shutil.copytree(sys.argv[1], HERE / "collector-run")
    for name in RECORDINGS:
        write(name)
