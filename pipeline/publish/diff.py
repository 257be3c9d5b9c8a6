"""Which endpoints differ between two snapshots, as boolean columns over the slots.

Compares raw columns, before any rounding, NaN equal to NaN. Columns that are the same object, as
an idle stage hands them on, cost nothing.
"""

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.model import Bools, Directory, Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """bool[n slots] each; rows that the earlier snapshot did not have are True everywhere."""

    moved: Bools
    """The slot holds another id, moved to another pool, or gained or lost membership."""
    routing: Bools
    """Something that routing needs differs."""
    urgent: Bools
    """Identity or state differs: told at once in every view."""
    figures: Bools
    """A weight, confidence, score, reason or rule differs."""


def changes(last: Snapshot | None, now: Snapshot) -> Changes:
    """What differs from `last` (None = everything) to `now`; slots never become fewer."""
    n = now.directory.n
    if last is None:
        everything = np.ones(n, np.bool_)
        return Changes(everything, everything, everything, everything)
    n_last = last.directory.n
    moved, routing_facts, full_facts = _facts(last.directory, now.directory)
    state = _differ(last.state, now.state, n_last)
    routing = _differ(last.weight, now.weight, n_last)
    routing |= _differ(last.admission, now.admission, n_last)
    figures = routing | _differ(last.confidence, now.confidence, n_last)
    for name in (
        "decided_weight",
        "score",
        "reason_signal",
        "reason_value",
        "reason_peer",
        "reason_points",
        "reason_observer",
    ):
        figures |= _differ(getattr(last, name), getattr(now, name), n_last)
    figures |= _texts_differ(last.rule, now.rule, n_last)
    urgent = moved | routing_facts | full_facts | state
    urgent |= _differ(last.decided_state, now.decided_state, n_last)
    return Changes(moved, routing | moved | routing_facts | state, urgent, figures)


def _facts(last: Directory, now: Directory) -> tuple[Bools, Bools, Bools]:
    if last is now:
        nothing = np.zeros(now.n, np.bool_)
        return nothing, nothing, nothing
    moved = _texts_differ(last.id, now.id, last.n) | _differ(last.member, now.member, last.n)
    if now.pools != last.pools or now.pool is not last.pool:
        moved |= _differ(_pool_names(last), _pool_names(now), last.n)
    routing = _texts_differ(last.address, now.address, last.n)
    routing |= _texts_differ(last.zone, now.zone, last.n)
    full = _texts_differ(last.node, now.node, last.n) | _differ(last.role, now.role, last.n)
    full |= _texts_differ(last.engine, now.engine, last.n)
    full |= _texts_differ(last.models, now.models, last.n)
    return moved, routing, full


def _pool_names(directory: Directory) -> npt.NDArray[np.object_]:
    names = np.array([*directory.pools, ""], dtype=np.object_)
    return names[directory.pool]


def _differ(last: npt.NDArray[Any], now: npt.NDArray[Any], n_last: int) -> Bools:
    differs = np.zeros(len(now), np.bool_)
    differs[n_last:] = True
    if last is now:
        return differs
    before, after = last, now[:n_last]
    if now.dtype == np.float64:
        before, after = before.view(np.int64), after.view(np.int64)
    unequal = before != after
    if unequal.any():  # asked first: by rows it takes several times as long
        differs[:n_last] = unequal.any(axis=1) if unequal.ndim == 2 else unequal
    return differs


def _texts_differ(last: tuple[Any, ...], now: tuple[Any, ...], n_last: int) -> Bools:
    differs = np.zeros(len(now), np.bool_)
    differs[n_last:] = True
    if last is not now and last != now:
        differs[:n_last] = np.fromiter(map(operator.ne, last, now), np.bool_, n_last)
    return differs
