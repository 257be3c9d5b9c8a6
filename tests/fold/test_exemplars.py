from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.clock import NS_PER_S
from pipeline.fold.exemplars import UNRANKED, BestTraces

LENGTH, ROWS = 4, 3
OFFER = st.tuples(
    st.integers(0, LENGTH - 1),
    st.integers(0, ROWS - 1),
    st.integers(UNRANKED, 3),
    st.integers(1, 3),
    st.one_of(st.just(np.nan), st.integers(0, 2).map(float)),
    st.tuples(st.integers(0, 2), st.integers(1, 2)),
)
STEPS = st.lists(st.tuples(st.sampled_from([0, 1, 2, 9]), st.lists(OFFER, max_size=8)), max_size=6)
Offer = tuple[int, int, int, int, float, tuple[int, int]]


def traces() -> BestTraces:
    best = BestTraces(LENGTH)
    best.grow(ROWS)
    return best


def offer(best: BestTraces, head: int, offers: list[Offer]) -> None:
    if not offers:
        return
    back, row, rank, at_ns, duration_s, trace = zip(*offers, strict=True)
    best.offer(
        *(head - np.array(back), np.array(row), np.array(rank), np.array(at_ns)),
        *(np.array(duration_s), np.array(trace, np.uint64)),
    )


def seen(best: BestTraces, buckets: int) -> list[Any]:
    """(trace, duration in s or -1, event time) of each row."""
    exemplars = best.window(buckets, np.arange(ROWS))
    halves = exemplars.trace_id.view(np.uint64)
    durations = np.nan_to_num(exemplars.duration_s, nan=-1.0)
    columns = (halves.tolist(), durations.tolist(), exemplars.at_ns.tolist())
    return list(zip(*columns, strict=True))


@given(STEPS, st.integers(1, LENGTH), st.randoms(use_true_random=False))
def test_the_best_of_a_window_is_the_one_that_brute_force_finds_in_any_order(
    steps: list[tuple[int, list[Offer]]], buckets: int, random: Any
) -> None:
    best, shuffled = traces(), traces()
    head = 10
    offered: list[tuple[int, Offer]] = []
    for wait, offers in steps:
        head += wait
        other = list(offers)
        random.shuffle(other)
        for traces_of, part in ((best, offers), (shuffled, other)):
            traces_of.advance(head)
            for low in range(0, len(part), 3):
                offer(traces_of, head, part[low : low + 3])
        offered += [(head - o[0], o) for o in offers]
    expected = []
    for row in range(ROWS):
        ranked = [
            (o[2], o[3], -1.0 if np.isnan(o[4]) else o[4], o[5])
            for bucket, o in offered
            if o[1] == row and o[2] >= 0 and bucket > head - buckets
        ]
        _, at_ns, duration_s, trace = max(ranked, default=(0, 0, -1.0, (0, 0)))
        expected.append((list(trace), duration_s, at_ns))
    assert seen(best, buckets) == expected
    assert seen(shuffled, buckets) == expected


def test_a_trace_goes_with_its_bucket() -> None:
    best = traces()
    best.advance(10)
    offer(best, 10, [(0, 1, 5, 7 * NS_PER_S, 1.5, (3, 4))])
    assert seen(best, 1)[1] == ([3, 4], 1.5, 7 * NS_PER_S)
    best.advance(10 + LENGTH - 1)
    assert seen(best, LENGTH)[1] == ([3, 4], 1.5, 7 * NS_PER_S)
    assert seen(best, LENGTH - 1)[1] == ([0, 0], -1.0, 0)
    best.advance(10 + LENGTH)
    assert seen(best, LENGTH)[1] == ([0, 0], -1.0, 0)


def test_growing_keeps_what_there_is_and_fewer_rows_change_nothing() -> None:
    best = traces()
    offer(best, 0, [(0, 2, 5, 1, 1.0, (3, 4))])
    best.grow(64)
    best.grow(8)
    assert best.window(1, np.array([2, 63])).at_ns.tolist() == [1, 0]
    assert best.nbytes == LENGTH * 64 * 40


def test_trace_ids_come_back_byte_by_byte() -> None:
    best = traces()
    trace = np.arange(16, dtype=np.uint8)
    at = np.zeros(1, np.int64)
    best.offer(at, at, at, at, np.ones(1), trace.view(np.uint64).reshape(1, 2))
    assert best.window(1, at).trace_id.tolist() == [trace.tolist()]
