"""A whole evaluation on small sets: figures, thresholds from train alone, controls, output."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from pipeline.errors import Rejected
from pipeline.evaluate.anchors import ANCHORS, beside, extent
from pipeline.evaluate.report import HEADLINES, Report, encoded, row, show
from pipeline.evaluate.run import evaluate, main
from pipeline.evaluate.scorer import Scores
from pipeline.evaluate.sets import SETS, Curve
from tests.evaluate.curves import curve
from tests.evaluate.folders import write_metrics, write_sets


def silently(line: str) -> None:
    pass


class Distance:
    """How far each metric is from 10, which all small sets move about."""

    def __init__(self) -> None:
        self.seen: list[Curve] = []

    @property
    def name(self) -> str:
        return "distance from 10"

    def scores(self, curves: Sequence[Curve]) -> list[Scores]:
        self.seen += curves
        found = [np.abs(each.value - 10.0) for each in curves]
        return [Scores(each.max(axis=1), each) for each in found]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="module")
def report(folder: Path) -> Report:
    return evaluate(folder, SETS, Distance(), silently)


def figures(report: Report, name: str, config: str = "distance from 10") -> dict[str, float | None]:
    return {
        each.metric: each.value for each in report.rows if (each.set, each.config) == (name, config)
    }


def test_a_detector_that_sees_every_event_at_once_gets_full_marks(report: Report) -> None:
    nab, kpi = figures(report, "nab"), figures(report, "kpi")
    services, apps = figures(report, "services"), figures(report, "apps")
    assert (nab["hit_windows"], nab["false_rows"]) == (2, 0)
    assert nab["standard"] == nab["low_fp"]
    assert nab["median_delay_rows"] == 15.0, "10 and 20 rows into their windows"
    assert (kpi["event_f1"], kpi["delay7_f1"], kpi["event_f1@oracle"]) == (1.0, 1.0, 1.0)
    assert (kpi["alarms_per_episode"], kpi["median_delay_rows"]) == (1.0, 0.0)
    assert kpi["alarms_per_series_day"] == pytest.approx(4 / (2 * 699 / 288))
    assert services["event_f1@oracle"] == services["event_f1@oracle_per_series"] == 1.0
    assert (apps["hit_at_3"], apps["hit_at_3_few"], apps["hit_at_3@oracle"]) == (1.0, 1.0, 1.0)
    assert "hit_at_3" not in services


def test_all_that_is_promised_is_in_the_report(report: Report) -> None:
    for name in SETS:
        assert set(HEADLINES[name]) <= figures(report, name).keys(), name
    budgets = {"event_f1", "event_f1@budget=0.1", "event_f1@budget=0.02", "event_f1@oracle"}
    assert budgets <= figures(report, "services").keys()
    assert {"standard@left_out", "low_fp@left_out", "low_fn@left_out"} <= figures(
        report, "nab"
    ).keys()


def test_controls_and_aims_stand_beside_every_result(report: Report) -> None:
    for name in SETS:
        configs = {each.config for each in report.rows if each.set == name}
        assert {"control: one-liner", "control: blind", "control: random"} <= configs
        assert any(each.startswith("naive: ") for each in configs)
        random = figures(report, name, "control: random")
        headline = HEADLINES[name][0]
        assert (random[headline] or 0.0) < (figures(report, name)[headline] or 0.0)
    assert "rows above, naive: z of difference" in {each.config for each in report.rows}


def test_ranking_at_random_is_a_control_of_attribution(report: Report) -> None:
    ranked = figures(report, "apps", "control: random ranking, all episodes found")
    assert ranked == {"hit_at_3": 0.5, "hit_at_3_few": 0.5}


def test_the_detector_sees_neither_names_nor_labels(folder: Path) -> None:
    detector = Distance()
    evaluate(folder, SETS, detector, silently)
    assert len(detector.seen) == 9
    assert not any(each.name or each.category or each.label.any() for each in detector.seen)


def test_thresholds_do_not_depend_on_anything_in_the_test_part(
    folder: Path, tmp_path: Path, report: Report
) -> None:
    for name in ("kpi", "services"):
        (tmp_path / name).mkdir()
        for path in sorted((folder / name).glob("*.npz")):
            with np.load(path) as archive:
                arrays = dict(archive)
            arrays["test"] = arrays["test"] * np.float32(3.0)
            arrays["test_label"] = arrays["test_label"][::-1]
            np.savez(tmp_path / name / path.name, **arrays)
    other = evaluate(tmp_path, ("kpi", "services"), Distance(), silently)

    def thresholds(of: Report) -> dict[tuple[str, str], float | None]:
        return {
            (each.set, each.metric): each.threshold
            for each in of.rows
            if each.config == "distance from 10"
            and each.set in ("kpi", "services")
            and "oracle" not in each.metric
        }

    assert thresholds(other) == thresholds(report)


def test_an_evaluation_repeats_bit_for_bit(folder: Path, report: Report) -> None:
    assert encoded(evaluate(folder, SETS, Distance(), silently)) == encoded(report)


def test_a_detector_that_has_never_an_opinion_scores_nothing(folder: Path) -> None:
    class Silent(Distance):
        def scores(self, curves: Sequence[Curve]) -> list[Scores]:
            return [Scores(np.full(c.n, np.nan), np.full(c.value.shape, np.nan)) for c in curves]

    found = evaluate(folder, SETS, Silent(), silently)
    assert figures(found, "nab")["standard"] == 0.0
    assert figures(found, "kpi")["event_f1"] == 0.0
    assert figures(found, "apps")["event_f1"] == figures(found, "apps")["hit_at_3"] == 0.0
    assert figures(found, "kpi")["alarms_per_series_day"] == 0.0
    assert figures(found, "kpi")["median_delay_rows"] is None


def test_scores_of_another_shape_are_refused(folder: Path) -> None:
    class Short(Distance):
        def scores(self, curves: Sequence[Curve]) -> list[Scores]:
            return [Scores(each.row[1:], each.metric) for each in super().scores(curves)]

    with pytest.raises(ValueError, match="another shape"):
        evaluate(folder, ("kpi",), Short(), silently)


def test_one_set_alone_can_be_evaluated_and_progress_is_told(tmp_path: Path) -> None:
    write_metrics(tmp_path / "apps", has_attribution=True)
    told: list[str] = []
    found = evaluate(tmp_path, ("apps",), Distance(), told.append)
    assert {each.set for each in found.rows} == {"apps"}
    assert told[:2] == [f"apps: reading {tmp_path / 'apps'}", "apps: distance from 10"]
    with pytest.raises(Rejected, match="nab: no such folder"):
        evaluate(tmp_path, SETS, Distance(), told.append)


def test_the_command_prints_one_json_document(
    folder: Path, report: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(folder, as_json=True, make_scorer=Distance, progress=silently)
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == 0
    assert printed.keys() == {"rows"}
    assert len(printed["rows"]) == len(report.rows)
    names = {"set", "metric", "value", "threshold", "config", "part"}
    assert all(each.keys() == names for each in printed["rows"])


def test_the_command_prints_tables_for_a_person(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(folder, as_json=False, make_scorer=Distance, progress=silently) == 0
    text = capsys.readouterr().out
    for expected in ("nab: other corpus", "apps: distance from 10", "control: one-liner", "aim"):
        assert expected in text
    assert "upper bound" in text


def test_figures_of_another_part_are_not_shown() -> None:
    console = Console(file=io.StringIO(), width=120)
    show(Report([row("nab", "standard", 55.0, "mine", "other corpus")]), "mine", console)
    assert "published: " not in console.file.getvalue()  # type: ignore[attr-defined]
    assert [each.config for each in beside("nab", "other")] == ["aim"]
    given, full = beside("nab", "given"), beside("nab", "full")
    shared = [each.config for each in given if each in full]
    assert shared == ["aim"]


def test_parts_are_told_by_their_size() -> None:
    few = [curve(np.zeros(10))]
    assert extent("nab", few) == "other"
    assert extent("nab", few * 58) == "full"
    assert extent("apps", [curve(np.zeros(12_960))] * 6) == "given"
    assert extent("apps", [curve(np.zeros(12_961))] * 6) == "other"


def test_published_figures_are_of_known_sets_and_metrics(report: Report) -> None:
    for anchor in ANCHORS:
        known = figures(report, anchor.set).keys()
        assert {metric for metric, _ in anchor.figures} <= known, anchor


def test_what_is_not_finite_is_none_and_the_document_stays_json() -> None:
    one = row("nab", "standard", float("nan"), "x", "given corpus", float("inf"))
    assert (one.value, one.threshold) == (None, None)
    assert json.loads(encoded(Report([one])))["rows"][0]["value"] is None
