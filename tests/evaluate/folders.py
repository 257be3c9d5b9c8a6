"""A folder of all four sets in small: other names, other lengths, same form as the real ones."""

import json
from pathlib import Path

import numpy as np

from pipeline.model import Floats

DAY_ROWS = 288


def noise(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).normal(10.0, 1.0, shape)


def stamps(n: int, step_s: int = 300) -> list[str]:
    start = np.datetime64("2020-03-01T00:00:00")
    times = start + np.arange(n) * np.timedelta64(step_s, "s")
    return [str(each).replace("T", " ") for each in times]


def write_nab(folder: Path, n: int = 600) -> None:
    """Two categories with one spiked file each, and one file without a window."""
    windows, labels = {}, {}
    for i, name in enumerate(("one/spike.csv", "two/spike.csv", "two/quiet.csv")):
        value, times = noise(i, n), stamps(n)
        has_window = name.endswith("spike.csv")
        if has_window:
            value[400 + 10 * i] += 30.0
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{t},{v}" for t, v in zip(times, value.tolist(), strict=True)]
        path.write_text("\n".join(["timestamp,value", *lines, ""]))
        bounds = [f"{times[390]}.000000", f"{times[450]}.000000"]
        windows[name] = [bounds] if has_window else []
        labels[name] = [times[400 + 10 * i]] if has_window else []
    (folder / "windows.json").write_text(json.dumps(windows))
    (folder / "labels.json").write_text(json.dumps(labels))


def write_kpi(folder: Path, train: int = 900, test: int = 700) -> None:
    """Two curves of 300 s with spikes in both parts."""
    folder.mkdir()
    for i, name in enumerate(("a", "curve-b")):
        value = noise(10 + i, train + test)
        label = np.zeros(train + test, np.uint8)
        for at in (300, 600, 1000, 1300):
            value[at : at + 3] += 25.0
            label[at : at + 3] = 1
        np.savez(
            folder / f"{name}.npz",
            train=value[:train].astype(np.float32),
            test=value[train:].astype(np.float32),
            train_label=label[:train],
            test_label=label[train:],
            train_start_s=np.int64(1_500_000_000),
            test_start_s=np.int64(1_500_000_000 + 300 * train),
            train_step_s=np.int64(300),
            test_step_s=np.int64(300),
        )


def write_metrics(
    folder: Path, *, has_attribution: bool, train: int = 600, test: int = 500
) -> None:
    """Two nodes of four metrics; metrics 2 and 3 (from 1) move in each episode of the test part."""
    folder.mkdir()
    for i, name in enumerate(("x", "node-y")):
        value = noise(20 + i, train + test, 4)
        label = np.zeros(test, np.uint8)
        for at in (100, 300):
            value[train + at : train + at + 5, 1:3] += 40.0
            label[at : at + 5] = 1
        np.savez(
            folder / f"{name}.npz",
            train=value[:train].astype(np.float32),
            test=value[train:].astype(np.float32),
            test_label=label,
        )
        if has_attribution:
            (folder / f"{name}_attribution.txt").write_text("100-104:2,3\n300-304:2,3")


def write_sets(folder: Path) -> Path:
    """All four sets in `folder`."""
    (folder / "nab").mkdir()
    write_nab(folder / "nab")
    write_kpi(folder / "kpi")
    write_metrics(folder / "services", has_attribution=False)
    write_metrics(folder / "apps", has_attribution=True)
    return folder
