"""Columns of a snapshot -> bytes of `tailrace.v1` records, chosen rows only.

A record is a field of `Snapshot` complete with tag and length, so that a message is a header and
records in a row (protobuf: concatenated messages merge, repeated fields append). Serialisation is
deterministic. FULL rounds confidence to 2 decimals and everything measured to 4 significant digits.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pipeline.model import Directory, Event, Floats, Observer, PoolDecision, Role, Snapshot
from pipeline.signals import SIGNALS
from pipeline.wire import decisions_pb2 as wire

Slots = npt.NDArray[np.intp]
_Facts = tuple[Any, ...]
"""Weight, state, admission, confidence, decided weight and state, rule."""

ROLES: Final = tuple(role.name.lower() for role in Role)
OBSERVERS: Final = tuple(observer.name.lower() for observer in Observer)
FIGURES: Final = np.dtype(
    [
        ("value_tag", "u1"),
        ("value", "<f8"),
        ("peer_tag", "u1"),
        ("peer", "<f8"),
        ("points_tag", "u1"),
        ("points", "<f8"),
    ]
)
"""Fields 2 to 4 of a `Reason` as they lie on the wire."""
ENDPOINT_TAG: Final = b"\x3a"
"""Field 7 of `Snapshot`, length-delimited."""
SCORE_TAG: Final = b"\xcd\x01"
"""Field 25 of `Endpoint`, a float, the last in order of numbers."""
REASON_TAG: Final = b"\xaa\x01"
"""Field 21 of `Endpoint`, length-delimited."""


def _reason_ends(signal: str, observer: str) -> tuple[bytes, bytes]:
    """What precedes and follows the figures of a reason; its length takes one byte (< 128)."""
    name = wire.Reason(signal=signal).SerializeToString()
    by = wire.Reason(observer=observer).SerializeToString()
    return REASON_TAG + bytes((len(name) + FIGURES.itemsize + len(by),)) + name, by


REASON_ENDS: Final = tuple(
    tuple(_reason_ends(signal, observer) for observer in (*OBSERVERS, "")) for signal in SIGNALS
)
"""By signal and observer; the last observer, so -1 too, is nobody."""

SIGNIFICANT_DIGITS: Final = 4
TOO_SMALL: Final = 1e-290
TOO_LARGE: Final = 1e290
"""Beyond these a power of ten overflows on the way; smaller is rounded to 0, larger stays."""


def round_significant(values: Floats) -> Floats:
    """`values` with 4 significant digits, same shape; NaN and infinities stay, -0 becomes 0.

    >>> round_significant(np.array([0.123456, -98765.0, 0.0, np.nan])).tolist()
    [0.1235, -98760.0, 0.0, nan]
    """
    size = np.abs(values)
    tiny = size < TOO_SMALL
    plain = tiny | ~(size < TOO_LARGE)
    size[plain] = 1.0
    shift = (SIGNIFICANT_DIGITS - 1) - np.floor(np.log10(size)).astype(np.int64)
    up, down = 10.0 ** np.maximum(shift, 0), 10.0 ** np.maximum(-shift, 0)
    rounded = np.rint(np.where(plain, 0.0, values) * up / down) * down / up
    return np.where(plain, np.where(tiny, 0.0, values), rounded) + 0.0


def header(
    *,
    epoch: int,
    time_ns: int,
    valid_for_ms: int,
    instance: str,
    full: bool,
    from_epoch: int = 0,
) -> bytes:
    """The fields of a `Snapshot` message that precede its records."""
    return wire.Snapshot(
        epoch=epoch,
        time_unix_ns=time_ns,
        valid_for_ms=valid_for_ms,
        instance=instance,
        full=full,
        from_epoch=from_epoch,
    ).SerializeToString(deterministic=True)


def routing_records(snapshot: Snapshot, slots: Slots) -> list[bytes]:
    """What routing needs of the endpoints at `slots`, one record each."""
    return [
        _endpoint_record(wire.Endpoint(**fields).SerializeToString(deterministic=True))
        for fields in _routing_fields(snapshot, slots)
    ]


class Heads:
    """FULL records up to their figures, by slot: facts that are seldom others than last time."""

    def __init__(self) -> None:
        """Nothing was encoded yet."""
        self._directory: Directory | None = None
        self._by_slot: dict[int, tuple[_Facts, bytes]] = {}

    def of(self, snapshot: Snapshot, slots: Slots) -> list[bytes]:
        """The serialised fields of endpoints at `slots`, all but score and reasons."""
        directory = snapshot.directory
        if directory is not self._directory:
            self._directory, self._by_slot = directory, {}
        heads = []
        for slot, *figures in zip(slots.tolist(), *_columns(snapshot, slots), strict=True):
            facts = (*figures, snapshot.rule[slot])
            kept = self._by_slot.get(slot)
            if kept is None or kept[0] != facts:
                kept = facts, _head(directory, slot, facts)
                self._by_slot[slot] = kept
            heads.append(kept[1])
        return heads


def full_records(snapshot: Snapshot, slots: Slots, heads: Heads | None = None) -> list[bytes]:
    """Everything about `slots`, one record each: an endpoint, or `unmatched` for a non-member.

    `heads` remembers what it can from one call to the next.
    """
    if len(slots) == 0:
        return []
    member = snapshot.directory.member[slots]
    records = iter(_full_endpoints(snapshot, slots[member], heads or Heads()))
    return [
        next(records) if is_member else _unmatched(snapshot.directory, slot)
        for slot, is_member in zip(slots.tolist(), member.tolist(), strict=True)
    ]


def tombstone_record(endpoint_id: str, epoch: int) -> bytes:
    """The record that removes an endpoint."""
    return wire.Snapshot(removed=[wire.Tombstone(id=endpoint_id, epoch=epoch)]).SerializeToString(
        deterministic=True
    )


def pool_record(pool: PoolDecision) -> bytes:
    """What holds for a whole pool."""
    return wire.Snapshot(
        pools=[
            wire.Pool(
                name=pool.name,
                authority=wire.Authority.Name(int(pool.authority)),
                frozen=pool.frozen,
                off=pool.off,
                note=pool.note,
            )
        ]
    ).SerializeToString(deterministic=True)


def event_record(event: Event) -> bytes:
    """Something that a person wants to know."""
    return wire.Snapshot(
        events=[
            wire.Event(
                time_unix_ns=max(event.time_ns, 0),
                kind=event.kind,
                endpoint=event.endpoint,
                pool=event.pool,
                text=event.text,
            )
        ]
    ).SerializeToString(deterministic=True)


def pool_name(directory: Directory, slot: int) -> str:
    """The pool of a slot; "" for none."""
    code = int(directory.pool[slot])
    return directory.pools[code] if code >= 0 else ""


def _endpoint_record(body: bytes) -> bytes:
    size = len(body)
    length = bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    length.append(size)
    return ENDPOINT_TAG + length + body


def _routing_fields(snapshot: Snapshot, slots: Slots) -> list[dict[str, Any]]:
    columns = zip(
        slots.tolist(),
        snapshot.weight[slots].tolist(),
        snapshot.state[slots].tolist(),
        snapshot.admission[slots].tolist(),
        strict=True,
    )
    return [
        {**_names(snapshot.directory, slot), "weight": weight, "state": state, "admission": share}
        for slot, weight, state, share in columns
    ]


def _names(directory: Directory, slot: int) -> dict[str, Any]:
    return {
        "id": directory.id[slot],
        "pool": pool_name(directory, slot),
        "address": directory.address[slot],
        "zone": directory.zone[slot],
    }


def _columns(snapshot: Snapshot, slots: Slots) -> tuple[list[Any], ...]:
    """The figures of `_Facts`, a list each."""
    return (
        snapshot.weight[slots].tolist(),
        snapshot.state[slots].tolist(),
        snapshot.admission[slots].tolist(),
        np.round(snapshot.confidence[slots], 2).tolist(),
        snapshot.decided_weight[slots].tolist(),
        snapshot.decided_state[slots].tolist(),
    )


def _head(directory: Directory, slot: int, facts: _Facts) -> bytes:
    weight, state, admission, confidence, decided_weight, decided_state, rule = facts
    endpoint = wire.Endpoint(
        **_names(directory, slot),
        weight=weight,
        state=state,
        admission=admission,
        node=directory.node[slot],
        engine=directory.engine[slot],
        role=ROLES[directory.role[slot]],
        models=directory.models[slot],
        confidence=confidence,
        rule=rule,
        decided_weight=decided_weight,
        decided_state=decided_state,
    )
    return endpoint.SerializeToString(deterministic=True)


def _full_endpoints(snapshot: Snapshot, slots: Slots, heads: Heads) -> list[bytes]:
    scores = round_significant(snapshot.score[slots]).astype("<f4")
    cells = scores.tobytes()
    rows = zip(heads.of(snapshot, slots), scores.tolist(), _reasons(snapshot, slots), strict=True)
    records = []
    for number, (head, score, reasons) in enumerate(rows):
        told = SCORE_TAG + cells[4 * number : 4 * number + 4] if score != 0.0 else b""
        records.append(_endpoint_record(head + told + reasons))
    return records


def _reasons(snapshot: Snapshot, slots: Slots) -> list[bytes]:
    """The `reasons` fields of each slot, strongest first, empty places left out.

    Laid out by hand: five small messages an endpoint would cost more than all the rest of it.
    """
    signals = snapshot.reason_signal[slots]
    figures = np.zeros(signals.shape, FIGURES)
    figures["value_tag"], figures["peer_tag"], figures["points_tag"] = 0x11, 0x19, 0x21
    columns = (snapshot.reason_value, snapshot.reason_peer, snapshot.reason_points)
    figures["value"], figures["peer"], figures["points"] = round_significant(
        np.stack([column[slots] for column in columns])
    )
    cells = figures.tobytes()
    size = FIGURES.itemsize
    records = []
    start = 0
    for row in zip(signals.tolist(), snapshot.reason_observer[slots].tolist(), strict=True):
        reasons = b""
        for signal, observer in zip(*row, strict=True):
            if signal >= 0:
                head, tail = REASON_ENDS[signal][observer]
                reasons += head + cells[start : start + size] + tail
            start += size
        records.append(reasons)
    return records


def _unmatched(directory: Directory, slot: int) -> bytes:
    pool = pool_name(directory, slot)
    why = f"no member of pool {pool}" if pool else "in no pool"
    return wire.Snapshot(
        unmatched=[wire.Unmatched(id=directory.id[slot], why=why)]
    ).SerializeToString(deterministic=True)
