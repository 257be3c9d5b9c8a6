"""Curves by hand, for scorers and sweeps."""

from collections.abc import Sequence

import numpy as np

from pipeline.evaluate.sets import Curve, Episode
from pipeline.model import Floats


def curve(
    value: Floats | Sequence[float],
    *,
    windows: Sequence[tuple[int, int]] = (),
    category: str = "a",
    boundary: int = 0,
    label: Sequence[int] = (),
    step_s: float = 300.0,
    episodes: tuple[Episode, ...] = (),
) -> Curve:
    """A curve of one metric, or of several where `value` has two dimensions."""
    values = np.asarray(value, np.float64)
    n = len(values)
    labelled = np.zeros(n, np.bool_)
    labelled[list(label)] = True
    for first, last in windows:
        labelled[first : last + 1] = True
    return Curve(
        name=f"{category}/hand",
        category=category,
        time_s=np.arange(n, dtype=np.float64) * step_s,
        value=values.reshape(n, -1),
        label=labelled,
        boundary=boundary,
        is_train_labelled=boundary > 0,
        step_s=step_s,
        windows=np.array(windows, np.int64).reshape(-1, 2),
        instants=np.empty(0, np.int64),
        episodes=episodes,
    )
