"""A batch that goes on as usual is folded in a straight line; one odd point takes the long way."""

from random import Random
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.clock import NS_PER_S, Instant
from pipeline.fold.endpoints import EndpointFold, FoldConfig
from tests.fold.test_endpoints import N, directory
from tests.samples import Explicit, Exponential, Point, rows

ODD: Final = N - 1
"""The slot of the point that makes every other batch unusual."""
BOUNDS: Final = ((0.1, 1.0), (1.0, 2.0, 4.0), (0.5,))


class Series:
    """A series that mostly goes on as it was."""

    def __init__(self, rng: Random, number: int) -> None:
        self.rng = rng
        self.number = number
        self.slot = number % ODD
        self.component = rng.choice(
            ["up", "running", "output_tokens", "ttft", "ttft", "queue_wait", "xid"]
        )
        self.is_histogram = self.component in ("ttft", "queue_wait")
        self.is_exponential = rng.random() < 0.2
        self.begin()

    def begin(self) -> None:
        self.start_s = self.rng.choice([0.0, 900.0, 999.0])
        self.total = 0.0
        self.bounds = self.rng.choice(BOUNDS)
        self.counts = [0.0] * (len(self.bounds) + 1)
        self.scale = self.rng.choice([1.0, 1.0, 1e-3])

    def next(self, time_s: float, is_delta: bool) -> Point:
        """The next point; now and then with a reset, a fall, or other bounds."""
        rng = self.rng
        if rng.random() < 0.03:
            self.begin()
        if rng.random() < 0.03:
            self.counts[0] = self.total = 0.0
        self.total += rng.randrange(5)
        self.counts[rng.randrange(len(self.counts))] += rng.randrange(5)
        point = Point(
            self.component,
            self.total if self.component == "output_tokens" else float(rng.randrange(2)),
            time_s,
            self.start_s,
            self.slot,
            self.number,
            delta=is_delta,
            scale=self.scale,
        )
        if not self.is_histogram:
            return point
        total = float("nan") if rng.random() < 0.05 else sum(self.counts) * 0.7
        histogram: Explicit | Exponential = Explicit(self.bounds, tuple(self.counts), total)
        if self.is_exponential:
            histogram = Exponential(rng.choice([0, 1]), -2, tuple(self.counts), sum=total)
        return Point(
            self.component,
            time_s=time_s,
            start_s=self.start_s,
            slot=self.slot,
            series=self.number,
            delta=is_delta,
            scale=self.scale,
            histogram=histogram,
        )


def story(seed: int) -> list[list[Point]]:
    """Batches of a few series, nearly all of which come each second."""
    rng = Random(seed)
    series = [Series(rng, k) for k in range(rng.randrange(1, 8))]
    batches = []
    time_s = 1000.0
    for _ in range(25):
        time_s += rng.choice([1.0, 1.0, 1.0, 4.0])
        batch = []
        for one in series:
            if rng.random() < 0.03:
                continue
            late_s = rng.choice([0.0] * 30 + [3.0])
            batch.append(one.next(time_s - late_s, is_delta=rng.random() < 0.01))
        if batch and rng.random() < 0.03:
            batch.append(batch[0])
        batches.append(batch or [series[0].next(time_s, is_delta=False)])
    return batches


def told(
    fold: EndpointFold, now: Instant
) -> list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    """Everything that a tick reads, of all slots but the odd one's."""
    signals = fold.signals(now, directory())
    columns = [signals.value, signals.age_s, signals.interval_s, fold.censored]
    columns += [fold.heard_age_s(now), fold.up_samples, fold.down_samples, fold.catching_up(now)]
    return [column[..., :ODD].copy() for column in columns]


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_an_odd_point_of_another_endpoint_changes_nothing_about_the_others(seed: int) -> None:
    plain, disturbed = EndpointFold(FoldConfig()), EndpointFold(FoldConfig())
    for fold in (plain, disturbed):
        fold.resize(N)
    for batch in story(seed):
        time_s = max(point.time_s for point in batch)
        now = Instant(round(time_s * NS_PER_S), round(time_s * NS_PER_S))
        odd = Point("queue", 1.0, time_s, slot=ODD, ended=True)
        left_out = plain.fold(rows(batch), now)
        assert disturbed.fold(rows([*batch, odd]), now) == left_out
        for mine, theirs in zip(told(plain, now), told(disturbed, now), strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("odd", ["ended", "late", "fell", "restarted", "other bounds", "twice"])
def test_one_odd_point_among_many_is_treated_as_it_would_be_alone(odd: str) -> None:
    # The many are of one endpoint, the odd one of another.
    together, apart = EndpointFold(FoldConfig()), EndpointFold(FoldConfig())
    for fold in (together, apart):
        fold.resize(N)
    usual: Final = Explicit((1.0, 2.0), (1.0, 1.0, 1.0), 3.0)
    for second in range(1, 6):
        more = usual._replace(counts=tuple(float(second) for _ in range(3)), sum=3.0 * second)
        time_s = 1000.0 + second
        many = [
            Point("ttft", time_s=time_s, start_s=900.0, histogram=more, series=k) for k in range(4)
        ]
        one = Point("ttft", time_s=time_s, start_s=900.0, slot=1, histogram=more)
        if second == 4:
            one = {
                "ended": Point("ttft", time_s=time_s, slot=1, ended=True),
                "late": Point("ttft", time_s=time_s - 2, start_s=900.0, slot=1, histogram=more),
                "fell": Point("ttft", time_s=time_s, start_s=900.0, slot=1, histogram=usual),
                "restarted": Point("ttft", time_s=time_s, start_s=1003.5, slot=1, histogram=usual),
                "other bounds": Point(
                    *("ttft", float("nan"), time_s, 900.0, 1),
                    histogram=Explicit((1.0, 3.0), more.counts, more.sum),
                ),
                "twice": one,
            }[odd]
        now = Instant(round(time_s * NS_PER_S), round(time_s * NS_PER_S))
        ones = [one, one] if odd == "twice" else [one]
        together_out = dict(together.fold(rows(many + ones), now))
        apart.fold(rows(many), now)
        assert together_out == dict(apart.fold(rows(ones), now))
        for mine, theirs in zip(told(together, now), told(apart, now), strict=True):
            np.testing.assert_array_equal(mine, theirs)
