"""Labelled sets: one `Curve` a file, the four sets as folders of the same form.

Enters: a folder with the sub-folders `nab`, `kpi`, `services`, `apps` (any names and any number of
files). Leaves: curves in order of their names, values as float64. The invariant: all values are
finite; a missing or malformed file is `Rejected` with its path.
"""

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.errors import Rejected
from pipeline.model import Bools, Floats, Int64s

SETS: Final = ("nab", "kpi", "services", "apps")
UNTIMED_STEP_S: Final = 300.0
"""Services and apps have no timestamps: row i is at i * 300 s."""
UNREADABLE: Final = (
    *(OSError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile, zlib.error),
    msgspec.MsgspecError,
)
"""What numpy, zip and JSON raise for a file that is not what its name says."""
T = TypeVar("T")


class Episode(NamedTuple):
    """One labelled segment and the metrics that it is about."""

    first: int  # row of the curve
    last: int  # row of the curve, included
    metrics: tuple[int, ...]  # columns, from 0


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """One file: n rows of m metrics, train and test as one stream."""

    name: str
    """Path below the set's folder, with / between the parts."""
    category: str
    """NAB's folder of files of one kind; "" elsewhere."""
    time_s: Floats
    """float64[n]: seconds since 1970, or since the first row where the file has no time. NAB's are
    local times without a zone, and may repeat or step back."""
    value: Floats
    """float64[n, m]."""
    label: Bools
    """bool[n]: rows inside labelled segments, for NAB inside windows."""
    boundary: int
    """First row of the test part; 0 where there is no train part."""
    is_train_labelled: bool
    """Whether `label` says anything about the rows before `boundary`."""
    step_s: float
    """Seconds between rows: the median for NAB, exact elsewhere; 0.0 of a single row."""
    windows: Int64s
    """NAB: int64[w, 2], first and last row of each window, both included."""
    instants: Int64s
    """NAB: int64[l], the rows of the labels that the windows were made of."""
    episodes: tuple[Episode, ...]
    """Apps: the labelled segments with their metrics."""

    @property
    def n(self) -> int:
        """Rows."""
        return len(self.time_s)

    def head(self, n: int) -> "Curve":
        """The first `n` rows alone, as a live stream has them; everything beyond is cut."""
        return replace(
            self,
            time_s=self.time_s[:n],
            value=self.value[:n],
            label=self.label[:n],
            boundary=min(self.boundary, n),
            windows=self.windows[self.windows[:, 1] < n],
            instants=self.instants[self.instants < n],
            episodes=tuple(each for each in self.episodes if each.last < n),
        )

    def unlabelled(self) -> "Curve":
        """The curve as a detector may see it: no name, no category, no label of any kind."""
        nothing = np.empty(0, np.int64)
        return replace(
            self,
            name="",
            category="",
            label=np.zeros(self.n, np.bool_),
            is_train_labelled=False,
            windows=nothing.reshape(0, 2),
            instants=nothing,
            episodes=(),
        )


def read(folder: Path, name: str) -> list[Curve]:
    """The curves of the set `name` (one of `SETS`) in `folder`/`name`, at least one.

    `Rejected` names the path of a folder or file that is missing or malformed.
    """
    readers = {"nab": _nab, "kpi": _kpi, "services": _services, "apps": _apps}
    if name not in readers:
        raise Rejected("unknown_set", f"{name!r} is none of {', '.join(SETS)}")
    path = folder / name
    if not path.is_dir():
        raise Rejected("missing", f"{path}: no such folder")
    curves = readers[name](path)
    if not curves:
        raise Rejected("missing", f"{path}: holds no curve")
    return curves


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise Rejected("missing", f"{path}: no such file") from None
    except UNREADABLE as error:
        raise Rejected("malformed", f"{path}: {error}") from error


def _json(path: Path, kind: type[T]) -> T:
    with _reading(path):
        return msgspec.json.decode(path.read_bytes(), type=kind)


def _nab(folder: Path) -> list[Curve]:
    windows = _json(folder / "windows.json", dict[str, list[tuple[str, str]]])
    labels = folder / "labels.json"
    instants = _json(labels, dict[str, list[str]]) if labels.exists() else {}
    for path in sorted(folder.rglob("*.csv")):
        if path.relative_to(folder).as_posix() not in windows:
            raise Rejected("malformed", f"{path}: no entry in {folder / 'windows.json'}")
    return [
        _nab_curve(folder / name, name, windows[name], instants.get(name, []))
        for name in sorted(windows)
    ]


def _nab_curve(
    path: Path, name: str, windows: Sequence[tuple[str, str]], instants: Sequence[str]
) -> Curve:
    with _reading(path):
        header, *lines = path.read_text(encoding="utf-8").splitlines()
        if header.strip() != "timestamp,value":
            raise ValueError(f"begins with {header[:40]!r}, not with timestamp,value")
        cells = [line.split(",") for line in lines if line.strip()]
        if not cells or {len(cell) for cell in cells} != {2}:
            raise ValueError("needs two cells a line, and a line")
        time_s = _seconds([cell[0] for cell in cells])
        value = _finite(np.array([float(cell[1]) for cell in cells]), 1)
        bounds = np.array([_row(time_s, text) for pair in windows for text in pair], np.int64)
        rows = np.array([_row(time_s, text) for text in instants], np.int64)
        if (bounds[0::2] > bounds[1::2]).any():
            raise ValueError("a window ends before it begins")
    label = np.zeros(len(value), np.bool_)
    for first, last in bounds.reshape(-1, 2).tolist():
        label[first : last + 1] = True
    return Curve(
        name=name,
        category=name.rpartition("/")[0],
        time_s=time_s,
        value=value[:, None],
        label=label,
        boundary=0,
        is_train_labelled=False,
        step_s=float(np.median(np.diff(time_s))) if len(time_s) > 1 else 0.0,
        windows=bounds.reshape(-1, 2),
        instants=rows,
        episodes=(),
    )


def _seconds(texts: Sequence[str]) -> Floats:
    """`YYYY-MM-DD HH:MM:SS`, with or without a fraction, as seconds since 1970.

    >>> _seconds(["1970-01-02 00:00:01", "1970-01-01 00:00:00.500000"]).tolist()
    [86401.0, 0.5]
    """
    return np.array(texts, "datetime64[us]").astype(np.int64) / 1e6


def _row(time_s: Floats, text: str) -> int:
    """First row with that time stamp."""
    found = np.flatnonzero(time_s == _seconds([text])[0])
    if not found.size:
        raise ValueError(f"no row at {text}")
    return int(found[0])


def _arrays(path: Path, *names: str) -> dict[str, npt.NDArray[Any]]:
    archive = np.load(path, allow_pickle=False)
    if isinstance(archive, np.ndarray):
        raise ValueError("one array, not an archive of named ones")
    with archive:
        return {name: archive[name] for name in names}


def _finite(array: npt.NDArray[Any], dimensions: int) -> Floats:
    if array.ndim != dimensions or array.dtype.kind not in "fiu" or not array.size:
        raise ValueError(f"needs numbers in {dimensions} dimensions, has {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError("holds NaN or infinity")
    return array.astype(np.float64)


def _labels(array: npt.NDArray[Any], n: int) -> Bools:
    if array.shape != (n,) or not np.isin(array, (0, 1)).all():
        raise ValueError(f"needs {n} labels of 0 or 1, has {array.shape}")
    return array.astype(np.bool_)


def _kpi(folder: Path) -> list[Curve]:
    return [_kpi_curve(path) for path in sorted(folder.glob("*.npz"))]


def _kpi_curve(path: Path) -> Curve:
    parts = ("train", "test")
    kinds = ("", "_label", "_start_s", "_step_s")
    with _reading(path):
        arrays = _arrays(path, *(part + kind for part in parts for kind in kinds))
        value = [_finite(arrays[part], 1) for part in parts]
        label = [_labels(arrays[f"{part}_label"], len(arrays[part])) for part in parts]
        start_s = [float(arrays[f"{part}_start_s"].item()) for part in parts]
        step_s = [float(arrays[f"{part}_step_s"].item()) for part in parts]
        if step_s[0] != step_s[1] or step_s[0] <= 0:
            raise ValueError(f"needs one positive step, has {step_s}")
    return Curve(
        name=path.name,
        category="",
        time_s=np.concatenate([start_s[i] + np.arange(len(value[i])) * step_s[i] for i in (0, 1)]),
        value=np.concatenate(value)[:, None],
        label=np.concatenate(label),
        boundary=len(value[0]),
        is_train_labelled=True,
        step_s=step_s[0],
        windows=np.empty((0, 2), np.int64),
        instants=np.empty(0, np.int64),
        episodes=(),
    )


def _services(folder: Path) -> list[Curve]:
    return [_untimed(path) for path in sorted(folder.glob("*.npz"))]


def _untimed(path: Path) -> Curve:
    with _reading(path):
        arrays = _arrays(path, "train", "test", "test_label")
        value = np.concatenate([_finite(arrays["train"], 2), _finite(arrays["test"], 2)])
        label = _labels(arrays["test_label"], len(arrays["test"]))
    boundary = len(arrays["train"])
    return Curve(
        name=path.name,
        category="",
        time_s=np.arange(len(value), dtype=np.float64) * UNTIMED_STEP_S,
        value=value,
        label=np.concatenate([np.zeros(boundary, np.bool_), label]),
        boundary=boundary,
        is_train_labelled=False,
        step_s=UNTIMED_STEP_S,
        windows=np.empty((0, 2), np.int64),
        instants=np.empty(0, np.int64),
        episodes=(),
    )


def _apps(folder: Path) -> list[Curve]:
    return [_attributed(path) for path in sorted(folder.glob("*.npz"))]


def _attributed(path: Path) -> Curve:
    """A curve with the episodes of `<stem>_attribution.txt`: test rows from 0, metrics from 1."""
    curve = _untimed(path)
    beside = path.with_name(f"{path.stem}_attribution.txt")
    with _reading(beside):
        lines = beside.read_text(encoding="utf-8").split()
        episodes = tuple(_episode(line, curve) for line in lines)
    return replace(curve, episodes=episodes)


def _episode(line: str, curve: Curve) -> Episode:
    rows, _, metrics = line.partition(":")
    first, last = (int(row) + curve.boundary for row in rows.split("-"))
    columns = tuple(int(metric) - 1 for metric in metrics.split(","))
    if not curve.boundary <= first <= last < curve.n:
        raise ValueError(f"{line[:40]!r} lies outside the test part")
    if not 0 <= min(columns) <= max(columns) < curve.value.shape[1]:
        raise ValueError(f"{line[:40]!r} names a metric that is not there")
    return Episode(first, last, columns)
