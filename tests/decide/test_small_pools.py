"""Pools of two and three under realistic traffic: who may be blamed, by whom, and how soon."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from pipeline.clock import NS_PER_S
from pipeline.model import Observer, State
from tests.decide.world import TICK_S, Fleet

BUSY_S, IDLE_S = 1.06e-3, 0.46e-3  # per token, of one engine under load and with nothing to do


@dataclass
class Traffic:
    """Requests of one endpoint as the request fold counts them: whole seconds, the open one too."""

    fleet: Fleet
    slot: int
    ended: list[tuple[float, bool]] = field(default_factory=list)

    def request(self, *, ok: bool = True) -> None:
        """One that ends now."""
        self.ended.append((self.now_s, ok))

    @property
    def now_s(self) -> float:
        return self.fleet.clock.now().wall_ns / NS_PER_S

    def tick(self) -> None:
        """The next tick, with the windows as they are then."""
        now_s = self.now_s + TICK_S
        for seconds, each in self.fleet.observation.windows.items():
            inside = [ok for at_s, ok in self.ended if int(at_s) > int(now_s) - seconds]
            each.calls[self.slot] = each.failure_calls[self.slot] = len(inside)
            each.duration_n[self.slot] = each.ttft_n[self.slot] = inside.count(True)
            each.failures[self.slot] = inside.count(False)
            if seconds == 1:
                object.__setattr__(each, "seconds", now_s % 1)
        self.fleet.tick()

    def run(self, seconds: float, *, every_s: float = np.inf, ok: bool = True) -> None:
        """Ticks for this long with a request `every_s`."""
        due_s = every_s
        for tick in range(round(seconds / TICK_S)):
            while due_s <= tick * TICK_S:
                self.request(ok=ok)
                due_s += every_s
            self.tick()


def revive(fleet: Fleet, slot: int) -> None:
    """Its process is there again, and the scraper has seen it twice."""
    fleet.observation.refused_recent[slot] = fleet.observation.down_samples[slot] = 0
    fleet.observation.up_samples[slot] = 2


def calls(fleet: Fleet, *per_s: float) -> None:
    for seconds, each in fleet.observation.windows.items():
        for column in (each.calls, each.failure_calls, each.ttft_n, each.duration_n):
            column[: len(per_s)] = np.array(per_s) * seconds


# --- who is a measure for others


def test_an_endpoint_that_has_just_come_back_is_no_measure_for_its_busy_peers() -> None:
    fleet = Fleet((3,), calls_per_s=9)
    fleet.signal("itl_mean_s", IDLE_S)
    fleet.run(20)
    fleet.kill(1)
    fleet.signal("itl_mean_s", [BUSY_S, np.nan, BUSY_S])
    fleet.run(6)
    revive(fleet, 1)
    fleet.run(1.5)
    assert fleet.states()[1] is State.HALF_OPEN
    calls(fleet, 9, 5, 9)
    fleet.signal("itl_mean_s", [BUSY_S, IDLE_S, BUSY_S])
    for _ in range(100):
        fleet.tick()
        assert fleet.states() == [State.HEALTHY] * 3
        assert fleet.weights()[0] == fleet.weights()[2] == 1000
    assert fleet.weights()[1] > 900


@pytest.mark.parametrize("size", [2, 3])
def test_an_endpoint_with_hardly_any_requests_is_no_measure_for_the_others(size: int) -> None:
    fleet = Fleet((size,), calls_per_s=9)
    fleet.signal("itl_mean_s", IDLE_S)
    fleet.run(20)
    calls(fleet, 1, *[9] * (size - 1))
    fleet.signal("itl_mean_s", [IDLE_S, *[BUSY_S] * (size - 1)])
    fleet.run(5)
    assert fleet.states() == [State.HEALTHY] * size
    assert fleet.weights() == [1000] * size


@pytest.mark.parametrize("size", [2, 3])
def test_a_peer_that_becomes_faster_degrades_nobody(size: int) -> None:
    fleet = Fleet((size,), calls_per_s=9)
    fleet.signal("itl_mean_s", BUSY_S)
    fleet.run(20)
    fleet.signal("itl_mean_s", [IDLE_S, *[BUSY_S] * (size - 1)])
    fleet.latency(0, 0.2)
    fleet.run(10)
    assert fleet.states() == [State.HEALTHY] * size
    assert fleet.weights() == [1000] * size


def test_an_endpoint_in_slow_start_is_no_measure_in_a_large_group_either() -> None:
    fleet = Fleet((5,), calls_per_s=9)
    fleet.directory.known[1:4] = False
    fleet.latency(0, 1.0)
    fleet.run(20)
    known = fleet.directory.known.copy()
    known[1:4] = True
    fleet.change_directory(known=known)
    for slot in (1, 2, 3):
        fleet.latency(slot, 0.3)
    fleet.run(9)
    assert fleet.states() == [State.HEALTHY] * 5
    assert fleet.weights()[0] == fleet.weights()[4] == 1000


@pytest.mark.parametrize("size", [2, 3])
def test_what_was_slow_from_the_start_is_found_without_a_past(size: int) -> None:
    fleet = Fleet((size,), calls_per_s=9)
    fleet.latency(0, 4.0)
    fleet.run(6)
    assert fleet.weights()[0] < 100
    assert fleet.weights()[1:] == [1000] * (size - 1)


def test_a_fault_does_not_become_usual_while_it_lasts() -> None:
    fleet = Fleet((3,), calls_per_s=9)
    fleet.run(20)
    fleet.latency(0, 4.0)
    fleet.run(300)
    assert fleet.weights() == [72, 1000, 1000]


# --- how soon


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_five_times_slower_engine_loses_half_its_weight_within_three_and_a_half_seconds(
    size: int,
) -> None:
    fleet = Fleet((size,), calls_per_s=9)
    fleet.signal("itl_mean_s", IDLE_S)
    fleet.run(12)
    for second in range(4):
        # Scraped each second, averaged over five.
        slow_s = IDLE_S * (1 + 4 * (1 - np.exp(-second / 5)))
        fleet.signal("itl_mean_s", [slow_s, *[IDLE_S] * (size - 1)])
        fleet.run(1 if second < 3 else 0.5)
    assert fleet.weights()[0] < 500
    assert fleet.weights()[1:] == [1000] * (size - 1)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_cold_caches_in_the_first_seconds_of_traffic_cost_nothing(size: int) -> None:
    fleet = Fleet((size,), calls_per_s=0)
    fleet.run(30)
    for tenth in range(100):
        calls(fleet, *[min(tenth / 10, 9.0)] * size)
        for each in fleet.observation.windows.values():
            each.ttft_p50_s[:size], each.duration_p50_s[:size] = 0.1, 1.0
        fleet.latency(0, 1 + 4 * np.exp(-tenth / 10))
        fleet.tick()
        assert fleet.states()[0] is State.HEALTHY
        assert fleet.weights()[0] > 900


@pytest.mark.parametrize("samples", [5, 8, 16, 40])
def test_the_fewer_the_samples_the_less_their_median_says(samples: int) -> None:
    fleet = Fleet((4,), calls_per_s=samples / 10)
    fleet.run(5)
    fleet.latency(0, 3.0)
    fleet.run(5)
    excess = 1 + 2 * min(samples, 16) / 16 - 0.25
    assert fleet.weights()[0] == pytest.approx(1000 / max(excess, 1) ** 2, rel=0.06)


# --- what a closed circuit forgets


def test_failures_from_before_the_last_closing_count_no_more() -> None:
    fleet = Fleet((3,), calls_per_s=9)
    calls(fleet, 9, 0, 9)
    fleet.tick()
    traffic = Traffic(fleet, 1)
    traffic.run(5, every_s=0.5)
    fleet.kill(1)
    traffic.run(1, every_s=0.2, ok=False)
    assert fleet.states()[1] is State.OPEN
    traffic.run(1)
    revive(fleet, 1)
    for _ in range(6):
        traffic.run(1, every_s=0.3)
        assert fleet.snapshot is not None
        assert "failed" not in fleet.snapshot.rule[1]
        assert fleet.states()[1] is not State.DEGRADED
    assert fleet.states()[1] is State.HEALTHY
    assert fleet.snapshot is not None
    assert (fleet.snapshot.reason_points[1] > -0.01).all()
    traffic.run(5, every_s=0.3, ok=False)
    assert fleet.states()[1] is State.OPEN, "new ones do"


def test_a_dead_endpoint_is_not_tried_while_its_scrapes_go_on_failing() -> None:
    fleet = Fleet((3,), calls_per_s=9)
    fleet.run(5)
    fleet.kill(1)
    fleet.run(3)
    fleet.observation.refused_recent[1] = 0
    for _ in range(1000):
        # A failed scrape is no sign of life, but it is a scrape.
        fleet.observation.heard_age_s[1] += TICK_S
        fleet.tick()
        assert fleet.states()[1] is State.OPEN


# --- how soon a circuit closes


def half_open() -> tuple[Fleet, Traffic]:
    """A pool whose second endpoint was dead, is up again and has not served yet."""
    fleet = Fleet((3,), calls_per_s=9)
    traffic = Traffic(fleet, 1)
    traffic.run(3, every_s=0.2)
    fleet.kill(1)
    traffic.run(4)
    assert fleet.states()[1] is State.OPEN
    revive(fleet, 1)
    return fleet, traffic


@pytest.mark.parametrize("phase", [0.0, 0.3, 0.7, 0.9])
def test_one_request_every_two_seconds_closes_a_circuit_within_six(phase: float) -> None:
    fleet, traffic = half_open()
    traffic.run(phase)
    for tick in range(60):
        if tick % 20 == 19:
            traffic.request()
        traffic.tick()
        if fleet.states()[1] is State.HEALTHY:
            break
    assert fleet.states()[1] is State.HEALTHY
    assert tick < 45


def test_an_endpoint_that_scrapes_see_up_soon_gets_a_tenth_and_no_more_without_a_request() -> None:
    fleet, traffic = half_open()
    traffic.run(1.5)
    seen = [int(fleet.tick().weight[1])]
    for _ in range(4):
        traffic.run(2)
        seen.append(fleet.weights()[1])
    assert seen == [20, 40, 80, 100, 100]


def test_without_scrapes_three_successes_close_however_they_fall_into_seconds() -> None:
    fleet, traffic = half_open()
    fleet.observation.up_samples[:] = 0
    traffic.run(3)
    assert fleet.states()[1] is State.HALF_OPEN
    for number in range(3):
        assert fleet.states()[1] is State.HALF_OPEN, number
        traffic.run(4.3)
        traffic.request()
    traffic.run(0.2)
    assert fleet.states()[1] is State.HEALTHY


def test_a_failure_anywhere_in_a_second_ends_the_trial() -> None:
    fleet, traffic = half_open()
    fleet.observation.up_samples[:] = 1
    traffic.run(2.05)
    assert fleet.states()[1] is State.HALF_OPEN
    traffic.ended.append((traffic.now_s - 0.9, False))
    traffic.run(0.2)
    assert fleet.states()[1] is State.OPEN


def test_a_token_rate_that_only_decays_is_no_progress_and_one_that_rises_is() -> None:
    fleet, traffic = half_open()
    for second in range(8):
        fleet.signal("output_tokens_per_s", [900.0, 400 * np.exp(-second / 5), 900.0])
        traffic.run(1)
    assert fleet.states()[1] is State.HALF_OPEN
    fleet.signal("output_tokens_per_s", [900.0, 150.0, 900.0])
    traffic.run(0.2)
    assert fleet.states()[1] is State.HEALTHY


def test_a_restarted_engine_proves_itself_by_its_first_tokens() -> None:
    fleet, traffic = half_open()
    for rate in (np.nan, 0.0, 0.0):
        fleet.signal("output_tokens_per_s", [900.0, rate, 900.0])
        traffic.run(1)
    assert fleet.states()[1] is State.HALF_OPEN
    fleet.signal("output_tokens_per_s", [900.0, 10.0, 900.0])
    traffic.run(0.1)
    assert fleet.states()[1] is State.HEALTHY


def test_observers_other_than_the_one_of_failures_do_not_end_a_trial() -> None:
    fleet, traffic = half_open()
    fleet.observation.windows[10].calls_observer[1] = Observer.ENGINE
    fleet.observation.up_samples[:] = 0
    traffic.run(3)
    fleet.observation.windows[10].calls[1] = 50
    fleet.tick()
    assert fleet.states()[1] is State.HALF_OPEN
