"""One detector against the labelled sets, with its controls and what is published beside it.

Enters: a folder of sets, one scorer. Leaves: a `Report`. The invariants: the scorer sees neither
names nor labels, it has one configuration for all sets, and thresholds come from train parts alone:
best on train labels where there are any, else a budget of alarms; NAB's own rule (best on the
corpus) is reported with the transfer between its categories. Source: reference/detection.md,
section 9.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from rich.console import Console

from pipeline.evaluate import events, report
from pipeline.evaluate.anchors import extent
from pipeline.evaluate.events import GAP_ROWS, Counts, Series
from pipeline.evaluate.nab import PROFILES, Corpus
from pipeline.evaluate.naive import CONTROLS
from pipeline.evaluate.report import Report, Row
from pipeline.evaluate.scorer import Scorer, Scores
from pipeline.evaluate.sets import SETS, Curve, read
from pipeline.evaluate.sweep import GRID, budget_threshold, intervals, sweep
from pipeline.evaluate.vus import buffer_rows, vus_pr
from pipeline.model import Floats

BUDGET: Final = 0.4
"""Alarms per series and day on an unlabelled train part, the real ones that it holds included: the
services' test part has 0.10 labelled segments, the apps' 0.42."""
OTHER_BUDGETS: Final = (0.1, 0.05, 0.02)
"""Shown beside it, so that the choice can be judged."""
ROWS_ABOVE: Final = "rows above, "
"""Begins the name of a control whose every row above the threshold is an alarm."""
NAIVE: Final = "naive: "
"""Begins the names of the controls that are published with rows above the threshold as alarms."""
WIDTH: Final = 120
"""Columns of the tables in a pipe."""
Progress = Callable[[str], None]


class Measured(NamedTuple):
    """One scorer's scores on one set, and how its figures are marked."""

    set: str
    curves: Sequence[Curve]
    scores: Sequence[Scores]
    config: str
    part: str
    gap_rows: int | None

    def row(self, metric: str, value: float, threshold: float = np.nan) -> Row:
        """A figure of this scorer."""
        return report.row(self.set, metric, value, self.config, self.part, threshold)

    def train(self) -> list[Series]:
        """The rows before each boundary."""
        return [
            _series(curve, score, slice(curve.boundary))
            for curve, score in zip(self.curves, self.scores, strict=True)
        ]

    def test(self) -> list[Series]:
        """The rows from each boundary on."""
        return [
            _series(curve, score, slice(curve.boundary, None))
            for curve, score in zip(self.curves, self.scores, strict=True)
        ]


def _series(curve: Curve, scores: Scores, rows: slice) -> Series:
    return Series(events.ranked_only(scores.row[rows]), curve.label[rows], curve.step_s)


def main(
    data: Path,
    *,
    as_json: bool,
    make_scorer: Callable[[], Scorer],
    progress: Progress,
    sets: Sequence[str] = SETS,
) -> int:
    """Evaluate a new scorer on `sets` in the folder `data` and print the report; 0 = done.

    `Rejected` names a set, folder or file that cannot be used.
    """
    scorer = make_scorer()
    found = evaluate(data, sets, scorer, progress)
    if as_json:
        sys.stdout.write(report.encoded(found).decode() + "\n")
        return 0
    console = Console(highlight=False)
    report.show(found, scorer.name, console if console.is_terminal else _piped())
    return 0


def _piped() -> Console:
    return Console(highlight=False, width=WIDTH)


def evaluate(
    folder: Path,
    sets: Sequence[str],
    detector: Scorer,
    progress: Progress,
    *,
    gap_rows: int = GAP_ROWS,
) -> Report:
    """Every figure of `detector` and of the controls on each of `sets`, and what is published.

    `gap_rows` rows below a threshold leave an alarm the same one. `progress` takes a line for
    whoever waits.
    """
    rows: list[Row] = []
    for name in sets:
        progress(f"{name}: reading {folder / name}")
        curves = read(folder, name)
        part = f"{extent(name, curves)} {'corpus' if name == 'nab' else 'test'}"
        for scorer in (detector, *CONTROLS[name]):
            progress(f"{name}: {scorer.name}")
            scores = _scored(scorer, curves)
            rows += MEASURES[name](Measured(name, curves, scores, scorer.name, part, gap_rows))
        rows += _guessed(name, curves, part)
        rows += report.anchors(name, *part.split())
    return Report(rows)


def _scored(scorer: Scorer, curves: Sequence[Curve]) -> list[Scores]:
    scores = scorer.scores([curve.unlabelled() for curve in curves])
    for curve, each in zip(curves, scores, strict=True):
        if each.row.shape != (curve.n,) or each.metric.shape != curve.value.shape:
            raise ValueError(f"{scorer.name}: scores of another shape than the curve's")
    return scores


def nab(of: Measured) -> list[Row]:
    """NAB's score for each profile, its transfer between categories, alarms at the standard one."""
    corpus = Corpus(of.curves)
    scores = [each.row for each in of.scores]
    best = {profile: corpus.best(scores, profile) for profile in PROFILES}
    standard = best[PROFILES[0]]
    # An alarm is above a threshold, NAB's detections are at it.
    below = float(np.nextafter(standard.threshold, -np.inf))
    return [
        *(of.row(profile.name, each.value, each.threshold) for profile, each in best.items()),
        *(
            of.row(f"{profile.name}@left_out", corpus.left_out(scores, profile).value)
            for profile in PROFILES
        ),
        of.row("hit_windows", standard.hit_windows, standard.threshold),
        of.row("false_rows", standard.false_rows, standard.threshold),
        *_alarms(of, below),
        _vus(of),
    ]


def kpi(of: Measured) -> list[Row]:
    """Both F1 on the test part at the thresholds that are best on the train labels, and alarms."""
    learnt = intervals(of.train(), of.gap_rows)
    event = sweep(learnt).best().threshold
    prompt = sweep(learnt, events.DELAY_ROWS).best().threshold
    return [
        _event(of, event),
        *_alarms(of, event),
        _prompt(of, prompt),
        *_alarms(of, prompt, "@delay7_f1"),
        *_oracle(of),
        _vus(of),
        *(_rows_above(of) if of.config.startswith(NAIVE) else ()),
    ]


def _rows_above(of: Measured) -> list[Row]:
    rows = of._replace(config=ROWS_ABOVE + of.config, gap_rows=None)
    learnt = intervals(of.train(), None)
    return [
        _event(rows, sweep(learnt).best_of(GRID).threshold),
        _prompt(rows, sweep(learnt, events.DELAY_ROWS).best_of(GRID).threshold),
    ]


def metrics(of: Measured) -> list[Row]:
    """Event-F1 at thresholds that keep a budget on the unlabelled train part, and upper bounds."""
    train = of.train()
    assert of.gap_rows is not None
    rows = []
    for budget, rule in ((BUDGET, ""), *((each, f"@budget={each}") for each in OTHER_BUDGETS)):
        threshold = budget_threshold(train, budget, of.gap_rows)
        rows += [
            _event(of, threshold, rule),
            *_alarms(of, threshold, rule),
            *_attribution(of, threshold, rule),
        ]
        rows += [] if rule else [_prompt(of, threshold)]
    return [*rows, *_oracle(of), _vus(of)]


MEASURES: Final[dict[str, Callable[[Measured], list[Row]]]] = {
    "nab": nab,
    "kpi": kpi,
    "services": metrics,
    "apps": metrics,
}
"""What is measured on each set."""


def _counted(of: Measured, threshold: float, delay_rows: int | None = None) -> Counts:
    found = []
    for each in of.test():
        flag = events.flags(each.score, threshold, of.gap_rows)
        if delay_rows is None:
            found.append(events.event_counts(each.label, flag))
        else:
            found.append(events.delay_counts(each.label, flag, delay_rows))
    return events.pooled(found)


def _event(of: Measured, threshold: float, rule: str = "") -> Row:
    return of.row(f"event_f1{rule}", _counted(of, threshold).f1, threshold)


def _prompt(of: Measured, threshold: float) -> Row:
    return of.row("delay7_f1", _counted(of, threshold, events.DELAY_ROWS).f1, threshold)


def _alarms(of: Measured, threshold: float, rule: str = "") -> list[Row]:
    found = events.alarms(of.test(), threshold, of.gap_rows)
    return [
        of.row(f"alarms_per_series_day{rule}", found.per_series_day, threshold),
        of.row(f"alarms_per_episode{rule}", found.per_episode, threshold),
        of.row(f"median_delay_rows{rule}", found.median_delay_rows, threshold),
    ]


def _oracle(of: Measured) -> list[Row]:
    """Upper bounds: the best threshold on the test labels, and the mean of each series' best."""
    test = of.test()
    whole = intervals(test, of.gap_rows)
    event, prompt = sweep(whole).best(), sweep(whole, events.DELAY_ROWS).best()
    apart = [sweep(intervals([each], of.gap_rows)).best().f1 for each in test if each.label.any()]
    return [
        of.row("event_f1@oracle", event.f1, event.threshold),
        of.row("event_f1@oracle_per_series", _mean(np.array(apart))),
        of.row("delay7_f1@oracle", prompt.f1, prompt.threshold),
        *_attribution(of, event.threshold, "@oracle"),
    ]


def _attribution(of: Measured, threshold: float, rule: str) -> list[Row]:
    """How well the metrics of the episodes are named, where it is known which they are."""
    hits, few = [np.empty(0)], [np.empty(0, np.bool_)]
    for curve, test, scores in zip(of.curves, of.test(), of.scores, strict=True):
        rows = events.alarm_rows(test.score, threshold, of.gap_rows) + curve.boundary
        hits.append(events.attribution_hits(curve.episodes, rows, scores.metric))
        sizes = [len(each.metrics) <= events.FEW_METRICS for each in curve.episodes]
        few.append(np.array(sizes, np.bool_))
    hit, is_few = np.concatenate(hits), np.concatenate(few)
    if not len(hit):
        return []
    return [
        of.row(f"hit_at_3{rule}", float(hit.mean()), threshold),
        of.row(f"hit_at_3_few{rule}", _mean(hit[is_few]), threshold),
    ]


def _guessed(name: str, curves: Sequence[Curve], part: str) -> list[Row]:
    """What naming metrics at random is worth when every episode is found: k of m on average."""
    sizes = [(len(each.metrics), c.value.shape[1]) for c in curves for each in c.episodes]
    if not sizes:
        return []
    config = "control: random ranking, all episodes found"
    share = np.array([true / metrics for true, metrics in sizes])
    few = np.array([true <= events.FEW_METRICS for true, _ in sizes])
    return [
        report.row(name, "hit_at_3", _mean(share), config, part),
        report.row(name, "hit_at_3_few", _mean(share[few]), config, part),
    ]


def _vus(of: Measured) -> Row:
    """Mean over the curves that have a labelled row in their test part."""
    areas = np.array(
        [vus_pr(each.score, each.label, buffer_rows(each.step_s)) for each in of.test()]
    )
    return of.row("vus_pr", _mean(areas[~np.isnan(areas)]))


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else np.nan
