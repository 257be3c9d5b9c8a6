"""Data points of any engine, DCGM exporter or agent -> canonical samples of known endpoints.

Enters: decoded `PointColumns`. Leaves: `SampleRows`, and a count for every point that is left out.
Names are matched per distinct name of the batch, labels through dictionary codes; nothing is done
per point in Python. Which target is an engine is remembered, since a page that is down carries
`up = 0` and nothing else.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from pipeline.clock import Instant
from pipeline.model import (
    Attributes,
    Canonical,
    Dictionary,
    Int32s,
    Int64s,
    PointColumns,
    Rights,
    Role,
    Sender,
    Temporality,
    UInt64s,
)
from pipeline.normalise import units
from pipeline.normalise.engines import (
    ENGINES,
    RULES,
    Kind,
    choose,
    component_of,
    is_companion,
    match,
)
from pipeline.normalise.points import (
    NO_ENGINE,
    Matched,
    Points,
    Rows,
    check_values,
    drop_priorities,
    engine_numbers,
    first_code,
    first_text,
    resolve_labels,
    resource_hashes,
    samples,
    select,
)
from pipeline.signals import COMPONENTS

MAX_NAMES: Final = 8192
"""Metric names remembered; a fleet of every engine shows about 400."""
MAX_TARGETS: Final = 16_384
"""Scrape targets remembered as engines; the longest unheard one is forgotten first."""

NAMESPACE: Final = ("exported_namespace", "namespace", "pod_namespace")
POD: Final = ("exported_pod", "pod", "pod_name")
NODE: Final = ("Hostname", "hostname")
ROLES: Final = {"prefill": Role.PREFILL, "decode": Role.DECODE}

_RULE_USED: Final = np.array([bool(rule.component or rule.parts) for rule in RULES])


class EndpointResolver(Protocol):
    """Who is behind a resource or a pod: the part of identity that metrics need."""

    def scraped(
        self,
        resources: Attributes,
        strings: Dictionary,
        engine: Sequence[str],
        model: Sequence[str],
        sender: Sender,
        now: Instant,
    ) -> Int32s:
        """Slot of the endpoint behind each resource that is an engine's target, -1 = none."""

    def by_pod_or_node(
        self, namespace: Int32s, pod: Int32s, node: Int32s, strings: Dictionary, now: Instant
    ) -> Int32s:
        """Slot of the endpoint in each pod, else alone on each node, -1 = none."""

    def set_role(self, slot: int, role: Role) -> None:
        """The engine says which role it has."""


class _Target(NamedTuple):
    """What is remembered of an engine's scrape target."""

    engine: str
    model: str
    role: str


class PointNormaliser:
    """Keeps what outlives a batch: matched names and which targets are engines."""

    def __init__(self, max_names: int = MAX_NAMES, max_targets: int = MAX_TARGETS) -> None:
        """Remember at most so many names and targets."""
        self._max_names = max_names
        self._max_targets = max_targets
        self._names: dict[tuple[str, str, int], _Reading] = {}
        self._targets: OrderedDict[int, _Target] = OrderedDict()

    def normalise_points(
        self, columns: PointColumns, identity: EndpointResolver, sender: Sender, now: Instant
    ) -> Canonical:
        """Samples of known endpoints; `dropped` accounts for every other point of `columns`."""
        if not columns.n:
            return Canonical()
        if not sender.rights & Rights.METRICS:
            return Canonical(dropped={"sender_rights": columns.n})
        dropped: Counter[str] = Counter()
        matched = self._match(columns, dropped)
        points = select(columns, matched)
        if not len(points.at):
            return Canonical(dropped=+dropped)
        resolve_labels(points, columns, matched.present, dropped)
        check_values(points, columns, dropped)
        drop_priorities(points, columns, dropped)
        source = resource_hashes(columns.resources, columns.strings)
        slot = self._slots(points, columns, source, identity, sender, now)
        known = slot >= 0
        if not known.all():
            dropped["no_endpoint"] += int((~known).sum())
            points.keep(known)
        return Canonical(samples=samples(points, columns, slot[known], source), dropped=+dropped)

    def _match(self, columns: PointColumns, dropped: Counter[str]) -> Matched:
        """What every metric of the batch means."""
        metrics = columns.metrics
        # Codes stay below 2^28: a batch holds at most 64 MiB of text.
        packed = (metrics.name.astype(np.int64) << 34) | (metrics.unit.astype(np.int64) + 1) << 5
        packed |= (metrics.temporality << 3) | metrics.kind
        _, first, inverse = np.unique(packed, return_index=True, return_inverse=True)
        readings = [self._read(columns, row, packed) for row in first.tolist()]
        rule = np.array([reading.rule for reading in readings], np.int32)[inverse]
        scale = np.array([reading.scale for reading in readings])[inverse]
        present = {reading.rule for reading in readings}
        # Metrics that share a name, unit and type may still be told apart by their help text.
        for k, reading in enumerate(readings):
            if reading.needs_help:
                for row in np.flatnonzero(inverse == k).tolist():
                    rule[row], scale[row] = self._with_help(columns, row)
                    present.add(int(rule[row]))
        points = np.bincount(columns.metric, minlength=len(rule))
        points = np.bincount(inverse, points, len(readings)).astype(np.int64)
        for reading, count in zip(readings, points.tolist(), strict=True):
            if reading.reason:
                dropped[reading.reason] += count
            if reading.clash:
                dropped["unit_mismatch"] += count
        return Matched(rule, scale, sorted(present - {-1}))

    def _read(self, columns: PointColumns, row: int, packed: Int64s) -> "_Reading":
        """What a metric means by its name, type and unit; remembered."""
        metrics, text = columns.metrics, columns.strings.text
        name, unit = text(int(metrics.name[row])), text(int(metrics.unit[row]))
        key = (name, unit, int(packed[row]) & 31)
        known = self._names.get(key)
        if known is None:
            if len(self._names) >= self._max_names:
                self._names.clear()
            is_delta = metrics.temporality[row] == Temporality.DELTA
            known = _reading(name, unit, int(metrics.kind[row]), bool(is_delta), "")
            self._names[key] = known
        return known

    def _with_help(self, columns: PointColumns, row: int) -> tuple[int, float]:
        metrics, text = columns.metrics, columns.strings.text
        name, unit = text(int(metrics.name[row])), text(int(metrics.unit[row]))
        help_text = text(int(metrics.description[row]))
        is_delta = metrics.temporality[row] == Temporality.DELTA
        reading = _reading(name, unit, int(metrics.kind[row]), bool(is_delta), help_text)
        return reading.rule, reading.scale

    def _slots(
        self,
        points: Points,
        columns: PointColumns,
        source: UInt64s,
        identity: EndpointResolver,
        sender: Sender,
        now: Instant,
    ) -> Int32s:
        """int32 slot of every point, -1 = of no endpoint."""
        engine = engine_numbers(points, columns.resources)
        targets = self._remember(points, columns, engine, source)
        by_resource = identity.scraped(
            columns.resources,
            columns.strings,
            [target.engine for target in targets],
            [target.model for target in targets],
            sender,
            now,
        )
        for slot, target in zip(by_resource.tolist(), targets, strict=True):
            if slot >= 0 and target.role in ROLES:
                identity.set_role(slot, ROLES[target.role])
        slot = by_resource[points.resource]
        # The resource of a DCGM point is its exporter, whose own pod is never the endpoint.
        is_target = np.array([bool(target.engine) for target in targets], np.bool_)
        of_node = np.flatnonzero(points.is_of_node & ~is_target[points.resource])
        if len(of_node):
            slot[of_node] = _node_slots(points, of_node, columns, identity, now)
        return slot

    def _remember(
        self, points: Points, columns: PointColumns, engine: Int32s, source: UInt64s
    ) -> list[_Target]:
        """What each resource is: as this batch shows it, else as an earlier one did."""
        models = first_text(points, columns, engine, ("model_name", "model"))
        roles = first_text(points, columns, engine, ("engine_type",))
        names = (*ENGINES, "other", "")
        targets = []
        for r, key in enumerate(source.tolist()):
            old = self._targets.get(key, _Target("", "", ""))
            number = int(engine[r])
            if number == NO_ENGINE:
                targets.append(old)
                continue
            target = _Target(names[number], models[r] or old.model, roles[r] or old.role)
            self._targets[key] = target
            self._targets.move_to_end(key)
            targets.append(target)
        while len(self._targets) > self._max_targets:
            self._targets.popitem(last=False)
        return targets


class _Reading(NamedTuple):
    """What a metric name means for one type and unit."""

    rule: int = -1
    scale: float = 1.0
    reason: str = ""
    """Why nothing is read from it."""
    clash: bool = False
    needs_help: bool = False


def _reading(name: str, unit: str, kind: int, is_delta: bool, help_text: str) -> _Reading:
    found = match(name)
    if not found.rules:
        is_foreign = found.engine in ("", "agent") or is_companion(name)
        return _Reading(reason="foreign_metric" if is_foreign else "unknown_metric")
    index = choose(found.rules, kind, help_text)
    rule = RULES[max(index, 0)]
    if index < 0 or (is_delta and rule.kind in (Kind.GAUGE, Kind.INFO)):
        return _Reading(reason="type_mismatch")
    if not _RULE_USED[index]:
        return _Reading(reason="unused_metric")
    named = units.of_help(rule.unit, help_text) if rule.help_unit else rule.unit
    believed, clash = units.believed(named, unit)
    needs_help = rule.help_unit or len(found.rules) > 1
    return _Reading(index, _scale(index, believed), "", clash, needs_help)


def _scale(index: int, unit: str) -> float:
    """Factor from `unit` to the unit of the rule's component."""
    rule = RULES[index]
    name = rule.component or next(c for c in rule.parts.values() if c)
    wanted = COMPONENTS[component_of(name)].unit
    return units.factor(unit, wanted)


def _node_slots(
    points: Points,
    rows: Rows,
    columns: PointColumns,
    identity: EndpointResolver,
    now: Instant,
) -> Int32s:
    """Slots of points that name a pod or a node instead of an endpoint.

    The exporter's own pod, in its resource, is never the endpoint; an agent's resource is.
    """
    at, resource = points.at[rows], points.resource[rows].astype(np.intp)
    is_agent = points.is_guest[rows]
    namespace = first_code(columns.attributes, NAMESPACE, at)
    pod = first_code(columns.attributes, POD, at)
    own = is_agent & (pod < 0)
    pod = np.where(own, columns.resources.codes("k8s.pod.name")[resource], pod)
    namespace = np.where(own, columns.resources.codes("k8s.namespace.name")[resource], namespace)
    node = first_code(columns.attributes, NODE, at)
    of_resource = first_code(columns.resources, ("k8s.node.name", "host.name"), resource)
    node = np.where(node < 0, of_resource, node)
    where = np.stack([namespace, pod, node], axis=1)
    distinct, inverse = np.unique(where, axis=0, return_inverse=True)
    slots = identity.by_pod_or_node(
        distinct[:, 0], distinct[:, 1], distinct[:, 2], columns.strings, now
    )
    return slots[inverse.reshape(-1)]
