"""What is read from the labelled sets, and what a folder that cannot be used is told."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import Rejected
from pipeline.evaluate.events import runs
from pipeline.evaluate.sets import SETS, Curve, Episode, read
from tests.evaluate.folders import write_kpi, write_metrics, write_nab, write_sets

KPI_TABLE = {
    "05f10d3a": (60, 149_527, 149_526, 61, 1_311, 63, 996),
    "1c6d7a26": (60, 149_527, 149_526, 57, 1_086, 56, 635),
    "42d6616d": (60, 149_527, 149_526, 75, 1_451, 63, 1_897),
    "431a8542": (60, 131_795, 131_795, 158, 8_223, 192, 3_563),
    "54350a12": (300, 8_928, 8_928, 5, 62, 6, 111),
    "57051487": (60, 131_785, 131_785, 11, 105, 5, 46),
    "6d1114ae": (60, 149_527, 149_526, 29, 367, 53, 761),
    "7103fa0f": (60, 131_790, 131_790, 35, 110, 21, 68),
    "8723f0fb": (60, 149_527, 149_526, 40, 564, 62, 812),
    "a07ac296": (60, 111_365, 111_365, 60, 8_090, 68, 2_260),
    "ab216663": (300, 12_475, 12_475, 12, 182, 14, 358),
    "ba5f3328": (60, 149_527, 149_526, 61, 2_642, 86, 6_801),
}
"""Step, rows of train and test, segments and rows labelled in each."""


def segments(curve: Curve, rows: slice) -> tuple[int, int]:
    label = curve.label[rows]
    return len(runs(label).first), int(label.sum())


def test_the_given_nab_files_have_the_rows_windows_and_labels_of_their_categories(
    given_nab: list[Curve],
) -> None:
    expected = {
        "artificialNoAnomaly": (5, 20_160, 0),
        "artificialWithAnomaly": (6, 24_192, 6),
        "realAdExchange": (6, 9_610, 14),
        "realKnownCause": (7, 69_561, 19),
        "realTraffic": (7, 15_664, 14),
    }
    for category, (files, rows, windows) in expected.items():
        curves = [curve for curve in given_nab if curve.category == category]
        found = (sum(curve.n for curve in curves), sum(len(curve.windows) for curve in curves))
        assert (len(curves), *found) == (files, rows, windows), category
    assert sum(len(curve.instants) for curve in given_nab) == 54
    assert all(curve.label[curve.instants].all() for curve in given_nab)


def test_six_given_nab_files_repeat_time_stamps_and_one_steps_back(given_nab: list[Curve]) -> None:
    repeated = {c.name for c in given_nab if len(np.unique(c.time_s)) < c.n}
    assert len(repeated) == 6
    back = [curve.name for curve in given_nab if (np.diff(curve.time_s) < 0).any()]
    assert [name.rpartition("/")[2] for name in back] == ["machine_temperature_system_failure.csv"]


def test_the_given_kpi_curves_have_the_rows_steps_and_segments_of_their_table(
    given_kpi: list[Curve],
) -> None:
    assert [curve.name.removesuffix(".npz") for curve in given_kpi] == sorted(KPI_TABLE)
    for curve, (step_s, train, test, *labelled) in zip(given_kpi, KPI_TABLE.values(), strict=True):
        assert (curve.step_s, curve.boundary, curve.n) == (step_s, train, train + test)
        before, after = slice(curve.boundary), slice(curve.boundary, None)
        assert [*segments(curve, before), *segments(curve, after)] == labelled
        assert np.unique(np.diff(curve.time_s)).tolist() == [step_s], "test follows train"


def test_the_given_services_and_apps_have_the_shapes_and_segments_of_the_description(
    given_services: list[Curve], given_apps: list[Curve]
) -> None:
    for curves, files, train, test, labelled in (
        (given_services, 10, 5_760, 7_200, (25, 2_152)),
        (given_apps, 6, 8_640, 4_320, (38, 1_065)),
    ):
        assert len(curves) == files
        for curve in curves:
            assert (curve.boundary, *curve.value.shape) == (train, train + test, 19)
            assert np.diff(curve.time_s).tolist() == [300.0] * (curve.n - 1)
        found = np.array([segments(each, slice(each.boundary, None)) for each in curves])
        assert tuple(found.sum(axis=0)) == labelled


def test_every_attribution_line_is_a_labelled_run(given_apps: list[Curve]) -> None:
    sizes = []
    for curve in given_apps:
        first, last = runs(curve.label)
        assert [(each.first, each.last) for each in curve.episodes] == list(
            zip(first.tolist(), last.tolist(), strict=True)
        )
        sizes += [len(each.metrics) for each in curve.episodes]
    assert (len(sizes), min(sizes), max(sizes), np.median(sizes)) == (38, 1, 16, 11.5)
    assert sum(size <= 5 for size in sizes) == 14


def test_any_names_and_any_number_of_files_are_read(tmp_path: Path) -> None:
    write_sets(tmp_path)
    found = {name: read(tmp_path, name) for name in SETS}
    assert {name: [curve.name for curve in curves] for name, curves in found.items()} == {
        "nab": ["one/spike.csv", "two/quiet.csv", "two/spike.csv"],
        "kpi": ["a.npz", "curve-b.npz"],
        "services": ["node-y.npz", "x.npz"],
        "apps": ["node-y.npz", "x.npz"],
    }
    nab = found["nab"][0]
    assert (nab.category, nab.step_s, nab.boundary) == ("one", 300.0, 0)
    assert (nab.windows.tolist(), nab.instants.tolist()) == ([[390, 450]], [400])
    assert np.flatnonzero(nab.label).tolist() == list(range(390, 451))
    kpi = found["kpi"][0]
    assert (kpi.boundary, kpi.n, kpi.is_train_labelled) == (900, 1600, True)
    assert (kpi.time_s[0], kpi.time_s[-1]) == (1.5e9, 1.5e9 + 300 * 1599)
    app = found["apps"][0]
    assert app.episodes == (Episode(700, 704, (1, 2)), Episode(900, 904, (1, 2)))
    assert (app.value.shape, app.time_s[1], app.is_train_labelled) == ((1100, 4), 300.0, False)


def test_a_detector_is_shown_no_name_and_no_label(tmp_path: Path) -> None:
    write_sets(tmp_path)
    for name in SETS:
        for curve in read(tmp_path, name):
            seen = curve.unlabelled()
            assert (seen.name, seen.category, seen.episodes) == ("", "", ())
            assert not seen.label.any()
            assert (len(seen.windows), len(seen.instants), seen.is_train_labelled) == (0, 0, False)
            assert seen.value is curve.value


def test_the_head_of_a_curve_holds_nothing_of_its_later_rows(tmp_path: Path) -> None:
    write_sets(tmp_path)
    nab, app = read(tmp_path, "nab")[0], read(tmp_path, "apps")[0]
    assert (len(nab.head(450).windows), len(nab.head(451).windows)) == (0, 1)
    assert (len(nab.head(400).instants), len(nab.head(401).instants)) == (0, 1)
    assert [len(app.head(n).episodes) for n in (704, 705, 905)] == [0, 1, 2]
    assert [app.head(n).boundary for n in (10, 600, 700)] == [10, 600, 600]
    assert app.head(10).value.shape == (10, 4)


def spoil_kpi(path: Path, **changed: object) -> None:
    with np.load(path) as archive:
        arrays = dict(archive) | changed
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def one_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


def with_nan(n: int) -> object:
    return np.array([np.nan] * n, np.float32)


BROKEN: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "windows absent": ("nab", "windows.json", Path.unlink),
    "windows no JSON": ("nab", "windows.json", lambda path: path.write_text("{")),
    "windows of another shape": ("nab", "windows.json", lambda p: p.write_text('{"a.csv": 1}')),
    "a listed file absent": ("nab", "one/spike.csv", Path.unlink),
    "no header": ("nab", "one/spike.csv", lambda path: rewrite(path, "timestamp", "time")),
    "an empty file": ("nab", "one/spike.csv", lambda path: path.write_text("")),
    "a header alone": ("nab", "one/spike.csv", lambda p: p.write_text("timestamp,value\n")),
    "no number": ("nab", "one/spike.csv", lambda path: rewrite(path, "00:00:00,", "00:00:00,x")),
    "no time": ("nab", "one/spike.csv", lambda path: rewrite(path, "2020-03-01 00:00", "noon")),
    "three cells": ("nab", "one/spike.csv", lambda path: rewrite(path, "00:00:00,", "00:00:00,1,")),
    "no archive": ("kpi", "a.npz", lambda path: path.write_bytes(b"PK not a zip")),
    "one array": ("kpi", "a.npz", one_array),
    "an array left out": ("kpi", "a.npz", lambda path: spoil_kpi(path, test_label=None)),
    "NaN": ("kpi", "a.npz", lambda path: spoil_kpi(path, test=with_nan(700))),
    "too few labels": ("kpi", "a.npz", lambda p: spoil_kpi(p, test_label=np.zeros(3, np.uint8))),
    "labels of 7": ("kpi", "a.npz", lambda p: spoil_kpi(p, test_label=np.full(700, 7))),
    "text": ("kpi", "a.npz", lambda path: spoil_kpi(path, test=np.array(["a"] * 700))),
    "two steps": ("kpi", "a.npz", lambda path: spoil_kpi(path, test_step_s=np.int64(60))),
    "no step": (
        *("kpi", "a.npz"),
        lambda path: spoil_kpi(path, test_step_s=np.int64(0), train_step_s=np.int64(0)),
    ),
    "one dimension": ("services", "x.npz", lambda path: spoil_kpi(path, test=np.zeros(500))),
    "fewer metrics": ("services", "x.npz", lambda p: spoil_kpi(p, test=np.zeros((500, 3)))),
    "attribution absent": ("apps", "x_attribution.txt", Path.unlink),
    "attribution no rows": ("apps", "x_attribution.txt", lambda path: path.write_text("3:1")),
    "attribution beyond": ("apps", "x_attribution.txt", lambda p: p.write_text("490-500:1")),
    "attribution metric 0": ("apps", "x_attribution.txt", lambda p: p.write_text("1-2:0")),
    "attribution metric 5": ("apps", "x_attribution.txt", lambda p: p.write_text("1-2:5")),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_cannot_be_used_is_refused_with_its_path(tmp_path: Path, case: str) -> None:
    name, file, spoil = BROKEN[case]
    write_sets(tmp_path)
    path = tmp_path / name / file
    spoil(path)
    with pytest.raises(Rejected) as refused:
        read(tmp_path, name)
    assert refused.value.description.startswith(f"{path}: ")
    assert refused.value.reason == ("missing" if case.endswith("absent") else "malformed")


def test_a_window_that_is_no_row_names_the_file_and_the_time(tmp_path: Path) -> None:
    write_sets(tmp_path)
    windows = tmp_path / "nab" / "windows.json"
    rewrite(windows, "2020-03-02", "2021-03-02")
    with pytest.raises(Rejected, match=r"one/spike\.csv: no row at 2021-03-02"):
        read(tmp_path, "nab")


def test_a_file_without_an_entry_in_the_windows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nab").mkdir()
    write_nab(tmp_path / "nab")
    (tmp_path / "nab" / "two" / "more.csv").write_text("timestamp,value\n")
    with pytest.raises(Rejected, match=r"more\.csv: no entry"):
        read(tmp_path, "nab")


def test_windows_suffice_where_labels_are_absent(tmp_path: Path) -> None:
    (tmp_path / "nab").mkdir()
    write_nab(tmp_path / "nab")
    (tmp_path / "nab" / "labels.json").unlink()
    assert [len(curve.windows) for curve in read(tmp_path, "nab")] == [1, 0, 1]


def test_absent_empty_and_unknown_sets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="kpi: no such folder"):
        read(tmp_path, "kpi")
    with pytest.raises(Rejected, match="none of nab, kpi, services, apps"):
        read(tmp_path, "petshop")
    (tmp_path / "kpi").mkdir()
    with pytest.raises(Rejected, match="kpi: holds no curve"):
        read(tmp_path, "kpi")
    (tmp_path / "nab").mkdir()
    (tmp_path / "nab" / "windows.json").write_text(json.dumps({}))
    with pytest.raises(Rejected, match="nab: holds no curve"):
        read(tmp_path, "nab")


def test_sets_are_read_alone(tmp_path: Path) -> None:
    write_kpi(tmp_path / "kpi")
    write_metrics(tmp_path / "apps", has_attribution=True)
    assert len(read(tmp_path, "kpi")) == len(read(tmp_path, "apps")) == 2
