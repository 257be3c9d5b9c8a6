"""Snapshots for tests: a few endpoints described by hand, the columns filled in around them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.clock import NS_PER_S
from pipeline.model import (
    MAX_REASONS,
    Authority,
    Directory,
    Event,
    PoolDecision,
    Role,
    Snapshot,
    State,
)
from pipeline.publish.config import PublishConfig
from pipeline.publish.records import Board

START_NS = 1_700_000_000 * NS_PER_S


@dataclass(frozen=True, slots=True)
class Row:
    """One endpoint of a test's fleet; `slot` order is the order in which rows are given."""

    id: str
    pool: str = "llama"
    address: str = "10.0.0.1:8000"
    zone: str = ""
    weight: int = 1000
    state: State = State.HEALTHY
    admission: float = 1.0
    confidence: float = 1.0
    score: float = 0.5
    queue: float = 0.0
    rule: str = ""
    member: bool = True
    models: tuple[str, ...] = ("m",)


def snapshot(
    rows: Sequence[Row | None] | Mapping[int, Row],
    *,
    epoch: int,
    time_s: float = 0.0,
    n: int = 0,
    pools: Sequence[PoolDecision] | None = None,
    events: Sequence[Event] = (),
) -> Snapshot:
    """The snapshot in which slot i holds `rows[i]`; None and missing slots are unused."""
    by_slot = dict(rows) if isinstance(rows, Mapping) else {i: r for i, r in enumerate(rows) if r}
    size = max([n, 1, *(slot + 1 for slot in by_slot)])
    filled = [by_slot.get(slot) for slot in range(size)]
    empty = Row("", pool="", address="", weight=0, state=State.UNKNOWN, member=False)
    full = [row or empty for row in filled]
    known = np.array([row is not None for row in filled])
    directory = _directory(full, known)
    reasons = np.full((size, MAX_REASONS), np.nan)
    reasons[:, 0] = [row.queue for row in full]
    signal = np.full((size, MAX_REASONS), -1, np.int32)
    signal[:, 0] = 1  # queue_depth
    return Snapshot(
        epoch=epoch,
        time_ns=START_NS + round(time_s * NS_PER_S),
        directory=directory,
        target=known & directory.member & np.array([bool(row.address) for row in full]),
        weight=np.array([row.weight for row in full], np.uint32),
        state=np.array([row.state for row in full], np.uint8),
        admission=np.array([row.admission for row in full]),
        confidence=np.array([row.confidence for row in full]),
        decided_weight=np.array([row.weight for row in full], np.uint32),
        decided_state=np.array([row.state for row in full], np.uint8),
        score=np.array([row.score for row in full]),
        reason_signal=signal,
        reason_value=reasons,
        reason_peer=reasons.copy(),
        reason_points=reasons.copy(),
        reason_observer=np.where(signal >= 0, 1, -1).astype(np.int32),
        rule=tuple(row.rule for row in full),
        pools=tuple(pools) if pools is not None else decisions(directory.pools),
        events=tuple(events),
    )


def decisions(names: Sequence[str], note: str = "") -> tuple[PoolDecision, ...]:
    """Pools in their normal course, under authority `act`."""
    return tuple(PoolDecision(name, Authority.ACT, False, False, note) for name in names)


def _directory(rows: Sequence[Row], known: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Directory:
    pools = tuple(sorted({row.pool for row in rows if row.pool}))
    return Directory(
        version=0,
        id=tuple(row.id for row in rows),
        address=tuple(row.address for row in rows),
        node=tuple(f"node-{row.id}" for row in rows),
        engine=tuple("vllm" for _ in rows),
        zone=tuple(row.zone for row in rows),
        models=tuple(row.models for row in rows),
        pools=pools,
        pool=np.array([pools.index(row.pool) if row.pool else -1 for row in rows], np.int32),
        role=np.full(len(rows), Role.BOTH, np.uint8),
        known=known,
        member=np.array([row.member for row in rows]),
        draining=np.zeros(len(rows), np.bool_),
    )


def new_board(instance: str, valid_for_s: float = 10.0) -> Board:
    """A board on which nothing is published yet."""
    return Board(instance, PublishConfig(valid_for_s=valid_for_s, heartbeat_s=valid_for_s / 4))
