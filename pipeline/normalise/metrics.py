"""Data points of any engine, DCGM exporter or agent -> canonical samples of known endpoints.

Enters: decoded `PointColumns`. Leaves: `SampleRows`, and a count for every point that is left out.
What a series means and which resource it is of is read once and kept by its key; only values are
looked at each time. Which target is an engine is remembered, since a page that is down carries
`up = 0` and nothing else.
"""

from collections import Counter
from typing import Final

import numpy as np

from pipeline.clock import Instant
from pipeline.model import Canonical, Int32s, Int64s, PointColumns, Rights, Sender
from pipeline.normalise.engines import ENGINES
from pipeline.normalise.labels import Labels, first_code, help_hashes, resource_hashes
from pipeline.normalise.plans import Plans
from pipeline.normalise.points import (
    MEANING,
    Known,
    Points,
    Rows,
    Runs,
    check_values,
    drop_priorities,
    samples,
    select,
)
from pipeline.normalise.reporters import EndpointResolver, Reporters, Target, kind_of
from pipeline.normalise.resources import source_hashes
from pipeline.normalise.shapes import NO_ENGINE, Flag, Shapes
from pipeline.normalise.texts import UNREADABLE, Texts

MAX_NAMES: Final = 8192
"""Metric names remembered; a fleet of every engine shows about 400."""
MAX_TARGETS: Final = 16_384
"""Scrape targets remembered as engines; the longest unheard one is forgotten first."""
MAX_PLANS: Final = 524_288
"""Series whose meaning is kept, those that are counted and left out among them."""
MAX_SHAPES: Final = 65_536
MAX_REPORTERS: Final = 32_768

NAMESPACE: Final = ("exported_namespace", "namespace", "pod_namespace")
POD: Final = ("exported_pod", "pod", "pod_name")
NODE: Final = ("Hostname", "hostname")
_ENGINE_NAMES: Final = (*ENGINES, "other", "")


class PointNormaliser:
    """Keeps what outlives a batch: what series mean, who reports them, what engines they are."""

    def __init__(
        self,
        max_names: int = MAX_NAMES,
        max_targets: int = MAX_TARGETS,
        max_plans: int = MAX_PLANS,
        max_shapes: int = MAX_SHAPES,
        max_reporters: int = MAX_REPORTERS,
    ) -> None:
        """Remember at most so much; what is beyond a bound is read anew each time.

        `max_plans` 0 reads everything each time.
        """
        self._texts = Texts()
        self._labels = Labels(max_names, self._texts)
        self._shapes = Shapes(max_shapes)
        self._plans = Plans(max(max_plans, 1)) if max_plans else None
        self._reporters = Reporters(max_reporters, max_targets)
        self._sender: Sender | None = None
        """The last sender, whose kind is known."""
        self._kind = 0

    @property
    def n_plans(self) -> int:
        """How many series are known."""
        return len(self._plans) if self._plans is not None else 0

    def normalise_points(
        self, columns: PointColumns, identity: EndpointResolver, sender: Sender, now: Instant
    ) -> Canonical:
        """Samples of known endpoints; `dropped` accounts for every other point of `columns`."""
        if not columns.n:
            return Canonical()
        if not sender.rights & Rights.METRICS:
            return Canonical(dropped={"sender_rights": columns.n})
        dropped: Counter[str] = Counter()
        self._forget(now)
        runs = Runs.of(columns.resource)
        known = self._known(columns, runs, identity, now)
        points = select(columns, known.meaning, self._shapes, dropped)
        check_values(points, columns, dropped)
        drop_priorities(points, columns, dropped)
        if not len(points):
            return Canonical(dropped=+dropped)
        slot = self._slots(points, columns, runs, known, identity, sender, now)
        if slot.min() < 0:
            dropped["no_endpoint"] += int((slot < 0).sum())
            points.keep(slot >= 0)
            slot = slot[slot >= 0]
        source = self._reporters.source.take(points.meaning["reporter"])
        rows = samples(points, columns, self._shapes, slot, source, known.plan)
        return Canonical(samples=rows, dropped=+dropped if dropped else {})

    # what series mean

    def _known(
        self, columns: PointColumns, runs: Runs, identity: EndpointResolver, now: Instant
    ) -> Known:
        """What is known of each point's series; new ones are read."""
        if self._plans is None:
            return self._read(columns, np.arange(columns.n), identity, now)
        known, missing = self._plans.find(columns.series, runs, now)
        if self._shapes.has_help:
            missing = self._with_other_help(columns, known, missing)
        if missing is not None and len(missing):
            read = self._read(columns, missing, identity, now)
            known.meaning[missing], known.plan[missing] = read
        return known

    def _with_other_help(
        self, columns: PointColumns, known: Known, missing: Rows | None
    ) -> Rows | None:
        """Also those whose help text says something else than what was read."""
        has_help = known.meaning["flags"] & Flag.HELP != 0
        helped = np.flatnonzero(has_help & (known.plan >= 0))
        there = help_hashes(columns, columns.metric[helped])
        other = helped[there != self._shapes.help[known.meaning["shape"][helped]]]
        if missing is None or not len(missing) or not len(other):
            return other if len(other) else missing
        return np.sort(np.concatenate([missing, other]))

    def _read(
        self, columns: PointColumns, rows: Rows, identity: EndpointResolver, now: Instant
    ) -> Known:
        """Read the series of `rows` from their names and labels, and keep what was read."""
        read, group = self._labels.read(columns, rows)
        shape = self._shapes.add(read)
        meaning = np.zeros(len(rows), MEANING)
        meaning["first"], meaning["second"] = columns.series[rows].T
        meaning["group"], meaning["shape"] = group, shape
        meaning["reporter"] = self._read_reporters(columns, columns.resource[rows], identity, now)
        for name in ("shard", "scale", "flags", "component"):
            meaning[name] = read[name]
        plan = np.full(len(rows), -1, np.int64)
        if self._plans is not None:
            stays = shape < self._shapes.max_shapes
            plan[stays] = self._plans.add(meaning[stays], now)
        return Known(meaning, plan)

    def _read_reporters(
        self, columns: PointColumns, resource: Int32s, identity: EndpointResolver, now: Instant
    ) -> Int64s:
        """The reporter of each of some rows' resources."""
        facts = identity.facts(columns.resources, columns.strings)
        source = resource_hashes(columns.resources, columns.strings).tolist()
        whole = source_hashes(columns.resources, columns.strings).tolist()
        numbers = np.zeros(columns.resources.n, np.int64)
        for r in np.unique(resource).tolist():
            numbers[r] = self._reporters.add(source[r], whole[r], facts[r], now)
        return numbers[resource]

    def _forget(self, now: Instant) -> None:
        """Keep everything within its bounds."""
        gone = self._reporters.forget_oldest()
        if self._plans is None:
            self._shapes.clear()
            return
        if len(gone):
            self._plans.forget_reporters(gone)
        if self._plans.sweep(now):
            shapes = self._plans.shapes_in_use()
            self._shapes.keep_only(shapes)
            used = (self._shapes.model[shapes], self._shapes.role[shapes])
            self._texts.keep_only({*np.concatenate(used).tolist(), *self._reporters.texts()})

    # where they belong

    def _slots(
        self,
        points: Points,
        columns: PointColumns,
        runs: Runs,
        known: Known,
        identity: EndpointResolver,
        sender: Sender,
        now: Instant,
    ) -> Int32s:
        """int32 slot of every point, -1 = of no endpoint."""
        reporters = self._reporters
        numbers = known.meaning["reporter"].take(runs.begins)
        if sender != self._sender:
            self._sender, self._kind = sender, kind_of(sender)
        is_settled = reporters.settled(numbers, self._kind, identity.generation)
        if is_settled and self._confirm(points, known.plan):
            by_run = reporters.slots(numbers, now)
            identity.heard(by_run if by_run.min() >= 0 else by_run[by_run >= 0], now)
        else:
            by_run = self._resolve(points, columns, runs, numbers, identity, sender, now)
        slot = points.pick(by_run.repeat(runs.lengths))
        if points.special & Flag.NODE:
            # The resource of a DCGM point is its exporter, whose own pod is never the endpoint.
            is_target = reporters.engine.take(points.meaning["reporter"]) != NO_ENGINE
            of_node = np.flatnonzero(points.has(Flag.NODE) & ~is_target)
            if len(of_node):
                slot = slot.copy()
                slot[of_node] = _node_slots(points, of_node, columns, identity, now)
        return slot

    def _confirm(self, points: Points, plan: Int64s) -> bool:
        """Whether every point says of its engine what is known already."""
        meaning = points.meaning
        state = self._reporters.state.take(meaning["reporter"])
        differs = meaning["agrees"] != state
        if not np.count_nonzero(differs):
            return True
        rows = np.flatnonzero(differs)
        shape = meaning["shape"][rows]
        engine, model, role = (
            column.take(shape)
            for column in (self._shapes.engine, self._shapes.model, self._shapes.role)
        )
        told = self._reporters.told(meaning["reporter"][rows], engine, model, role)
        if self._plans is not None:
            kept = rows[told]
            self._plans.agree(plan[points.rows(kept)], state[kept])
        return bool(told.all())

    def _resolve(
        self,
        points: Points,
        columns: PointColumns,
        runs: Runs,
        of_run: Int32s,
        identity: EndpointResolver,
        sender: Sender,
        now: Instant,
    ) -> Int32s:
        """The slot of each run, by what its resource shows and by what identity knows."""
        resource = columns.resource.take(runs.begins)
        numbers = np.full(columns.resources.n, -1, np.int64)
        numbers[resource] = of_run
        here = np.flatnonzero(numbers >= 0)
        targets = self._targets(points, points.pick(columns.resource), numbers, here, now)
        slots = np.full(len(numbers), -1, np.int32)
        slots[here] = self._reporters.resolve(
            numbers[here].tolist(), targets, _ENGINE_NAMES, self._texts, identity, sender, now
        )
        return slots.take(resource)

    def _targets(
        self,
        points: Points,
        resource: Int32s,
        numbers: Int64s,
        here: Rows,
        now: Instant,
    ) -> list[Target]:
        """What each resource `here` is: as this batch shows it, else as an earlier one did."""
        shapes, shape = self._shapes, points.meaning["shape"]
        engine = np.full(len(numbers), NO_ENGINE, np.int64)
        np.minimum.at(engine, resource, shapes.engine.take(shape))
        model, role = shapes.model.take(shape), shapes.role.take(shape)
        preferred = points.has(Flag.MODEL_NAME)
        first = _firsts(np.where(preferred, model, 0), resource, len(numbers))
        second = _firsts(np.where(preferred, 0, model), resource, len(numbers))
        models = np.where(first > 0, first, second)
        roles = _firsts(role, resource, len(numbers))
        for column in (models, roles):
            column[column == UNREADABLE] = 0
        targets = [
            self._reporters.learn(
                int(numbers[r]), Target(int(engine[r]), int(models[r]), int(roles[r])), now
            )
            for r in here.tolist()
        ]
        self._reporters.forget_targets()
        return targets


def _firsts(numbers: Int64s, resource: Int32s, n: int) -> Int64s:
    """int64[n]: the first of `numbers` above 0 of each resource, in the order of the batch."""
    found = np.zeros(n, np.int64)
    rows = np.flatnonzero(numbers)[::-1]
    found[resource[rows]] = numbers[rows]  # the last write, the first in the batch, wins
    return found


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
    at = points.rows(rows)
    resource = columns.resource[at].astype(np.intp)
    is_agent = points.has(Flag.GUEST)[rows]
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
