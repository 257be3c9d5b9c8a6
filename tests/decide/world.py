"""A hand-made fleet: directories and observations that tests change by the field."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipeline.clock import HandClock
from pipeline.decide.config import DecideConfig
from pipeline.decide.decider import Decider
from pipeline.model import (
    Directory,
    Floats,
    Observation,
    Observer,
    PoolConfig,
    RequestWindow,
    Role,
    SignalMatrix,
    Snapshot,
    State,
)
from pipeline.signals import SIGNAL_INDEX, SIGNALS

TICK_S = 0.1
ACT = (PoolConfig(name="*", authority="act"),)


def directory(
    sizes: Sequence[int] = (4,), *, version: int = 1, engine: Sequence[str] | None = None
) -> Directory:
    """Pools of these sizes, named pool-0, pool-1, ...; slots padded to a power of two."""
    used = sum(sizes)
    n = 1 << max(used - 1, 0).bit_length()
    ids = [f"ep-{slot}" if slot < used else "" for slot in range(n)]
    pool = np.full(n, -1, np.int32)
    pool[:used] = np.repeat(np.arange(len(sizes)), sizes)
    known = np.arange(n) < used
    return Directory(
        version=version,
        id=tuple(ids),
        address=tuple(f"10.0.0.{slot}:8000" if slot < used else "" for slot in range(n)),
        node=tuple(f"node-{slot // 2}" if slot < used else "" for slot in range(n)),
        engine=tuple(
            (engine[slot] if engine else "vllm") if slot < used else "" for slot in range(n)
        ),
        zone=("",) * n,
        models=((),) * n,
        pools=tuple(f"pool-{number}" for number in range(len(sizes))),
        pool=pool,
        role=np.full(n, Role.BOTH, np.uint8),
        known=known,
        member=known.copy(),
        draining=np.zeros(n, np.bool_),
    )


def window(n: int, seconds: float, calls: Floats | float = np.nan) -> RequestWindow:
    """A window of `calls` requests per endpoint, all well: 0.1 s to the first token, 1 s in all."""
    number = np.nan_to_num(np.broadcast_to(np.asarray(calls, np.float64), (n,))).copy()
    some = number > 0
    observer = np.where(some, Observer.PROXY, -1).astype(np.int8)
    return RequestWindow(
        seconds=seconds,
        calls=number.copy(),
        failures=np.zeros(n),
        overloads=np.zeros(n),
        failure_calls=number.copy(),
        refused=np.zeros(n),
        prompt_tokens=number * 100,
        output_tokens=number * 50,
        ttft_p50_s=np.where(some, 0.1, np.nan),
        ttft_n=number.copy(),
        duration_p50_s=np.where(some, 1.0, np.nan),
        duration_n=number.copy(),
        calls_observer=observer,
        failures_observer=observer.copy(),
        ttft_observer=observer.copy(),
    )


class Fleet:
    """A decider, its clock and an observation whose arrays tests change in place."""

    def __init__(
        self,
        sizes: Sequence[int] = (4,),
        *,
        config: DecideConfig | None = None,
        pools: tuple[PoolConfig, ...] = ACT,
        calls_per_s: float = 2.0,
        engine: Sequence[str] | None = None,
    ) -> None:
        self.decider = Decider(config or DecideConfig(), pools)
        self.clock = HandClock()
        self.epoch = 0
        self.directory = directory(sizes, engine=engine)
        n = self.directory.n
        self.observation = Observation(
            directory=self.directory,
            signals=SignalMatrix(
                np.full((len(SIGNALS), n), np.nan),
                np.full((len(SIGNALS), n), np.inf),
                np.full((len(SIGNALS), n), 1.0),
            ),
            windows={s: window(n, s, calls_per_s * s) for s in (1, 10, 60)},
            heard_age_s=np.where(self.directory.known, 0.2, np.inf),
            report_interval_s=np.full(n, 1.0),
            down_samples=np.zeros(n, np.int32),
            up_samples=np.full(n, 5, np.int32),
            refused_recent=np.zeros(n),
            catching_up=np.zeros(n, np.bool_),
        )
        self.snapshot: Snapshot | None = None
        self.signal("engine_up", 1.0)

    @property
    def n(self) -> int:
        return self.directory.n

    @property
    def used(self) -> int:
        return int(self.directory.known.sum())

    def signal(self, name: str, value: float | Sequence[float] | Floats) -> None:
        """Set a signal of all endpoints in use, fresh."""
        row = SIGNAL_INDEX[name]
        self.observation.signals.value[row, : self.used] = value
        self.observation.signals.age_s[row, : self.used] = 0.2

    def latency(self, slot: int, factor: float) -> None:
        """Every request of the endpoint takes this many times as long as its peers'."""
        for each in self.observation.windows.values():
            each.ttft_p50_s[slot], each.duration_p50_s[slot] = 0.1 * factor, 1.0 * factor

    def failing(self, slot: int, ratio: float) -> None:
        """This share of the endpoint's requests fails."""
        for each in self.observation.windows.values():
            each.failures[slot] = np.floor(each.failure_calls[slot] * ratio + 1e-9)

    def no_requests(self, *slots: int) -> None:
        """No requests any more in any window of these endpoints."""
        for seconds, each in self.observation.windows.items():
            empty = window(self.n, seconds)
            for name in RequestWindow.__slots__:
                column = getattr(each, name)
                if isinstance(column, np.ndarray):
                    column[list(slots)] = getattr(empty, name)[list(slots)]

    def kill(self, slot: int) -> None:
        """The process is gone: no answers, refused connections, failed scrapes."""
        self.no_requests(slot)
        self.observation.refused_recent[slot] = 4
        self.observation.down_samples[slot] = 2
        self.observation.up_samples[slot] = 0

    def change_directory(self, **columns: object) -> None:
        """A new directory version with these columns replaced."""
        changed = replace(self.directory, version=self.directory.version + 1, **columns)  # type: ignore[arg-type]
        self.directory = changed
        self.observation = replace(self.observation, directory=changed)

    def tick(self, seconds: float = TICK_S, *, silent: Sequence[int] = ()) -> Snapshot:
        """One tick; the `silent` endpoints are not heard (their data grows older)."""
        now = self.clock.advance(seconds)
        self.epoch += 1
        age = self.observation.heard_age_s
        if silent:
            age[list(silent)] += seconds
            self.observation.signals.age_s[:, list(silent)] += seconds
        self.snapshot = self.decider.decide(self.observation, now, self.epoch)
        return self.snapshot

    def run(self, seconds: float, *, silent: Sequence[int] = ()) -> Snapshot:
        """Ticks for this long; returns the last snapshot."""
        snapshot = self.tick(silent=silent)
        for _ in range(round(seconds / TICK_S) - 1):
            snapshot = self.tick(silent=silent)
        return snapshot

    def weights(self) -> list[int]:
        assert self.snapshot is not None
        return [int(weight) for weight in self.snapshot.weight[: self.used]]

    def states(self) -> list[State]:
        assert self.snapshot is not None
        return [State(int(state)) for state in self.snapshot.state[: self.used]]
