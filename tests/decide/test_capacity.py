"""Learned capacity: what it follows, and what it must not mistake for it."""

import numpy as np
import pytest

from pipeline.decide.capacity import Capacity, hardware_classes
from pipeline.decide.config import CapacityConfig
from pipeline.decide.groups import Groups
from pipeline.model import Floats, Role
from pipeline.signals import SIGNAL_INDEX, SIGNALS
from tests.decide.world import Fleet, directory


class Pool:
    """Capacity of one pool, fed by hand."""

    def __init__(self, n: int = 4, engine: list[str] | None = None, role: Role = Role.BOTH) -> None:
        self.where = directory((n,), engine=engine)
        self.where.role[:] = role
        self.groups = Groups.of_directory(self.where)
        self.classes = hardware_classes(self.where, self.groups)
        self.capacity = Capacity(CapacityConfig())
        self.capacity.resize(self.where.n)

    def learn(self, seconds: int, **signals: list[float]) -> Floats:
        values = np.full((len(SIGNALS), self.where.n), np.nan)
        for name, row in signals.items():
            values[SIGNAL_INDEX[name], : len(row)] = row
        for _ in range(seconds):
            self.capacity.learn(values, self.groups, np.ones(self.where.n))
        return self.capacity.relative(self.groups, self.classes)


def test_nothing_known_is_equal_capacity() -> None:
    pool = Pool()
    np.testing.assert_array_equal(pool.capacity.relative(pool.groups, pool.classes), 1.0)


def test_twice_the_speed_at_equal_load_is_twice_the_capacity() -> None:
    relative = Pool().learn(3000, running=[8.0] * 4, itl_mean_s=[0.01, 0.02, 0.02, 0.02])
    np.testing.assert_allclose(relative, [2, 1, 1, 1], rtol=0.03)


def test_slower_tokens_under_more_load_are_the_same_capacity() -> None:
    running = np.array([2.0, 8.0, 16.0, 24.0])
    pool = Pool()
    pool.learn(600, running=list(running), itl_mean_s=list((running + 8) / 1000))
    relative = pool.learn(600, running=list(running), itl_mean_s=list((running + 8) / 1000))
    np.testing.assert_allclose(relative, 1.0, rtol=0.02)


def test_the_pools_own_half_concurrency_is_found() -> None:
    rng = np.random.default_rng(5)
    pool = Pool()
    for _ in range(300):
        running = rng.uniform(1, 40, 4)
        relative = pool.learn(1, running=list(running), itl_mean_s=list((running + 20) / 1000))
    np.testing.assert_allclose(pool.capacity.decode_rate, 1000, rtol=0.12)
    np.testing.assert_allclose(relative, 1.0, rtol=0.1)


def test_low_traffic_does_not_lower_a_token_rate() -> None:
    pool = Pool()
    pool.learn(600, running=[8.0] * 4, output_tokens_per_s=[400.0] * 4)
    relative = pool.learn(
        600, running=[1.0, 8, 8, 8], output_tokens_per_s=[5.0, 400.0, 400.0, 400.0]
    )
    np.testing.assert_allclose(relative, 1.0, rtol=0.02)


def test_a_full_batch_with_fewer_tokens_lowers_it() -> None:
    pool = Pool()
    pool.learn(600, running=[8.0] * 4, output_tokens_per_s=[400.0] * 4)
    relative = pool.learn(3000, running=[8.0] * 4, output_tokens_per_s=[200.0, 400.0, 400.0, 400.0])
    np.testing.assert_allclose(relative, [0.5, 1, 1, 1], rtol=0.05)


def test_idle_windows_teach_nothing() -> None:
    pool = Pool()
    before = pool.learn(600, running=[8.0] * 4, itl_mean_s=[0.01, 0.02, 0.02, 0.02])
    rates = pool.capacity.decode_rate.copy()
    after = pool.learn(600, running=[0.0] * 4, itl_mean_s=[0.5] * 4, output_tokens_per_s=[0.0] * 4)
    np.testing.assert_array_equal(before, after)
    np.testing.assert_array_equal(rates, pool.capacity.decode_rate)


def test_a_young_endpoint_leans_on_its_hardware_class_not_on_faster_peers() -> None:
    pool = Pool(6, ["vllm"] * 3 + ["llamacpp"] * 3)
    slow = [0.01, 0.01, 0.01, 0.04, 0.04, np.nan]
    relative = pool.learn(2000, running=[8.0] * 6, itl_mean_s=slow)
    np.testing.assert_allclose(relative[5], relative[3], rtol=1e-6)
    assert relative[5] < 0.8
    once = [np.nan] * 5 + [0.001]
    relative = pool.learn(1, running=[8.0] * 6, itl_mean_s=once)
    np.testing.assert_allclose(relative[5], relative[3], rtol=0.1)


def test_prefill_and_decode_are_learned_apart() -> None:
    signals = {
        "running": [8.0] * 4,
        "itl_mean_s": [0.01, 0.02, 0.02, 0.02],
        "prefill_token_s": [0.0002, 0.0002, 0.0001, 0.0002],
    }
    decode = Pool(role=Role.DECODE).learn(3000, **signals)
    prefill = Pool(role=Role.PREFILL).learn(3000, **signals)
    np.testing.assert_allclose(decode, [2, 1, 1, 1], rtol=0.03)
    np.testing.assert_allclose(prefill, [1, 1, 2, 1], rtol=0.03)


@pytest.mark.parametrize("idle", [0, 3])
def test_one_of_four_equal_endpoints_left_idle_returns_to_an_equal_share(idle: int) -> None:
    fleet = Fleet((4,), calls_per_s=5)
    busy = [0.0 if slot == idle else 6.0 for slot in range(4)]

    def load(running: list[float]) -> None:
        fleet.signal("running", running)
        fleet.signal("queue_depth", 0.0)
        fleet.signal("output_tokens_per_s", [value * 40 for value in running])
        fleet.signal("requests_per_s", [value / 2 for value in running])
        fleet.signal("e2e_mean_s", 1.0)
        fleet.signal("itl_mean_s", [0.02 if value else np.nan for value in running])

    load([6.0] * 4)
    fleet.run(10)
    load(busy)
    fleet.no_requests(idle)
    for _ in range(300):
        fleet.tick(1.0)
    assert all(980 <= weight <= 1020 for weight in fleet.weights())
    load([6.0] * 4)
    fleet.run(10)
    assert all(980 <= weight <= 1020 for weight in fleet.weights())


def test_capacity_sets_the_weight_of_mixed_hardware() -> None:
    fleet = Fleet((4,), calls_per_s=0)
    fleet.signal("running", [12.0, 6.0, 6.0, 6.0])
    fleet.signal("itl_mean_s", [0.015, 0.02, 0.02, 0.02])
    for _ in range(600):
        fleet.tick(1.0)
    fast, *others = fleet.weights()
    assert 1700 < fast < 2100
    assert others == [1000] * 3
