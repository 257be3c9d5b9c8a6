"""Units of metrics: factors between them, and when to believe the `unit` that a sender set.

The unit of a name is part of the name's row in `engines.py`; the magnitude of a value is never
consulted. A sender's `unit` is trusted only for s, ms, us and By.
"""

from typing import Final

FACTORS: Final[dict[tuple[str, str], float]] = {
    ("ms", "s"): 1e-3,
    ("us", "s"): 1e-6,
    ("ns", "s"): 1e-9,
    ("percent", "ratio"): 1e-2,
    ("MiB", "By"): 1048576.0,
    ("mJ", "J"): 1e-3,
}
"""(from, to) -> factor; units that are not listed together are the same or have no factor."""

TRUSTED: Final = frozenset({"s", "ms", "us", "By"})
DIMENSION: Final[dict[str, str]] = {
    "s": "time",
    "ms": "time",
    "us": "time",
    "ns": "time",
    "By": "bytes",
    "MiB": "bytes",
}


def factor(unit: str, wanted: str) -> float:
    """What a value in `unit` is multiplied with to be in `wanted`.

    >>> factor("us", "s"), factor("s", "s"), factor("percent", "ratio")
    (1e-06, 1.0, 0.01)
    """
    return FACTORS.get((unit, wanted), 1.0)


def believed(named: str, sent: str) -> tuple[str, bool]:
    """The unit to use for a name in unit `named` that came with `sent`, and whether they clash.

    Only units of the same dimension replace the name's own; "" and annotations say nothing.

    >>> believed("s", ""), believed("s", "ms"), believed("tokens", "s"), believed("s", "{token}")
    (('s', False), ('ms', True), ('tokens', True), ('s', False))
    """
    if sent not in TRUSTED or sent == named:
        return named, False
    same = DIMENSION.get(named) == DIMENSION[sent]
    return (sent if same else named), True


def of_help(named: str, description: str) -> str:
    """The unit that a help text states as "(in us)" or "(in ns)", else `named`.

    >>> of_help("ns", "Throttling duration due to thermal constraints (in us).")
    'us'
    """
    for unit in ("us", "ns"):
        if f"(in {unit})" in description:
            return unit
    return named
