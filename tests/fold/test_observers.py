from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.clock import NS_PER_S
from pipeline.fold.observers import Chosen, ObserverChoice, Presence, among_telling
from pipeline.model import Bools, Observer
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


PROXY, ENGINE, CLIENT, AGENT = Observer.PROXY, Observer.ENGINE, Observer.CLIENT, Observer.AGENT


def chosen_of(observer: list[int], *present: Sequence[int]) -> Chosen:
    """Whom each endpoint is read from, and who is there."""
    there = np.zeros((len(Observer), len(observer)), np.bool_)
    for slot, observers in enumerate(present):
        there[list(observers), slot] = True
    return Chosen(np.array(observer, np.int8), there, ORDER)


def tells_of(*telling: Sequence[int]) -> Bools:
    """Who tells, endpoint by endpoint."""
    return chosen_of([0] * len(telling), *telling).present


def test_of_who_is_there_the_best_that_tells_is_read_instead_of_one_that_does_not() -> None:
    everyone = list(Observer)
    chosen = chosen_of([ENGINE] * 4, everyone, everyone, [ENGINE, CLIENT], [ENGINE, CLIENT])
    tells = tells_of([ENGINE, PROXY], [CLIENT, PROXY], [CLIENT, PROXY], [PROXY])
    assert among_telling(chosen, tells).tolist() == [ENGINE, PROXY, CLIENT, ENGINE]


def test_where_nobody_is_chosen_nobody_is_read() -> None:
    chosen = chosen_of([-1, ENGINE], [PROXY], [ENGINE, PROXY])
    assert among_telling(chosen, tells_of([PROXY], [PROXY])).tolist() == [-1, PROXY]
    assert among_telling(chosen_of([]), tells_of()).shape == (0,)


@given(st.lists(st.tuples(st.sampled_from([0.0, 30.0, 61.0]), HEARD), max_size=6))
def test_where_everyone_tells_the_choice_is_the_usual_one(
    steps: list[tuple[float, list[int]]],
) -> None:
    presence, choice = choice_of()
    now = START
    everyone = np.ones((len(Observer), SLOTS), np.bool_)
    for wait_s, cells in steps:
        now = now.plus_s(wait_s)
        presence.heard(np.array(cells, np.int64), now)
        chosen = choice.chosen(now)
        np.testing.assert_array_equal(chosen.observer, choice.choose(now))
        is_there = chosen.present.any(axis=0)
        read = among_telling(chosen, everyone)
        np.testing.assert_array_equal(read[is_there], chosen.observer[is_there])
