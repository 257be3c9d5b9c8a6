"""What is kept of known series changes nothing: kept, not kept, or forgotten all the time."""

from collections.abc import Mapping
from dataclasses import fields
from random import Random
from typing import Any, Final, NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from pipeline.clock import NS_PER_S, HandClock
from pipeline.decode.columns import decode_points
from pipeline.model import Canonical, Member, PoolConfig, Rights, SampleRows, Sender, UInt64s
from pipeline.normalise.identity import Identity, IdentityConfig
from pipeline.normalise.metrics import PointNormaliser
from pipeline.normalise.plans import IDLE_S, Plans
from pipeline.normalise.points import MEANING, Meanings, Runs
from tests.exposition import Family, Sample, request

SENDERS: Final = (
    Sender("10.0.0.9", Rights.METRICS),
    Sender("10.0.0.9", Rights.METRICS | Rights.IDENTITY),
    Sender("127.0.0.1", Rights.METRICS),
    Sender("10.0.0.8", Rights.REQUESTS),
)
POOLS: Final = (PoolConfig(name="*"), PoolConfig(name="st", membership="file", file="x"))


class Page(NamedTuple):
    """One scrape: which endpoint, how it names itself, what its page shows."""

    endpoint: int
    place: str
    engine: str
    model: str
    variant: int
    value: float
    help_unit: str


class Batch(NamedTuple):
    """Pages that arrive together, from one sender, after some seconds."""

    pages: list[Page]
    sender: int
    seconds: float
    members: list[int] | None


ENGINES: Final = ("vllm", "vllm", "sglang", "triton", "llamacpp", "dcgm")
PLACES: Final = ("address", "address", "pod", "loopback", "weak", "named")


def new_page(rng: Random, endpoint: int) -> Page:
    return Page(
        endpoint,
        place=rng.choice(PLACES),
        engine=rng.choice(ENGINES),
        model=rng.choice(["m", "m", "other", "bad\x1b"]),
        variant=rng.randrange(3),
        value=1.0,
        help_unit="us",
    )


def changed(rng: Random, page: Page) -> Page:
    """A page as it comes next: nearly always as it was, but for a value."""
    page = page._replace(value=rng.choice([0.5, 1.0, 2.0, 2.0, 2.0, float("nan"), -1.0]))
    if rng.random() > 0.15:
        return page
    other = new_page(rng, page.endpoint)
    what = rng.choice(["model", "variant", "engine", "place", "help_unit"])
    other = other._replace(help_unit=rng.choice(["us", "ns"]))
    return page._replace(**{what: getattr(other, what)})


def story(seed: int) -> list[Batch]:
    """A small fleet that mostly goes on as it is."""
    rng = Random(seed)
    pages = [new_page(rng, k) for k in range(4)]
    batches = []
    for step in range(30):
        pages = [changed(rng, page) for page in pages]
        if rng.random() < 0.1:
            pages[rng.randrange(4)] = new_page(rng, 4 + step)
        shown = [
            page._replace(engine="down") if rng.random() < 0.1 else page
            for page in pages
            if rng.random() < 0.9
        ]
        sender = rng.choice([0] * 9 + [1, 2, 3])
        seconds = rng.choice([1.0] * 20 + [100.0, IDLE_S + 100.0])
        members = sorted(rng.sample(range(4), 2)) if rng.random() < 0.1 else None
        batches.append(Batch(shown or pages, sender, seconds, members))
    return batches


def resource(page: Page) -> dict[str, str]:
    host = f"10.1.0.{page.endpoint}"
    own = {"service.name": page.engine, "service.instance.id": f"{host}:8000"}
    loopback = {"service.name": page.engine, "server.address": "localhost", "server.port": "8000"}
    return {
        "address": own | {"server.address": host, "server.port": "8000"},
        "pod": own | {"k8s.pod.name": f"p{page.endpoint}", "k8s.node.name": "n"},
        "loopback": loopback | {"host.name": f"h{page.endpoint}"},
        "weak": loopback,
        "named": own | {"tailrace.endpoint": f"e{page.endpoint}", "tailrace.pool": "q"},
    }[page.place]


def families(page: Page) -> list[Family]:
    up = Family("up", "gauge", "", [Sample("up", {}, float(page.engine != "down"))])
    labels = {"model_name": page.model} if page.variant else {}
    return [*_FAMILIES[page.engine](page, labels), up]


def _one(name: str, kind: str, value: float, help_text: str = "", **labels: str) -> Family:
    return Family(name, kind, help_text, [Sample(name, labels, value)])


def _vllm(page: Page, labels: Mapping[str, str]) -> list[Family]:
    ends = [Sample("vllm:request_success_total", {"finished_reason": r}, 1.0) for r in "ab"]
    return [
        _one("vllm:num_requests_running", "gauge", page.value, **labels),
        _one("vllm:kv_cache_usage_perc", "gauge", page.value, **labels),
        _one("vllm:brand_new", "gauge", 1.0),
        _one("vllm:num_requests_swapped", "gauge", 1.0),
        _one(
            *("vllm:cache_config_info", "gauge", 1.0),
            block_size="16",
            num_gpu_blocks=("1000", "1200", "x")[page.variant],
        ),
        Family("vllm:request_success_total", "counter", "", ends[: page.variant]),
    ]


def _sglang(page: Page, labels: Mapping[str, str]) -> list[Family]:
    name = "sglang:num_queue_reqs"
    queue = [Sample(name, {"priority": p}, 1.0) for p in "01"] + [Sample(name, {}, page.value)]
    role = ("unified", "prefill", "decode")[page.variant]
    return [
        _one("sglang:num_running_reqs", "gauge", 1.0, engine_type=role, tp_rank="0", **labels),
        Family(name, "gauge", "", queue),
    ]


def _triton(page: Page, labels: Mapping[str, str]) -> list[Family]:
    unit = ("", "us", "ms")[page.variant]
    name = "nv_inference_request_duration_us"
    both = [Family(name, "counter", "", [Sample(name, {"model": "t"}, 2e6)], unit)]
    return both + (_vllm(page, labels) if page.variant else [])


def _llamacpp(page: Page, _: Mapping[str, str]) -> list[Family]:
    text = "Predict process time" if page.help_unit == "us" else "tokens"
    return [_one("llamacpp:tokens_predicted_seconds", "counter", page.value, text)]


def _dcgm(page: Page, _: Mapping[str, str]) -> list[Family]:
    pod = {"pod": f"p{page.variant}", "namespace": "", "UUID": f"G{page.variant}", "Hostname": "n"}
    help_text = f"Throttling (in {page.help_unit})."
    return [
        _one("DCGM_FI_DEV_GPU_TEMP", "gauge", page.value, **pod),
        _one("DCGM_FI_DEV_THERMAL_VIOLATION", "counter", 2000.0, help_text, **pod),
        _one("DCGM_EXP_XID_ERRORS_COUNT", "gauge", 1.0, xid=str(page.variant), **pod),
    ]


_FAMILIES: Final[dict[str, Any]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "triton": _triton,
    "llamacpp": _llamacpp,
    "dcgm": _dcgm,
    "down": lambda *_: [],
}


class Side:
    """A normaliser beside an identity of its own."""

    def __init__(self, normaliser: PointNormaliser) -> None:
        self.normaliser = normaliser
        self.identity = Identity(IdentityConfig(forget_after_s=150.0, max_endpoints=8), POOLS)
        self.clock = HandClock()

    def take(self, batch: Batch) -> Canonical:
        now = self.clock.advance(batch.seconds)
        if batch.members is not None:
            members = (Member(address=f"10.1.0.{k}:8000") for k in batch.members)
            self.identity.set_members("st", members)
        self.identity.retired(now)
        message = ExportMetricsServiceRequest()
        for page in batch.pages:
            one = ExportMetricsServiceRequest()
            one.ParseFromString(request(families(page), resource(page), now.wall_ns, NS_PER_S))
            message.MergeFrom(one)
        columns = decode_points(message.SerializeToString())
        sender = SENDERS[batch.sender]
        return self.normaliser.normalise_points(columns, self.identity, sender, now)


def assert_equal(found: SampleRows | None, expected: SampleRows | None) -> None:
    assert (found is None) == (expected is None)
    for field in fields(SampleRows):
        if field.name not in ("histograms", "hint"):
            np.testing.assert_array_equal(
                getattr(found, field.name, None), getattr(expected, field.name, None), field.name
            )


@given(st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_what_is_kept_of_series_changes_no_sample_no_count_and_no_endpoint(seed: int) -> None:
    kept = Side(PointNormaliser())
    others = [
        Side(PointNormaliser(max_plans=0)),
        Side(PointNormaliser(max_plans=7, max_shapes=5, max_reporters=2)),
    ]
    for batch in story(seed):
        found = kept.take(batch)
        for other in others:
            expected = other.take(batch)
            assert found.dropped == expected.dropped
            assert_equal(found.samples, expected.samples)
            mine, theirs = kept.identity.directory(), other.identity.directory()
            assert (mine.id, mine.address, mine.models) == (
                theirs.id,
                theirs.address,
                theirs.models,
            )
            assert mine.role.tolist() == theirs.role.tolist()
            assert mine.member.tolist() == theirs.member.tolist()


STEADY: Final = Batch(
    [Page(k, "address", "vllm", "m", 1, 1.0, "us") for k in range(4)], 0, 1.0, None
)


def test_a_known_series_is_read_once() -> None:
    side = Side(PointNormaliser())
    side.take(STEADY)
    n = side.normaliser.n_plans
    for _ in range(3):
        side.take(STEADY)
    assert side.normaliser.n_plans == n > 0


def test_one_new_endpoint_forgets_nothing_of_the_others() -> None:
    side = Side(PointNormaliser())
    side.take(STEADY)
    n = side.normaliser.n_plans
    side.take(STEADY._replace(pages=[Page(9, "address", "vllm", "m", 1, 1.0, "us")]))
    assert side.normaliser.n_plans == n + n // 4


def test_series_that_fell_silent_are_forgotten_and_others_are_not() -> None:
    side = Side(PointNormaliser())
    side.take(STEADY)
    n = side.normaliser.n_plans
    one = STEADY._replace(pages=STEADY.pages[:1], seconds=100.0)
    for _ in range(round(IDLE_S / 100) + 2):
        side.take(one)
    assert side.normaliser.n_plans == n // 4


def test_churn_does_not_make_what_is_kept_grow() -> None:
    side = Side(PointNormaliser())
    sizes = []
    for k in range(40):
        side.take(STEADY._replace(pages=[Page(k, "pod", "vllm", "m", 1, 1.0, "us")], seconds=100.0))
        sizes.append(side.normaliser.n_plans)
    assert max(sizes) == max(sizes[:10])


def test_series_beyond_the_bound_are_read_each_time() -> None:
    side = Side(PointNormaliser(max_plans=3))
    first, second = side.take(STEADY), side.take(STEADY)
    assert first.samples is not None
    assert second.samples is not None
    assert first.samples.n == second.samples.n > 3
    assert side.normaliser.n_plans == 3


def take(side: Side, named: Mapping[str, str], *pages: Family, sender: Sender) -> Canonical:
    now = side.clock.advance(1.0)
    columns = decode_points(request(pages, named, now.wall_ns))
    return side.normaliser.normalise_points(columns, side.identity, sender, now)


def test_a_known_series_of_a_sender_without_the_right_to_name_endpoints_has_none() -> None:
    side, running = Side(PointNormaliser()), _one("vllm:num_requests_running", "gauge", 1.0)
    named = {"service.name": "vllm", "tailrace.endpoint": "e1"}
    for sender, is_found in ((SENDERS[1], True), (SENDERS[1], True), (SENDERS[0], False)):
        found = take(side, named, running, sender=sender)
        assert (found.samples is not None and found.samples.n == 1) is is_found


def test_a_help_text_that_changes_is_read_again() -> None:
    side = Side(PointNormaliser())
    pod = resource(Page(0, "pod", "vllm", "m", 1, 1.0, "us"))
    take(side, pod, _one("vllm:num_requests_running", "gauge", 1.0), sender=SENDERS[0])
    found = []
    for unit in ("us", "us", "ns"):
        help_text, labels = f"Throttling (in {unit}).", {"pod": "p0", "namespace": ""}
        family = _one("DCGM_FI_DEV_THERMAL_VIOLATION", "counter", 2000.0, help_text, **labels)
        samples = take(side, {"service.name": "dcgm"}, family, sender=SENDERS[0]).samples
        assert samples is not None
        found += samples.value.tolist()
    np.testing.assert_allclose(found, [2e-3, 2e-3, 2e-6])


def test_known_series_say_anew_which_engine_a_page_is_of() -> None:
    side, own = Side(PointNormaliser()), resource(Page(0, "address", "x", "m", 0, 1.0, ""))
    vllm = _one("vllm:num_requests_running", "gauge", 1.0)
    triton = _one("nv_inference_request_success", "counter", 1.0)
    for pages, engine in (
        ((triton, vllm), "triton"),
        ((vllm,), "vllm"),
        ((vllm,), "vllm"),
        ((vllm,), "vllm"),
        ((triton, vllm), "triton"),
    ):
        take(side, own, *pages, sender=SENDERS[0])
        directory = side.identity.directory()
        assert [directory.engine[slot] for slot in directory.slots()] == [engine]


def meanings(keys: UInt64s) -> Meanings:
    meaning: Meanings = np.zeros(len(keys), MEANING)
    meaning["first"], meaning["second"] = keys.T
    return meaning


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_plans_are_those_of_a_dictionary_wherever_pages_are_cut_and_whatever_their_order(
    seed: int,
) -> None:
    rng, now = Random(seed), HandClock().now()
    plans, known = Plans(rng.choice([20, 1000])), dict[int, int]()
    pages = [[100 * k + i for i in range(rng.randrange(1, 9))] for k in range(4)]
    for _ in range(30):
        page = rng.choice(pages)
        if rng.random() < 0.2:
            rng.shuffle(page)
        if rng.random() < 0.1:
            page[rng.randrange(len(page))] = rng.randrange(1000, 1020)
        stream = [(k, key) for k in rng.choices(range(4), k=3) for key in pages[k]]
        low = rng.randrange(len(stream))
        stream = stream[low : low + rng.randrange(1, 20)]
        keys = np.array([(key, key % 3) for _, key in stream], np.uint64)
        runs = Runs.of(np.array([k for k, _ in stream], np.int32))
        found, missing = plans.find(keys, runs, now)
        expected = [known.get(key, -1) for _, key in stream]
        assert found.plan.tolist() == expected
        assert found.meaning["first"][found.plan >= 0].tolist() == [
            key for _, key in stream if key in known
        ]
        assert np.flatnonzero(found.plan < 0).tolist() == ([] if missing is None else [*missing])
        if missing is not None and len(missing):
            added = plans.add(meanings(keys[missing]), now).tolist()
            news = [key for _, key in stream if key not in known]
            known |= {key: plan for key, plan in zip(news, added, strict=True) if plan >= 0}
    assert len(plans) == len(known)
