"""What agents hold after any sequence of snapshots, disconnects and resumes."""

import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.client import View as AgentView
from pipeline.model import Event, State
from pipeline.publish.records import (
    MAX_EVENTS,
    MAX_TOMBSTONES,
    MIN_FULL_A_TICK,
    Board,
    Message,
    Pools,
    Published,
    View,
    canonical,
)
from pipeline.wire import decisions_pb2 as wire
from tests.publish.fleet import Row, decisions, new_board, snapshot

ALL: Pools = frozenset()


def published(board: Board) -> Published:
    assert board.published is not None
    return board.published


def parsed(message: Message) -> wire.Snapshot:
    return wire.Snapshot.FromString(message.data)


def ids(message: Message) -> list[str]:
    return [endpoint.id for endpoint in parsed(message).endpoints]


def sync(agent: AgentView, state: Published, view: View, pools: Pools) -> None:
    """Bring an agent up to date as a watcher would."""
    follows = state.can_follow(agent.instance, agent.epoch)
    message = state.delta(view, pools, agent.epoch) if follows else state.full(view, pools)
    assert agent.apply(parsed(message))


def fresh(state: Published, view: View, pools: Pools) -> AgentView:
    agent = AgentView()
    assert agent.apply(parsed(state.full(view, pools)))
    return agent


def contents(agent: AgentView) -> tuple[object, ...]:
    return agent.instance, agent.epoch, agent.endpoints, agent.pools, agent.unmatched


rows = st.builds(
    Row,
    id=st.just(""),
    pool=st.sampled_from(["a", "b", ""]),
    address=st.sampled_from(["", "10.0.0.1:80", "10.0.0.2:80"]),
    weight=st.sampled_from([1000, 1001]),
    state=st.sampled_from([State.HEALTHY, State.OPEN]),
    admission=st.sampled_from([1.0, 0.5]),
    queue=st.sampled_from([0.0, 1.0, 1.00001]),
    rule=st.sampled_from(["", "r"]),
    member=st.booleans(),
)
slots = st.lists(
    st.none() | st.tuples(st.integers(0, 1), rows),
    min_size=4,
    max_size=4,
)
steps = st.tuples(
    slots,
    st.sampled_from([0.1, 0.1, 1.5, 4_000.0, -5.0]),
    st.sets(st.integers(0, 3)),  # which agents hear of it
    st.sampled_from([False] * 9 + [True]),  # the service was restarted before
    st.integers(0, 2),  # events
)
AGENTS: list[tuple[View, Pools]] = [
    (View.ROUTING, ALL),
    (View.FULL, ALL),
    (View.ROUTING, frozenset({"a"})),
    (View.FULL, frozenset({"b"})),
]


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, min_size=1, max_size=8))
def test_an_agent_that_missed_any_messages_ends_with_the_full_view(
    drawn: list[tuple[list[tuple[int, Row] | None], float, set[int], bool, int]],
) -> None:
    boards = 1
    board = new_board("instance-1")
    agents = [AgentView() for _ in AGENTS]
    time_s = 0.0
    for epoch, (cells, wait_s, hearing, restarted, events) in enumerate(drawn, start=1):
        if restarted:
            boards += 1
            board = new_board(f"instance-{boards}")
        time_s += wait_s
        fleet = [
            cell and replace(cell[1], id=f"slot-{slot}-life-{cell[0]}")
            for slot, cell in enumerate(cells)
        ]
        board.update(
            snapshot(
                fleet,
                epoch=epoch,
                time_s=time_s,
                n=len(fleet),
                events=[Event(epoch, "k", "", "a", str(i)) for i in range(events)],
            )
        )
        everybody = set(range(len(AGENTS))) if epoch == len(drawn) else hearing
        for i in everybody:
            sync(agents[i], published(board), *AGENTS[i])
            expected = fresh(published(board), *AGENTS[i])
            assert contents(agents[i]) == contents(expected)
            assert list(agents[i].events) == list(expected.events)
        targets = {row.id: row.weight for row in fleet if row and row.member and row.address}
        routing = fresh(published(board), View.ROUTING, ALL)
        assert {name: each.weight for name, each in routing.endpoints.items()} == targets


@settings(max_examples=50, deadline=None)
@given(st.lists(slots, min_size=1, max_size=4))
def test_the_full_view_catches_up_with_the_newest_figures_within_a_second(
    drawn: list[list[tuple[int, Row] | None]],
) -> None:
    board = new_board("i")
    for epoch, cells in enumerate(drawn, start=1):
        fleet = [
            cell and replace(cell[1], id=f"slot-{slot}-life-{cell[0]}")
            for slot, cell in enumerate(cells)
        ]
        board.update(snapshot(fleet, epoch=epoch, time_s=epoch * 0.1, n=4))
    last = snapshot(fleet, epoch=len(drawn) + 1, time_s=len(drawn) * 0.1 + 1.0, n=4)
    board.update(last)
    expected = wire.Snapshot.FromString(canonical(last))
    found = parsed(published(board).full(View.FULL))
    assert list(found.endpoints) == list(expected.endpoints)
    assert list(found.unmatched) == list(expected.unmatched)
    assert list(found.pools) == list(expected.pools)


def test_only_changed_records_are_encoded_anew_and_sent() -> None:
    board = new_board("i")
    fleet = [Row(f"e{i}") for i in range(20)]
    board.update(snapshot(fleet, epoch=1))
    before = published(board).views[View.ROUTING].records
    fleet[7] = replace(fleet[7], weight=900)
    board.update(snapshot(fleet, epoch=2, time_s=5.0))
    after = published(board).views[View.ROUTING].records
    assert [i for i in range(20) if after[i] is not before[i]] == [7]
    for view in View:
        assert ids(published(board).delta(view, ALL, 1)) == ["e7"]


def test_an_unchanged_tick_wakes_nobody_and_yields_a_heartbeat() -> None:
    woken: list[int] = []
    board = new_board("i", valid_for_s=9.0)
    board.subscribe(lambda: woken.append(1))
    board.update(snapshot([Row("a")], epoch=5))
    assert len(woken) == 1
    board.update(snapshot([Row("a")], epoch=8, time_s=0.3))
    assert len(woken) == 1
    message = published(board).delta(View.FULL, ALL, 5)
    assert message.kind == "heartbeat"
    assert parsed(message) == wire.Snapshot(
        epoch=8,
        time_unix_ns=published(board).time_ns,
        valid_for_ms=9_000,
        instance="i",
        from_epoch=5,
    )


def test_a_subscriber_that_left_is_not_woken() -> None:
    woken: list[int] = []
    board = new_board("i")

    def wake() -> None:
        woken.append(1)

    board.subscribe(wake)
    board.unsubscribe(wake)
    board.update(snapshot([Row("a")], epoch=1))
    assert woken == []


def test_routing_shows_targets_only_and_full_shows_everybody_known() -> None:
    board = new_board("i")
    fleet = [Row("target"), Row("no-address", address=""), Row("stranger", member=False), None]
    board.update(snapshot(fleet, epoch=1))
    assert ids(published(board).full(View.ROUTING)) == ["target"]
    full = parsed(published(board).full(View.FULL))
    assert [each.id for each in full.endpoints] == ["no-address", "target"]
    assert [each.id for each in full.unmatched] == ["stranger"]
    routing = parsed(published(board).full(View.ROUTING)).endpoints[0]
    assert not routing.reasons
    assert full.endpoints[1].reasons[0].signal == "queue_depth"


def test_endpoints_are_told_in_id_order_whatever_their_slots() -> None:
    board = new_board("i")
    board.update(snapshot([Row("c"), Row("a"), Row("b")], epoch=1))
    assert ids(published(board).full(View.ROUTING)) == ["a", "b", "c"]


def test_a_filtered_view_shows_the_named_pools_only() -> None:
    board = new_board("i")
    board.update(snapshot([Row("a", pool="x"), Row("b", pool="y")], epoch=1))
    message = published(board).full(View.FULL, frozenset({"y", "unknown"}))
    assert ids(message) == ["b"]
    assert [pool.name for pool in parsed(message).pools] == ["y"]


def test_moving_figures_reach_the_full_view_once_a_second_and_states_at_once() -> None:
    board = new_board("i")
    changes: dict[str, list[int]] = {"figures": [], "state": []}
    for epoch in range(1, 32):  # 3 s of ticks every 100 ms
        fleet = [
            Row("figures", queue=float(epoch)),
            Row("state", state=State.OPEN if epoch % 5 == 0 else State.HEALTHY),
        ]
        board.update(snapshot(fleet, epoch=epoch, time_s=epoch * 0.1))
        for name in ids(published(board).delta(View.FULL, ALL, epoch - 1)):
            changes[name].append(epoch)
    assert changes["figures"] == [1, 11, 21, 31]
    assert changes["state"] == sorted({1, *range(5, 32, 5), *range(6, 32, 5)})


def test_a_weight_reaches_the_routing_view_at_once() -> None:
    board = new_board("i")
    for epoch in range(1, 6):
        board.update(snapshot([Row("a", weight=1000 + epoch)], epoch=epoch, time_s=epoch * 0.1))
        message = published(board).delta(View.ROUTING, ALL, epoch - 1)
        assert parsed(message).endpoints[0].weight == 1000 + epoch


def test_a_difference_below_the_published_digits_is_no_change() -> None:
    board = new_board("i")
    board.update(snapshot([Row("a", queue=1.0, confidence=0.5)], epoch=1))
    board.update(snapshot([Row("a", queue=1.00001, confidence=0.501)], epoch=2, time_s=5.0))
    assert published(board).delta(View.FULL, ALL, 1).kind == "heartbeat"


def test_a_fleet_that_moves_all_at_once_is_re_encoded_over_several_ticks() -> None:
    board = new_board("i")
    n = 10 * MIN_FULL_A_TICK

    def fleet(queue: float) -> list[Row]:
        return [Row(f"e{i:04}", queue=queue) for i in range(n)]

    board.update(snapshot(fleet(0.0), epoch=1))
    sizes = []
    for epoch in range(2, 14):
        board.update(snapshot(fleet(1.0), epoch=epoch, time_s=1.0 + epoch * 0.1))
        sizes.append(len(ids(published(board).delta(View.FULL, ALL, epoch - 1))))
    assert sizes[:8] == [n // 8] * 8
    assert sum(sizes) == n


def test_a_wall_clock_set_back_does_not_silence_the_full_view() -> None:
    board = new_board("i")
    board.update(snapshot([Row("a", queue=1.0)], epoch=1, time_s=10_000.0))
    board.update(snapshot([Row("a", queue=2.0)], epoch=2, time_s=0.0))
    assert ids(published(board).delta(View.FULL, ALL, 1)) == ["a"]


@pytest.mark.parametrize(
    ("then", "removed"),
    [
        ([None], ["a"]),
        ([Row("b")], ["a"]),
        ([Row("a", pool="other")], ["a"]),
        ([Row("a", address="")], ["a"]),
        ([Row("a", member=False)], ["a"]),
        ([Row("a", weight=7)], []),
    ],
)
def test_leaving_a_view_or_a_pool_sets_a_tombstone(
    then: list[Row | None], removed: list[str]
) -> None:
    board = new_board("i")
    board.update(snapshot([Row("a")], epoch=1))
    board.update(snapshot(then, epoch=2, pools=decisions(["llama"])))
    message = parsed(published(board).delta(View.ROUTING, frozenset({"llama"}), 1))
    assert [stone.id for stone in message.removed] == removed


def test_tombstones_are_kept_for_an_hour() -> None:
    board = new_board("i")
    board.update(snapshot([Row("a"), Row("b")], epoch=1))
    board.update(snapshot([None, Row("b")], epoch=2, time_s=1.0))
    board.update(snapshot([None, Row("b")], epoch=3, time_s=3_600.0))
    assert published(board).can_follow("i", 1)
    board.update(snapshot([None, Row("b")], epoch=4, time_s=3_602.0))
    assert not published(board).can_follow("i", 1)
    assert published(board).can_follow("i", 2)


def test_tombstones_are_bounded_and_what_they_covered_needs_a_full_snapshot() -> None:
    board = new_board("i")
    half = MAX_TOMBSTONES // 2
    for life in range(4):
        fleet = [Row(f"{life}-{i}") for i in range(half)]
        board.update(snapshot(fleet, epoch=life + 1, time_s=life * 0.1))
    assert len(published(board).views[View.ROUTING].tombstones) == MAX_TOMBSTONES
    assert not published(board).can_follow("i", 1)
    assert published(board).can_follow("i", 2)


def test_another_instance_or_an_epoch_from_the_future_cannot_follow() -> None:
    board = new_board("new")
    board.update(snapshot([Row("a")], epoch=10))
    assert published(board).can_follow("new", 10)
    assert not published(board).can_follow("old", 10)
    assert not published(board).can_follow("new", 11)
    assert not published(board).can_follow("new", 9)


def test_a_pool_that_is_gone_costs_a_full_snapshot_and_a_changed_one_a_record() -> None:
    board = new_board("i")
    fleet = [Row("a")]
    board.update(snapshot(fleet, epoch=1, pools=decisions(["llama", "idle"])))
    changed = (*decisions(["llama"], note="frozen"), *decisions(["idle"]))
    board.update(snapshot(fleet, epoch=2, pools=changed))
    assert [pool.name for pool in parsed(published(board).delta(View.ROUTING, ALL, 1)).pools] == [
        "llama"
    ]
    board.update(snapshot(fleet, epoch=3, pools=decisions(["llama"])))
    assert not published(board).can_follow("i", 2)


def test_the_newest_events_are_kept_and_told_in_the_full_view_only() -> None:
    board = new_board("i")
    for epoch in range(1, 4):
        events = [Event(epoch, "k", "", "llama", f"{epoch}-{i}") for i in range(MAX_EVENTS - 100)]
        board.update(snapshot([Row("a")], epoch=epoch, events=events))
    full = parsed(published(board).full(View.FULL))
    assert len(full.events) == MAX_EVENTS
    assert full.events[-1].text == f"3-{MAX_EVENTS - 101}"
    assert not parsed(published(board).full(View.ROUTING)).events
    assert not parsed(published(board).delta(View.ROUTING, ALL, 1)).events
    assert {
        event.text[0] for event in parsed(published(board).delta(View.FULL, ALL, 2)).events
    } == {"3"}


def test_slots_may_become_more() -> None:
    board = new_board("i")
    board.update(snapshot([Row("a")], epoch=1, n=1))
    board.update(snapshot([Row("a"), None, Row("b")], epoch=2, n=4))
    assert ids(published(board).delta(View.ROUTING, ALL, 1)) == ["b"]


def test_a_state_taken_by_another_thread_stays_whole_while_updates_go_on() -> None:
    board = new_board("i")
    names = [f"e{i:02}" for i in range(50)]
    board.update(snapshot([Row(name, weight=1) for name in names], epoch=1))
    torn: list[set[int]] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            message = parsed(published(board).full(View.ROUTING))
            weights = {endpoint.weight for endpoint in message.endpoints}
            if weights != {message.epoch}:
                torn.append(weights)

    reader = threading.Thread(target=read)
    reader.start()
    for epoch in range(2, 150):
        board.update(snapshot([Row(name, weight=epoch) for name in names], epoch=epoch))
    done.set()
    reader.join()
    assert torn == []


def test_nothing_is_published_before_the_first_update() -> None:
    assert new_board("i").published is None


def test_not_a_number_is_equal_to_itself() -> None:
    board = new_board("i")
    board.update(snapshot([Row("a", queue=float("nan"), score=float("nan"))], epoch=1))
    board.update(snapshot([Row("a", queue=float("nan"), score=float("nan"))], epoch=2, time_s=9.0))
    assert published(board).delta(View.FULL, ALL, 1).kind == "heartbeat"
