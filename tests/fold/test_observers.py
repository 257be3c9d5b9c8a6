import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.clock import NS_PER_S
from pipeline.fold.observers import ObserverChoice, Presence
from pipeline.model import Observer
from tests.builders import START

ORDER = (Observer.ENGINE, Observer.AGENT, Observer.PROXY, Observer.CLIENT)
SLOTS = 3
HEARD = st.lists(st.integers(0, SLOTS * len(Observer) - 1), max_size=4)


def choice_of(slots: int = SLOTS) -> tuple[Presence, ObserverChoice]:
    presence = Presence(60 * NS_PER_S)
    choice = ObserverChoice(ORDER, presence)
    presence.resize(slots)
    choice.resize(slots)
    return presence, choice


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 30.0, 61.0]), HEARD), max_size=12))
def test_how_often_one_asks_at_an_instant_changes_nothing(
    steps: list[tuple[float, list[int]]],
) -> None:
    (heard_once, once), (heard_often, often) = choice_of(), choice_of()
    now = START
    for wait_s, cells in steps:
        now = now.plus_s(wait_s)
        for presence in (heard_once, heard_often):
            presence.heard(np.array(cells, np.int64), now)
        first = often.choose(now)
        assert often.choose(now) is first
        np.testing.assert_array_equal(once.choose(now), first)


def test_what_is_heard_between_two_questions_at_one_instant_counts() -> None:
    presence, choice = choice_of()
    assert choice.choose(START).tolist() == [-1, -1, -1]
    presence.heard(np.array([Observer.PROXY]), START)
    assert choice.choose(START).tolist() == [Observer.PROXY, -1, -1]


def test_forgetting_and_growing_are_seen_at_once() -> None:
    presence, choice = choice_of()
    presence.heard(np.array([Observer.PROXY]), START)
    choice.choose(START)
    for part in (choice, presence):
        part.forget(np.array([0], np.int32))
    assert choice.choose(START).tolist() == [-1, -1, -1]
    for part in (choice, presence):
        part.resize(SLOTS + 1)
    assert choice.choose(START).shape == (SLOTS + 1,)


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 30.0, 61.0]), HEARD), max_size=12))
def test_asking_while_nothing_is_heard_gives_what_an_answer_from_scratch_gives(
    steps: list[tuple[float, list[int]]],
) -> None:
    (heard, remembering), (heard_too, from_scratch) = choice_of(), choice_of()
    now = START
    for wait_s, cells in steps:
        now = now.plus_s(wait_s)
        for presence in (heard, heard_too):
            if cells:
                presence.heard(np.array(cells, np.int64), now)
            presence.changes += presence is heard_too
        np.testing.assert_array_equal(remembering.choose(now), from_scratch.choose(now))
