"""How far decisions reach receivers, per pool: observe, veto, weigh, act.

Enters: decided weights and states. Leaves: what receivers are told. `veto` only takes endpoints
out, within the cap; `weigh` also lowers weights, by at most `max_shift` of the pool's traffic in
any ten minutes (back towards neutral is always allowed); `act` passes everything.
"""

from collections import deque
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np

from pipeline.clock import NS_PER_S
from pipeline.decide.columns import Blanks, Columns
from pipeline.decide.groups import Groups
from pipeline.model import Authority, Bools, Bytes, Directory, Floats, Int64s, PoolConfig, State

NEUTRAL = 1000.0
SHIFT_MEMORY_NS = 600 * NS_PER_S  # `max_shift` is a bound on any ten minutes
BUCKET_NS = 10 * NS_PER_S  # shifts are added up by the bucket; a bucket lives a little longer
HALVINGS = 30  # the allowed step is found to a billionth


class Told(NamedTuple):
    """What receivers are told before overrides. Arrays are per slot."""

    weight: Floats
    state: Bytes


class PoolConfigs:
    """The configuration of each pool, by name; "*" holds the defaults of the others."""

    def __init__(self, pools: tuple[PoolConfig, ...]) -> None:
        """A later entry of the same name wins."""
        self._by_name = {pool.name: pool for pool in pools}
        self._default = self._by_name.get("*", PoolConfig(name="*"))
        self.profiles = {self._default.profile} | {pool.profile for pool in pools}
        """All that may be asked for."""
        self._names: tuple[str, ...] = ()
        self._levels = np.zeros(1, np.int64)

    def of(self, name: str) -> PoolConfig:
        """The pool's own entry, else the defaults."""
        return self._by_name.get(name, self._default)

    def authority(self, name: str) -> Authority:
        """How far decisions about this pool reach."""
        return Authority[self.of(name).authority.upper()]

    def levels(self, names: tuple[str, ...]) -> Int64s:
        """The authority of each pool, int64[pools + 1]; the last is for no pool."""
        if names is not self._names:
            self._levels = np.array([*map(self.authority, names), Authority.OBSERVE], np.int64)
            self._names = names
        return self._levels


class AuthorityGate(Columns):
    """Applies the authority of each pool and remembers how much traffic `weigh` has moved."""

    BLANK: ClassVar[Blanks] = {"weighed": ("float64", NEUTRAL)}
    weighed: Floats

    def __init__(self, pools: PoolConfigs, cap_share: float) -> None:
        """`cap_share` bounds what `veto` takes out of a group."""
        super().__init__()
        self.pools = pools
        self._cap_share = cap_share
        self._shifts: dict[str, deque[tuple[int, float]]] = {}

    def tell(
        self,
        weight: Floats,
        state: Bytes,
        directory: Directory,
        groups: Groups,
        now_ns: int,
    ) -> Told:
        """Apply authority to decided weights (float64[n]) and states."""
        level = self.pools.levels(directory.pools)[directory.pool]
        if (level == Authority.ACT).all():
            return Told(weight, state)
        if not level.any():
            shown = np.full(len(weight), State.HEALTHY, np.uint8)
            return Told(np.full(len(weight), NEUTRAL), shown)
        acts = level == Authority.ACT
        out = self._vetoed(state, weight, groups) & (level >= Authority.VETO)
        if (level == Authority.WEIGH).any():
            self._weigh(weight, state, out, directory, groups, now_ns)
        told = np.where(level == Authority.WEIGH, self.weighed, NEUTRAL)
        told = np.where(acts, weight, np.where(out, 0.0, told))
        shown = np.where(acts | out, state, np.uint8(State.HEALTHY)).astype(np.uint8)
        return Told(told, shown)

    def _vetoed(self, state: Bytes, weight: Floats, groups: Groups) -> Bools:
        """Whom a veto takes out: draining ones first, then by slot, as far as the cap goes."""
        wants = (
            ((state == State.OPEN) | (state == State.DRAINING)) & (weight == 0) & (groups.of >= 0)
        )
        slots = np.flatnonzero(wants)
        out = np.zeros(len(state), np.bool_)
        if not len(slots):
            return out
        cap = np.maximum(1, np.floor(groups.sizes * self._cap_share + 1e-9)).astype(np.int64)
        room = np.where(groups.sizes > 1, cap, 0)
        order = slots[np.lexsort((slots, state[slots] == State.OPEN, groups.of[slots]))]
        group = groups.of[order]
        place = np.arange(len(order)) - np.searchsorted(group, group)
        out[order] = place < room[group]
        return out

    def _weigh(
        self,
        weight: Floats,
        state: Bytes,
        out: Bools,
        directory: Directory,
        groups: Groups,
        now_ns: int,
    ) -> None:
        pools = np.unique(directory.pool[groups.slots])
        for pool in pools.tolist():
            config = self.pools.of(directory.pools[pool])
            if config.authority != "weigh":
                continue
            slots = groups.slots[(directory.pool[groups.slots] == pool)]
            slots = np.sort(slots[directory.member[slots] & ~out[slots]])
            target = np.minimum(weight[slots], NEUTRAL)
            # What is open beyond the veto's cap keeps its place; its zero is not a weight.
            target = np.where(weight[slots] <= 0, self.weighed[slots], target)
            # A trial after a veto brings traffic back: its small share is no lowering.
            trial = state[slots] == State.HALF_OPEN
            self.weighed[slots[trial]] = target[trial]
            shifts = self._recent(directory.pools[pool], now_ns)
            budget = config.max_shift - sum(shift for _, shift in shifts)
            raised = np.maximum(self.weighed[slots], target)
            lowered, shift = lower(raised, target, max(budget, 0.0))
            self.weighed[slots] = lowered
            if shift > 0:
                _add(shifts, now_ns, shift)

    def _recent(self, pool: str, now_ns: int) -> deque[tuple[int, float]]:
        shifts = self._shifts.setdefault(pool, deque())
        while shifts and now_ns - shifts[0][0] >= SHIFT_MEMORY_NS + BUCKET_NS:
            shifts.popleft()
        return shifts

    def export_shifts(self) -> dict[str, list[list[float]]]:
        """Traffic moved lately, per pool: [time in elapsed ns, share]."""
        return {
            pool: [[at, shift] for at, shift in shifts] for pool, shifts in self._shifts.items()
        }

    def restore_shifts(self, shifts: Mapping[str, list[list[float]]]) -> None:
        """Take back what `export_shifts` gave."""
        for pool, rows in shifts.items():
            self._shifts[pool] = deque((int(at), float(shift)) for at, shift in rows)


def lower(weights: Floats, target: Floats, budget: float) -> tuple[Floats, float]:
    """Move `weights` down to `target` as far as `budget` of the traffic allows.

    Returns the new weights and the share of traffic that they move: the sum of what the losing
    endpoints' shares fall by.
    """
    fall = weights - target
    if not (fall > 0).any():
        return weights, 0.0
    shift = _moved(weights, weights - fall)
    if shift <= budget:
        return weights - fall, shift
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _moved(weights, weights - middle * fall) <= budget:
            low = middle
        else:
            high = middle
    return weights - low * fall, _moved(weights, weights - low * fall)


def _moved(before: Floats, after: Floats) -> float:
    return float(np.maximum(before / before.sum() - after / after.sum(), 0.0).sum())


def _add(shifts: deque[tuple[int, float]], now_ns: int, shift: float) -> None:
    bucket = now_ns // BUCKET_NS * BUCKET_NS
    if shifts and shifts[-1][0] == bucket:
        shift += shifts.pop()[1]
    shifts.append((bucket, shift))
