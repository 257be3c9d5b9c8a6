"""The arithmetic of the benchmarks: medians, spread, what is discarded, ratios, conservation."""

import statistics
from collections.abc import Sequence
from typing import Any, Final

MOST_STEAL_RATIO: Final = 0.02
"""A measurement during which the hypervisor took more than this is repeated."""
MOST_REPEATS: Final = 3
"""A machine that steals all the time must still give a figure, marked as noisy."""


def is_noisy(steal_ratio: float) -> bool:
    """Whether a measurement is to be discarded."""
    return steal_ratio > MOST_STEAL_RATIO


def quantile(values: Sequence[float], q: float) -> float:
    """The value below which a share `q` of `values` lies (nearest rank); 0.0 of none.

    >>> quantile([5.0, 1.0, 4.0, 2.0, 3.0], 0.5), quantile([1.0, 2.0], 0.99), quantile([], 0.5)
    (3.0, 2.0, 0.0)
    """
    ordered = sorted(values)
    rank = max(0, -int(-q * len(ordered) // 1) - 1)
    return ordered[rank] if ordered else 0.0


def spread(values: Sequence[float]) -> float:
    """(largest - smallest) / median; 0.0 of fewer than two values.

    >>> spread([9.0, 10.0, 11.0]), spread([7.0])
    (0.2, 0.0)
    """
    middle = statistics.median(values) if values else 0.0
    return (max(values) - min(values)) / middle if len(values) > 1 and middle else 0.0


def per_core(items: int, cpu_s: float) -> float:
    """Items for a CPU second; 0.0 when no CPU time was seen."""
    return items / cpu_s if cpu_s > 0 else 0.0


def loss(acknowledged: int, received: int | None) -> str:
    """Why an engine has no figure: it acknowledged what it does not have; "" when it has all.

    `received` is the engine's own count, None if it has none. More than was acknowledged is no
    loss: an answer may have been lost on its way.

    >>> loss(10, 10), loss(10, None), loss(10, 12)
    ('', '', '')
    >>> loss(10, 9)
    'acknowledged 10 items but counts 9: 1 lost'
    """
    if received is None or received >= acknowledged:
        return ""
    lost = acknowledged - received
    return f"acknowledged {acknowledged} items but counts {received}: {lost} lost"


def ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tailrace's items/s/core over gRPC divided by each peer's in the same cell.

    A row without a figure (an engine that lost data, or could not be measured) is in no ratio.
    """
    own = {_cell(row): row for row in rows if row["engine"] == "tailrace" and _counts(row)}
    return [
        {
            "peer": row["engine"],
            "variant": row.get("variant", ""),
            **{key: row[key] for key in ("signal", "level", "batch", "compression")},
            "ratio": round(own[_cell(row)]["items_per_core_s"] / row["items_per_core_s"], 2),
        }
        for row in rows
        if row["engine"] != "tailrace" and _counts(row) and _cell(row) in own
    ]


def _cell(row: dict[str, Any]) -> tuple[object, ...]:
    return tuple(row[key] for key in ("signal", "level", "batch", "compression"))


def _counts(row: dict[str, Any]) -> bool:
    return row.get("transport") == "grpc" and bool(row["items_per_core_s"])
