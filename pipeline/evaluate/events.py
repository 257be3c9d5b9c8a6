"""Detection of labelled segments: F1 of events, of prompt events, alarms a day, attribution.

Enters: scores and labels of series, float64[n] and bool[n] a series. Leaves: exact counts at one
threshold, or at all of them. The invariant: an alarm is a row above the threshold after at least
`gap_rows` + 1 rows that are not; with `gap_rows` None each row above it is one. Nowhere does a
lucky row count for the rest of its segment (point adjustment). Sweeps live in `sweep.py`.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from pipeline.evaluate.sets import Episode
from pipeline.model import Bools, Floats, Int64s

GAP_ROWS: Final = 12
"""Rows below the threshold within which an alarm stays the same one: an hour at 300 s, as the
published budgets have it."""
DELAY_ROWS: Final = 7
"""Rows behind a segment's first within which an alarm is prompt: the KPI challenge's rule."""
TOP: Final = 3
"""Metrics that an alarm names."""
FEW_METRICS: Final = 5
"""A culprit set up to this size is hard to guess; larger ones are mostly hit at random."""
DAY_S: Final = 86_400.0


class Series(NamedTuple):
    """One part of one curve, n rows."""

    score: Floats  # float64[n], without NaN
    label: Bools  # bool[n]
    step_s: float

    @property
    def days(self) -> float:
        """Observed time, from the first row to the last."""
        return max(len(self.score) - 1, 0) * self.step_s / DAY_S


class Runs(NamedTuple):
    """Stretches of true rows."""

    first: Int64s  # int64[k]
    last: Int64s  # int64[k], included


class Counts(NamedTuple):
    """Hits, false rows and misses; events or rows, as the metric counts."""

    tp: int
    fp: int
    fn: int

    @property
    def f1(self) -> float:
        """2 TP / (2 TP + FP + FN); 0.0 of nothing."""
        return 2 * self.tp / (2 * self.tp + self.fp + self.fn) if any(self) else 0.0


class Alarms(NamedTuple):
    """What a threshold means for whoever is alerted."""

    per_series_day: float
    per_episode: float  # alarms inside a segment that has any; NaN when none has
    median_delay_rows: float  # from a segment's first row to its first alarm; NaN when none has
    episodes: int  # segments with an alarm


def ranked_only(score: Floats) -> Floats:
    """Scores that can be ordered: NaN is never an alarm, and infinity is the largest number."""
    return np.nan_to_num(score, nan=-np.inf, posinf=np.finfo(np.float64).max, neginf=-np.inf)


def runs(mask: Bools) -> Runs:
    """The runs of true rows.

    >>> runs(np.array([True, False, True, True]))
    Runs(first=array([0, 2]), last=array([0, 3]))
    """
    borders = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    return Runs(borders[0::2], borders[1::2] - 1)


def alarm_rows(score: Floats, threshold: float, gap_rows: int | None) -> Int64s:
    """Rows that raise an alarm, ascending.

    >>> score = np.array([0.0, 9.0, 9.0, 0.0, 9.0, 0.0, 0.0, 9.0])
    >>> [alarm_rows(score, 5.0, gap).tolist() for gap in (0, 1, 2, None)]
    [[1, 4, 7], [1, 7], [1], [1, 2, 4, 7]]
    """
    above = np.flatnonzero(score > threshold)
    if gap_rows is None:
        return above
    return above[np.diff(above, prepend=-gap_rows - 2) > gap_rows + 1]


def flags(score: Floats, threshold: float, gap_rows: int | None) -> Bools:
    """The alarm rows as a mask, bool[n]."""
    mask = np.zeros(len(score), np.bool_)
    mask[alarm_rows(score, threshold, gap_rows)] = True
    return mask


def event_counts(label: Bools, flag: Bools) -> Counts:
    """Segments with a flag, flagged rows outside, segments without.

    >>> label, flag = np.array([[0, 0, 1, 1, 1, 0, 0], [0, 1, 0, 0, 1, 0, 0]], bool)
    >>> event_counts(label, flag), round(event_counts(label, flag).f1, 3)
    (Counts(tp=1, fp=1, fn=0), 0.667)
    """
    hit = _hit(runs(label), flag)
    return Counts(int(hit.sum()), int((flag & ~label).sum()), int((~hit).sum()))


def delay_counts(label: Bools, flag: Bools, delay_rows: int = DELAY_ROWS) -> Counts:
    """Rows: all of a segment flagged in its first `delay_rows` + 1 are hits, else all are misses.

    >>> label, flag = np.array([[0, 0, 1, 1, 1, 0, 0], [0, 1, 0, 0, 1, 0, 0]], bool)
    >>> delay_counts(label, flag), delay_counts(label, flag, 1)
    (Counts(tp=3, fp=1, fn=0), Counts(tp=0, fp=1, fn=3))
    """
    segments = runs(label)
    prompt = Runs(segments.first, np.minimum(segments.last, segments.first + delay_rows))
    hit = _hit(prompt, flag)
    rows = segments.last - segments.first + 1
    return Counts(int(rows[hit].sum()), int((flag & ~label).sum()), int(rows[~hit].sum()))


def pooled(counts: Sequence[Counts]) -> Counts:
    """The sum over series."""
    return Counts(*(sum(column) for column in zip(*counts, strict=True)))


def _hit(segments: Runs, flag: Bools) -> Bools:
    before = np.append(0, np.cumsum(flag))
    return before[segments.last + 1] > before[segments.first]


def alarms(series: Sequence[Series], threshold: float, gap_rows: int | None) -> Alarms:
    """How often `threshold` alerts, how often an episode does, and how late."""
    fired, inside = 0, 0
    delays = [np.empty(0, np.int64)]
    for each in series:
        rows = alarm_rows(each.score, threshold, gap_rows)
        segments = runs(each.label)
        start, stop = (
            np.searchsorted(rows, segments.first),
            np.searchsorted(rows, segments.last + 1),
        )
        hit = stop > start
        fired += len(rows)
        inside += int((stop - start).sum())
        delays.append(rows[start[hit]] - segments.first[hit])
    delay = np.concatenate(delays)
    days = sum(each.days for each in series)
    return Alarms(
        per_series_day=fired / days if days else 0.0,
        per_episode=inside / len(delay) if len(delay) else np.nan,
        median_delay_rows=float(np.median(delay)) if len(delay) else np.nan,
        episodes=len(delay),
    )


def attribution_hits(
    episodes: Sequence[Episode], alarm: Int64s, metric: Floats, top: int = TOP
) -> Floats:
    """Of each episode, the share of the top min(`top`, k) metrics that are among its k true ones.

    `alarm` is int64[a], ascending alarm rows; `metric` is float64[n, m], ranked at the first alarm
    inside the episode, ties by column. A missed episode is 0.0. Rows are the episodes' own.
    """
    hits = np.zeros(len(episodes))
    for i, each in enumerate(episodes):
        at = int(np.searchsorted(alarm, each.first))
        if at == len(alarm) or alarm[at] > each.last:
            continue
        ranked = np.argsort(-ranked_only(metric[alarm[at]]), kind="stable")
        named = ranked[: min(top, len(each.metrics))]
        hits[i] = np.isin(named, each.metrics).mean()
    return hits
