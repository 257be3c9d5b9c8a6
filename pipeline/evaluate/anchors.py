"""Published figures and our aims, to stand beside a result on the same part of a set.

Nothing enters. Leaves: rows of a report. Source: reference/detection.md, sections 5, 7 and 9; the
figures of NAB from numenta/NAB (MIT), of the KPI set from NetManAIOps/KPI-Anomaly-Detection (MIT)
and the papers that used it. "unverified" marks what nobody of us has repeated.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from pipeline.evaluate.sets import Curve

GIVEN: Final = "given"
FULL: Final = "full"
OTHER: Final = "other"
ANY: Final = "any"
GIVEN_SIZES: Final = {
    "nab": (31, 139_187),
    "kpi": (12, 2_850_594),
    "services": (10, 129_600),
    "apps": (6, 77_760),
}
"""Curves and rows of the parts that development may see."""
FULL_CURVES: Final = {"nab": 58, "kpi": 29, "services": 30, "apps": 12}
"""Curves of the sets as published."""

RULES: Final = {
    "oracle": "@oracle",
    "each": "@oracle_per_series",
    "b1": "@budget=0.1",
    "b05": "@budget=0.05",
    "b02": "@budget=0.02",
}
"""How thresholds were chosen: short names for the suffixes of a report's metrics."""


class Anchor(NamedTuple):
    """Figures of one published method, or one aim."""

    set: str
    part: str
    config: str
    figures: tuple[tuple[str, float], ...]  # metric and value


def extent(name: str, curves: Sequence[Curve]) -> str:
    """Which part of the set `name` the curves are: figures of another part do not compare.

    >>> extent("kpi", [])
    'other'
    """
    if (len(curves), sum(curve.n for curve in curves)) == GIVEN_SIZES[name]:
        return GIVEN
    return FULL if len(curves) == FULL_CURVES[name] else OTHER


def beside(name: str, part: str) -> list[Anchor]:
    """The published figures for a part of a set, where there are any, and our aims for the set."""
    return [anchor for anchor in ANCHORS if anchor.set == name and anchor.part in (part, ANY)]


def _nab(config: str, standard: float, low_fp: float, low_fn: float) -> Anchor:
    figures = (("standard", standard), ("low_fp", low_fp), ("low_fn", low_fn))
    return Anchor("nab", FULL, f"published: {config}", figures)


def _kpi(config: str, delay7: float, event: float | None = None) -> Anchor:
    figures = (("delay7_f1", delay7), *((("event_f1", event),) if event is not None else ()))
    return Anchor("kpi", FULL, config, figures)


def _given_nab(config: str, standard: float, left_out: float | None = None) -> Anchor:
    more = (("standard@left_out", left_out),) if left_out is not None else ()
    return Anchor("nab", GIVEN, f"published: {config}", (("standard", standard), *more))


def _events(name: str, part: str, config: str, **figures: float) -> Anchor:
    return Anchor(
        name, part, config, tuple((f"event_f1{RULES[key]}", f1) for key, f1 in figures.items())
    )


def _aim(name: str, **figures: float) -> Anchor:
    return Anchor(name, ANY, "aim", tuple(figures.items()))


ANCHORS: Final = (
    _nab("ARTime (leak: file minimum, maximum, length)", 74.9, 65.1, 80.4),
    _nab("Numenta HTM (leak: file minimum, maximum)", 70.1, 63.1, 74.3),
    _nab("CAD OSE (leak: file minimum, maximum)", 69.9, 67.0, 73.2),
    _nab("CAD OSE, range from the probation", 59.5, 51.6, 66.1),
    _nab("comportex", 64.6, 58.8, 69.6),
    _nab("NumentaTM (leak: file minimum, maximum)", 64.6, 56.7, 69.2),
    _nab("earthgecko Skyline", 58.2, 46.2, 63.9),
    _nab("KNN-CAD", 58.0, 43.4, 64.8),
    _nab("Relative Entropy (leak: file minimum, maximum)", 54.6, 47.6, 58.8),
    _nab("Random Cut Forest", 51.7, 38.4, 59.7),
    _nab("ADVec (batch)", 47.1, 33.6, 53.5),
    _nab("Windowed Gaussian (tuned on NAB)", 39.6, 20.9, 47.4),
    _nab("Etsy Skyline", 35.7, 27.1, 44.5),
    _nab("Bayes change point", 17.7, 3.2, 32.2),
    _nab("EXPoSE", 16.4, 3.2, 26.9),
    _given_nab("ARTime (leak: file minimum, maximum, length)", 73.6, 69.6),
    _given_nab("Numenta HTM (leak: file minimum, maximum)", 69.5, 67.8),
    _given_nab("CAD OSE (leak: file minimum, maximum)", 66.1, 64.6),
    _given_nab("Random Cut Forest", 61.3, 59.2),
    _given_nab("Relative Entropy (leak: file minimum, maximum)", 54.1),
    _given_nab("KNN-CAD", 52.5),
    _kpi("rows above, naive: z of x", 0.587, 0.332),
    _kpi("rows above, naive: z of difference", 0.702, 0.444),
    _kpi("rows above, naive: z of second difference", 0.656, 0.407),
    _kpi("rows above, naive: z of seasonal residual", 0.766, 0.445),
    _kpi("rows above, naive: max(difference, seasonal)", 0.742, 0.439),
    _kpi("published, unverified: SPOT", 0.217),
    _kpi("published, unverified: DONUT", 0.347),
    _kpi("published, unverified: DSPOT", 0.521),
    _kpi("published, unverified: SR", 0.622),
    _kpi("published, unverified: SR-CNN", 0.771),
    _kpi("published, unverified: FCVAE", 0.835),
    _events("services", FULL, "naive: level", oracle=0.496, each=0.636, b1=0.484),
    _events("services", FULL, "naive: difference", oracle=0.477, each=0.635, b1=0.475),
    _events(
        "apps", FULL, "naive: difference", oracle=0.515, each=0.672, b1=0.400, b05=0.348, b02=0.233
    ),
    _aim("nab", standard=60.0),
    _aim("kpi", event_f1=0.50, delay7_f1=0.80),
    _aim("services", event_f1=0.65),
    _aim("apps", event_f1=0.55, hit_at_3=0.6),
)
