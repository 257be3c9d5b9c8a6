"""Detection: samples -> scores of many methods on one scale -> edges.

`border` sanitises, the detectors of `DETECTORS` score, `episodes` makes edges of scores. A detector
is one file and one line here; the contract suite runs over every line. `mahalanobis`, `mix` and
`silence` have inputs of their own and keep the same contract about state.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from pipeline.detect.change_point import ChangePoint
from pipeline.detect.difference import Difference
from pipeline.detect.drift import Drift
from pipeline.detect.level import Level
from pipeline.detect.peaks import PeaksOverThreshold
from pipeline.detect.peers import Peers
from pipeline.detect.protocol import Detector
from pipeline.detect.records import Records
from pipeline.detect.seasonal import Seasonal
from pipeline.detect.second_derivative import SecondDerivative
from pipeline.detect.shape import Shape


class Declared(NamedTuple):
    """What a detector promises at its defaults; the contract suite holds it to that."""

    make: Callable[[], Detector]
    step_samples: int | None
    """A step of 20 sigma in white noise, after 1,000 samples of it, fires within so many; None = a
    step is nothing to it."""
    holds_on_ar1: bool
    """The budget of false alarms holds on an AR(1) process of correlation 0.9 too."""


DETECTORS: Final[Mapping[str, Declared]] = MappingProxyType(
    {
        "second_derivative": Declared(SecondDerivative, 2, True),
        "difference": Declared(Difference, 1, True),
        "level": Declared(Level, 1, True),
        "change_point": Declared(ChangePoint, 10, True),
        "seasonal": Declared(Seasonal, 1, True),
        "drift": Declared(Drift, 48, True),
        "peers": Declared(Peers, 3, True),
        "records": Declared(Records, 1, True),
        "peaks_over_threshold": Declared(PeaksOverThreshold, 1, False),
        "shape": Declared(Shape, None, True),
    }
)
