"""How far counters moved since the last look, to be added to those of another process."""

from typing import TypeAlias

from prometheus_client import Counter

from pipeline.telemetry import Telemetry

Delta: TypeAlias = tuple[str, dict[str, str], float]
"""(attribute of `Telemetry`, labels, how much more)."""


class CounterDeltas:
    """Remembers what was told of every counter of one `Telemetry`."""

    def __init__(self, telemetry: Telemetry) -> None:
        """Nothing was told yet."""
        self._counters = {
            name: value for name, value in vars(telemetry).items() if isinstance(value, Counter)
        }
        self._told: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def take(self) -> list[Delta]:
        """What moved since the last call; bounded by the closed label sets."""
        found: list[Delta] = []
        for name, counter in self._counters.items():
            for family in counter.collect():
                for sample in family.samples:
                    key = name, tuple(sorted(sample.labels.items()))
                    more = sample.value - self._told.get(key, 0.0)
                    if more > 0.0 and sample.name.endswith("_total"):
                        self._told[key] = sample.value
                        found.append((name, dict(sample.labels), more))
        return found


def add(telemetry: Telemetry, deltas: list[Delta]) -> None:
    """Add what another process counted to the counters of the same names and labels."""
    for name, labels, more in deltas:
        counter = getattr(telemetry, name, None)
        if isinstance(counter, Counter):
            (counter.labels(**labels) if labels else counter).inc(more)
