"""Pools: which endpoints can serve the same requests.

Order: membership list, configured match rule, an allowed `tailrace.pool`, the engine's own model
within cluster and namespace, `service.name` within cluster and namespace. A model name alone never
joins namespaces.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from pipeline.model import PoolConfig, PoolMatch

DEFAULTS: Final = "*"
"""The configured name whose entry holds the defaults of unlisted pools."""


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """What is known of an endpoint when its pool is chosen; "" = unknown."""

    cluster: str = ""
    namespace: str = ""
    service: str = ""
    models: tuple[str, ...] = ()
    address: str = ""
    explicit: str = ""
    listed: str = ""
    """The pool whose membership list names the endpoint."""


def _defaults(some_are_configured: bool) -> PoolConfig:
    """What holds for unlisted pools: whoever lists pools but no defaults wants no others."""
    return PoolConfig(name=DEFAULTS, membership="static" if some_are_configured else "telemetry")


class Pools:
    """The pools of this process, at most `max_pools`; an index, once given, stays."""

    def __init__(self, pools: Sequence[PoolConfig], max_pools: int) -> None:
        """Configured pools come first, in their order."""
        self._configs = {pool.name: pool for pool in pools}
        self._defaults = self._configs.pop(DEFAULTS, _defaults(bool(pools)))
        self._rules = [pool for pool in pools if pool.match != PoolMatch()]
        self._max_pools = max_pools
        self._index: dict[str, int] = {}
        self._keys: dict[str, tuple[str, ...]] = {}
        self._models: dict[tuple[str, str], dict[str, int]] = {}
        self.overflow = 0
        """Endpoints that got no pool because the table was full."""
        for name in self._configs:
            self.index(name)

    @property
    def names(self) -> tuple[str, ...]:
        """Pool names by index."""
        return tuple(self._index)

    def config(self, index: int) -> PoolConfig:
        """The configuration in force for a pool (the defaults' for an unlisted one or -1)."""
        if index < 0:
            return self._defaults
        return self._configs.get(self.names[index], self._defaults)

    def listed(self) -> tuple[PoolConfig, ...]:
        """The configured pools, without the defaults."""
        return tuple(self._configs.values())

    def index(self, name: str) -> int:
        """The index of a pool, newly given if need be; -1 when the table is full (counted)."""
        if name in self._index:
            return self._index[name]
        if len(self._index) >= self._max_pools:
            self.overflow += 1
            return -1
        self._index[name] = len(self._index)
        return self._index[name]

    def choose(self, facts: PoolFacts, current: int) -> int:
        """The pool of an endpoint; `current` is the one it is in now (-1 = none)."""
        if facts.listed:
            return self.index(facts.listed)
        for rule in self._rules:
            if matches(rule.match, facts):
                return self.index(rule.name)
        if facts.explicit:
            return self.index(facts.explicit)
        if facts.models:
            return self._by_model(facts, current)
        if facts.service:
            return self._derived(facts.cluster, facts.namespace, facts.service)
        return -1

    def _by_model(self, facts: PoolFacts, current: int) -> int:
        """Sticky: several models on one endpoint are one pool, whichever is reported first."""
        pools = self._models.setdefault((facts.cluster, facts.namespace), {})
        known = [pools[model] for model in facts.models if model in pools]
        if current >= 0 and current in known:
            chosen = current
        elif known:
            chosen = known[0]
        else:
            chosen = self._derived(facts.cluster, facts.namespace, facts.models[0])
        if chosen >= 0:
            for model in facts.models:
                pools.setdefault(model, chosen)
        return chosen

    def adopt(self, facts: PoolFacts, name: str) -> None:
        """An endpoint was in pool `name` before a restart: its models belong there again."""
        index = self.index(name) if name else -1
        derived = {qualified(facts.cluster, facts.namespace, model) for model in facts.models}
        if index >= 0 and name in derived:
            pools = self._models.setdefault((facts.cluster, facts.namespace), {})
            for model in facts.models:
                pools.setdefault(model, index)

    def _derived(self, cluster: str, namespace: str, name: str) -> int:
        """`name`, `namespace/name` or `cluster/namespace/name`; two of one text stay apart."""
        key = (cluster, namespace, name)
        for text in (qualified(*key), f"{cluster or 'local'}/{namespace or 'none'}/{name}"):
            if text in self._configs or self._keys.setdefault(text, key) == key:
                return self.index(text)
        self.overflow += 1
        return -1

    def export_state(self) -> list[str]:
        """Names in index order, for `restore`."""
        return list(self._index)

    def restore(self, names: Sequence[str]) -> None:
        """Give the names of an earlier process their places, after the configured ones."""
        for name in names:
            self.index(name)


def qualified(cluster: str, namespace: str, name: str) -> str:
    """`name` under those of cluster and namespace that are given.

    >>> qualified("", "chat", "llama"), qualified("east", "", "llama")
    ('chat/llama', 'east//llama')
    """
    if cluster:
        return f"{cluster}/{namespace}/{name}"
    return f"{namespace}/{name}" if namespace else name


def matches(rule: PoolMatch, facts: PoolFacts) -> bool:
    """Whether every given field of a rule matches; models match when one of them does."""
    given = (
        (rule.service_name, (facts.service,)),
        (rule.model_name, facts.models),
        (rule.namespace, (facts.namespace,)),
        (rule.cluster, (facts.cluster,)),
        (rule.address, (facts.address,)),
    )
    return all(
        any(fnmatchcase(value, pattern) for value in values) for pattern, values in given if pattern
    )
