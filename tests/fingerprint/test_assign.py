"""Kinds and tenants of whole batches, from real OTLP and from columns made by hand."""

import gc
import json
import tracemalloc
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.fingerprint.assign import MAX_READ, Fingerprints
from pipeline.fingerprint.config import FingerprintConfig, RouteConfig
from pipeline.fingerprint.request import OTHER, Kind
from pipeline.model import Canonical, Dictionary, RequestRows, RequestTraits
from pipeline.normalise.attributes import normalise_logs, normalise_spans
from pipeline.normalise.traits import TraitKeys
from pipeline.symbols import hash64
from tests.builders import COLLECTOR, START, logs, requests, spans
from tests.decide.world import directory
from tests.fingerprint.columns import batch, dictionary
from tests.normalise.test_attributes import ENDPOINT, LOG, NEW, OLD, known

FLEET = directory((2, 2))
"""Slots 0 and 1 in pool-0, 2 and 3 in pool-1."""
KEYS = TraitKeys()
TEXT = st.sampled_from(
    ["", "a", "b", "/v1/x", "/v1/y?z", "POST", "post", "h://h/v1/x", "\u00e9\x00"]
)
WORDS = (
    "method",
    "route",
    "path",
    "rpc_service",
    "rpc_method",
    "operation",
    "model",
    "request_class",
    "tenant",
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(WORDS, TEXT)
        | {"slot": st.integers(0, 3), "prompt_tokens": st.sampled_from([1.0, 600.0, 1e6])},
    ),
    min_size=1,
    max_size=30,
)


def assign(
    rows: Sequence[Mapping[str, Any]], fingerprints: Fingerprints | None = None
) -> tuple[RequestRows, Fingerprints]:
    fingerprints = fingerprints or Fingerprints(FingerprintConfig())
    return fingerprints.assign(*batch(rows), FLEET, START), fingerprints


def kind_of(span: Mapping[str, Any], keys: TraitKeys = KEYS) -> Kind:
    """Of one client span towards a known endpoint of pool p."""
    identity = known("10.0.0.7:8000")
    return only_kind(normalise_spans(spans({}, [span]), identity, COLLECTOR, START, keys))


def only_kind(canonical: Canonical) -> Kind:
    identity = known("10.0.0.7:8000")
    fingerprints = Fingerprints(FingerprintConfig())
    assert canonical.requests is not None
    assert canonical.traits is not None
    rows = fingerprints.assign(canonical.requests, canonical.traits, identity.directory(), START)
    kind = fingerprints.kind(int(rows.kind[0]))
    assert kind is not None
    assert kind.fingerprint == int(rows.kind[0])
    return kind


# what a kind is


def test_old_new_and_both_conventions_are_one_kind() -> None:
    new = {**NEW, "http.request.method": "POST", "gen_ai.request.model": "llama"}
    old = {**OLD, "http.method": "post", "gen_ai.request.model": "llama"}
    kind = kind_of(new)
    assert kind == Kind("p", "POST", "/v1/completions", "llama", "", "<=512")
    assert kind_of(old) == kind == kind_of({**old, **new})
    assert kind_of(dict(reversed(new.items()))) == kind


def test_an_access_log_and_a_span_of_one_request_are_one_kind() -> None:
    record = {**LOG, "method": "POST", "path": "/v1/completions?a=1", "bytes_received": 4_000}
    log = normalise_logs(logs({}, [record]), known("10.0.0.7:8000"), COLLECTOR, START)
    span = {"http.request.method": "POST", "url.path": "/v1/completions",
            "http.request.body.size": 4_000}  # fmt: skip
    assert (
        only_kind(log)
        == kind_of({**ENDPOINT, **span})
        == Kind("p", "POST", "/v1/completions", length="<=2048")
    )


@pytest.mark.parametrize(
    ("span", "route"),
    [
        ({"http.route": "/users/:id", "url.path": "/users/7"}, "/users/{}"),
        ({"url.template": "/users/{id}", "url.path": "/users/7"}, "/users/{}"),
        ({"url.path": "/users/7", "gen_ai.operation.name": "chat"}, "/users/{}"),
        ({"rpc.service": "inference.GRPCInferenceService", "rpc.method": "ModelInfer"},
         "/inference.GRPCInferenceService/ModelInfer"),
        ({"rpc.method": "inference.GRPCInferenceService/ModelInfer"},
         "/inference.GRPCInferenceService/ModelInfer"),
        ({"gen_ai.operation.name": "chat"}, "chat"),
        ({}, ""),
    ],
)  # fmt: skip
def test_the_route_is_the_best_that_the_sender_knows(span: dict[str, Any], route: str) -> None:
    assert kind_of({**ENDPOINT, **span}).route == route


def test_failed_and_served_requests_are_one_kind_where_the_size_is_known() -> None:
    asked = {**ENDPOINT, "http.request.body.size": 40_000}
    served = kind_of({**asked, "gen_ai.usage.input_tokens": 300})
    assert kind_of({**asked, "http.response.status_code": 503}) == served
    assert served.length == "<=32768"


def test_classes_and_tenants_come_from_the_attributes_that_are_configured() -> None:
    keys = TraitKeys(request_class=("gen_ai.operation.name",), tenant=("service.namespace",))
    identity = known("10.0.0.7:8000")
    columns = spans({"service.namespace": "acme"}, [{**ENDPOINT, "gen_ai.operation.name": "chat"}])
    found = normalise_spans(columns, identity, COLLECTOR, START, keys)
    assert only_kind(found).request_class == "chat"
    assert found.traits is not None
    assert found.traits.tenant is not None
    assert found.traits.strings.text(int(found.traits.tenant[0])) == "acme"


def test_a_requests_own_tenant_is_taken_before_its_resources() -> None:
    identity = known("10.0.0.7:8000")
    columns = spans({"tenant.id": "a"}, [ENDPOINT, {**ENDPOINT, "tenant.id": "b"}])
    keys = TraitKeys(tenant=("tenant.id", "service.namespace"))
    found = normalise_spans(columns, identity, COLLECTOR, START, keys).traits
    assert found is not None
    assert found.tenant is not None
    assert [found.strings.text(int(code)) for code in found.tenant] == ["", "b"]


def test_who_asks_makes_no_kind() -> None:
    agents = ["curl", "x" * 5_000, "\u202e\u0000", "Mozilla/5.0 (kube-probe/1.31)"]
    kinds = {kind_of({**ENDPOINT, "user_agent.original": agent}) for agent in agents}
    assert kinds == {kind_of(ENDPOINT)}


def test_pools_have_kinds_of_their_own_and_endpoints_of_one_pool_do_not() -> None:
    rows, _ = assign([{"slot": slot, "path": "/v1/x"} for slot in range(4)])
    assert rows.kind[0] == rows.kind[1] != rows.kind[2] == rows.kind[3]


# columns against an oracle


@given(st.lists(ROWS, max_size=4))
def test_every_row_has_the_kind_of_its_own_words(batches: list[list[dict[str, Any]]]) -> None:
    """However rows are mixed and batches follow each other: as if each came alone."""
    _, fingerprints = assign(batches[0] if batches else [{}])
    for rows in batches:
        found, _ = assign(rows, fingerprints)
        alone = [assign([row])[0] for row in rows]
        assert found.kind.tolist() == [int(each.kind[0]) for each in alone]
        assert found.tenant.tolist() == [int(each.tenant[0]) for each in alone]
        for row, tenant in zip(rows, found.tenant.tolist(), strict=True):
            name = row.get("tenant")
            assert tenant == (0 if name is None else hash64(name.encode()))


@given(ROWS, st.integers(0, 30))
def test_any_cut_of_a_stream_gives_the_same_kinds(rows: list[dict[str, Any]], cut: int) -> None:
    whole, _ = assign(rows)
    _, fingerprints = assign(rows[:1])
    parts = [part for part in (rows[:cut], rows[cut:]) if part]
    found: list[int] = []
    for part in parts:
        found += assign(part, fingerprints)[0].kind.tolist()
    assert found == whole.kind.tolist()


def test_an_empty_batch_stays_empty() -> None:
    rows, _ = assign([])
    assert rows.n == 0


# bounds


class Flood:
    """Requests with texts that never repeat, in batches of 10,000."""

    BATCH = 10_000

    def __init__(self, **config: Any) -> None:
        self.fingerprints = Fingerprints(FingerprintConfig(**config))
        self.calls: Counter[int] = Counter()
        self.counts: Counter[str] = Counter()
        self._rows = requests([{"prompt_tokens": 100.0}] * self.BATCH)
        self._codes = np.arange(self.BATCH, dtype=np.int32)

    def send(self, word: str, texts: Sequence[str]) -> None:
        strings = dictionary([*texts, "POST"])
        method = np.full(self.BATCH, self.BATCH, np.int32)
        given: dict[str, Any] = {"method": method, word: self._codes}
        rows = self.fingerprints.assign(
            self._rows, RequestTraits(self.BATCH, strings, **given), FLEET, START
        )
        kinds, counts = np.unique(rows.kind, return_counts=True)
        self.calls.update(dict(zip(kinds.tolist(), counts.tolist(), strict=True)))
        self.counts.update(self.fingerprints.take_counts())


@pytest.mark.parametrize(
    ("word", "text", "total"),
    [
        ("path", "/v1/users/name-{}-x/keys", 1_000_000),
        ("path", "/\u0444\u0430\u0439\u043b/{}\u202e\u0000x?q={}", 100_000),
        ("route", "/route-{}-of-its-own/{}q", 100_000),
        ("model", "model {}", 100_000),
        ("request_class", "class {}", 100_000),
        ("operation", "operation {}", 100_000),
    ],
)
def test_a_million_texts_that_never_repeat_stay_in_bounded_memory_and_are_all_counted(
    word: str, text: str, total: int
) -> None:
    """Scenario: 1,000,000 requests, each with a URL, route, model, class or operation of its own.

    Guarantees: a bounded number of kinds, memory that stops growing, every request counted once,
    and what found no room told by number.
    """
    flood = Flood()
    try:
        for low in range(0, total, Flood.BATCH):
            flood.send(word, [text.format(i, i) for i in range(low, low + Flood.BATCH)])
            if low == total - 4 * Flood.BATCH:
                tracemalloc.start()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
    assert sum(flood.calls.values()) == total
    assert len(flood.calls) <= 140
    assert flood.calls[0] == flood.counts["kind_overflow"] == flood.fingerprints.overflow["pool-0"]
    assert flood.calls[0] == total - total // Flood.BATCH * MAX_READ
    texts = {kind.text for kind in flood.fingerprints.kinds().values()}
    assert all(each.isprintable() for each in texts)


def test_beyond_its_room_a_pool_has_requests_without_a_kind_and_others_have_theirs() -> None:
    config = FingerprintConfig(max_kinds_per_pool=4, max_models=64)
    fingerprints = Fingerprints(config)
    many = [{"model": f"m{i}"} for i in range(10)]
    rows, _ = assign([*many, {"slot": 2, "model": "m9"}], fingerprints)
    assert np.count_nonzero(rows.kind) == 5
    assert fingerprints.overflow == {"pool-0": 6}
    assert fingerprints.take_counts() == {"kind_overflow": 6}
    again, _ = assign(many, fingerprints)
    assert again.kind.tolist() == rows.kind[:10].tolist()
    assert fingerprints.take_counts() == {"kind_overflow": 6}


def test_routes_that_no_trie_merges_are_one_other_route_in_a_dry_run() -> None:
    routes = RouteConfig(max_children=2, dry_run=True)
    fingerprints = Fingerprints(FingerprintConfig(max_routes=5, routes=routes))
    assign([{"path": f"/u/name{chr(97 + i)}"} for i in range(20)], fingerprints)
    shown = [kind.route for kind in fingerprints.kinds().values()]
    assert shown == [*(f"/u/name{letter}" for letter in "abcde"), OTHER]
    assert fingerprints.learned_routes()["pool-0"][0].template == "/u/{}"


def test_more_tenants_than_are_kept_count_without_one() -> None:
    fingerprints = Fingerprints(FingerprintConfig(max_tenants=3))
    rows, _ = assign([{"tenant": f"t{i}"} for i in range(5)] + [{}], fingerprints)
    assert np.count_nonzero(rows.tenant) == 3
    assert fingerprints.take_counts() == {"tenant_overflow": 2}
    assert fingerprints.tenant(hash64(b"t1")) == "t1"
    assert fingerprints.tenant(hash64(b"t4")) == ""


def test_what_had_no_requests_for_an_hour_makes_room_and_is_told() -> None:
    fingerprints = Fingerprints(FingerprintConfig(max_tenants=1, max_kinds_per_pool=1))
    first, _ = assign([{"tenant": "a", "path": "/a"}], fingerprints)
    assert fingerprints.retire(START.plus_s(3_600.0)) == ((), ())
    gone = fingerprints.retire(START.plus_s(3_601.0))
    assert gone == ((int(first.kind[0]),), (hash64(b"a"),))
    later, _ = assign([{"tenant": "b", "path": "/b"}], fingerprints)
    assert fingerprints.name(int(later.kind[0])) == "pool-0: /b"
    assert fingerprints.tenant(int(later.tenant[0])) == "b"
    assert fingerprints.name(int(first.kind[0])) == ""
    assert fingerprints.take_counts() == {}


def test_state_survives_as_plain_values() -> None:
    fingerprints = Fingerprints(FingerprintConfig())
    sent = [{"tenant": "a", "path": f"/u/n{chr(97 + i % 26)}{i}q"} for i in range(60)]
    assign(sent, fingerprints)
    restored = Fingerprints(FingerprintConfig())
    restored.restore(json.loads(json.dumps(fingerprints.export_state())))
    assert restored.export_state() == fingerprints.export_state()
    assert restored.kinds() == fingerprints.kinds()
    assert restored.tenant(hash64(b"a")) == "a"
    assert assign(sent, restored)[0].kind.tolist() == assign(sent, fingerprints)[0].kind.tolist()


@pytest.mark.parametrize(
    "state", [{}, {"routes": {}, "kinds": [["a"] * 9], "tenants": []},
              {"routes": {}, "kinds": [[1] * 6], "tenants": []},
              {"routes": {}, "kinds": [], "tenants": [["a", "b"]]}]
)  # fmt: skip
def test_state_of_another_shape_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, LookupError)):
        Fingerprints(FingerprintConfig()).restore(state)


def test_words_that_collide_cost_nobody_else_a_kind() -> None:
    """Two different words with one hash: the second is taken for the first, and no other row."""
    strings = Dictionary(b"ab", np.array([0, 1, 2], np.int32), np.array([5, 5], np.uint64))
    fingerprints = Fingerprints(FingerprintConfig())
    rows = fingerprints.assign(
        requests([{}, {}, {}]),
        RequestTraits(3, strings, model=np.array([0, 1, -1], np.int32)),
        FLEET,
        START,
    )
    assert rows.kind[0] == rows.kind[1] != rows.kind[2]
