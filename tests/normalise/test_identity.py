from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from pipeline.clock import Instant
from pipeline.model import Member, PoolConfig, PoolMatch, Role, Sender
from pipeline.normalise.endpoint import IdentityState
from pipeline.normalise.identity import Identity, IdentityConfig
from tests.builders import COLLECTOR, LOCAL, START, TRUSTED, resources

OTHER = Sender("10.9.9.7", COLLECTOR.rights)
POD = {
    "k8s.namespace.name": "chat",
    "k8s.pod.name": "vllm-0",
    "k8s.pod.uid": "uid-0",
    "k8s.node.name": "n1",
    "server.address": "10.0.0.7",
    "server.port": "8000",
    "service.instance.id": "10.0.0.7:8000",
    "service.name": "vllm",
}
PLAIN = {"server.address": "10.0.0.7", "server.port": "8000", "service.name": "vllm"}
SIDECAR = {"service.instance.id": "localhost:8000", "service.name": "vllm"}


def scrape(
    identity: Identity,
    *rows: Mapping[str, Any],
    engine: str = "vllm",
    model: str = "m",
    sender: Sender = COLLECTOR,
    now: Instant = START,
) -> list[int]:
    batch = resources(*rows)
    engines, models = [engine] * len(rows), [model] * len(rows)
    found = identity.scraped(batch.resources, batch.strings, engines, models, sender, now)
    return [int(slot) for slot in found]


def laptop(*pools: PoolConfig, **config: Any) -> Identity:
    return Identity(IdentityConfig(**config), pools)


def static(*members: Member, serving_port: int | None = None) -> PoolConfig:
    return PoolConfig(name="p", membership="static", members=members, serving_port=serving_port)


def address_slots(identity: Identity, *pairs: tuple[str, int]) -> list[int]:
    batch = resources(*({"host.name": host} for host, _ in pairs))
    host = batch.resources.codes("host.name")
    port = np.array([port for _, port in pairs], np.int32)
    return [int(slot) for slot in identity.by_address(host, port, batch.strings)]


def place_slots(identity: Identity, *rows: tuple[str, str, str]) -> list[int]:
    keys = ("k8s.namespace.name", "k8s.pod.name", "k8s.node.name")
    batch = resources(*({k: v for k, v in zip(keys, row, strict=True) if v} for row in rows))
    codes = [batch.resources.codes(key) for key in keys]
    found = identity.by_pod_or_node(codes[0], codes[1], codes[2], batch.strings, START)
    return [int(slot) for slot in found]


# the directory


def test_an_empty_directory_has_eight_unused_slots() -> None:
    directory = laptop().directory()
    assert directory.n == 8
    assert not directory.known.any()
    assert len(directory.slots()) == 0


def test_the_directory_is_the_same_object_until_something_changes() -> None:
    identity = laptop()
    scrape(identity, POD)
    first = identity.directory()
    scrape(identity, POD, now=START.plus_s(1))
    assert identity.directory() is first
    scrape(identity, POD, model="other", now=START.plus_s(2))
    second = identity.directory()
    assert second.version > first.version
    assert second.models[0] == ("m", "other")


def test_the_directory_grows_in_powers_of_two() -> None:
    identity = laptop()
    rows = [{"server.address": f"10.0.0.{i}", "server.port": "80"} for i in range(1, 10)]
    scrape(identity, *rows)
    assert identity.directory().n == 16
    assert identity.directory().known.sum() == 9


# scraped targets


def test_a_scraped_engine_is_a_member_on_a_laptop() -> None:
    identity = laptop()
    assert scrape(identity, PLAIN) == [0]
    directory = identity.directory()
    assert directory.id[0] == "10.0.0.7:8000"
    assert directory.address[0] == "10.0.0.7:8000"
    assert directory.engine[0] == "vllm"
    assert directory.pools[directory.pool[0]] == "m"
    assert directory.member[0]
    assert identity.unmatched.tolist() == []


def test_a_resource_without_an_engine_finds_but_makes_nothing_known() -> None:
    identity = laptop()
    assert scrape(identity, PLAIN, engine="", model="") == [-1]
    scrape(identity, PLAIN)
    assert scrape(identity, PLAIN, engine="", model="") == [0]
    assert identity.directory().engine[0] == "vllm"


def test_old_and_new_names_of_the_target_are_one_endpoint() -> None:
    identity = laptop()
    old = {"net.host.name": "10.0.0.7", "net.host.port": "8000"}
    assert scrape(identity, PLAIN, old, {**old, **PLAIN}) == [0, 0, 0]


def test_a_random_instance_id_is_an_alias_and_never_an_identity() -> None:
    identity = laptop()
    random_id = {"service.instance.id": "b72cb100-e48a-4760-81d0-5f054c3ddd80"}
    assert scrape(identity, random_id) == [-1]
    assert identity.take_notes()[1] == {"unidentified": 1}
    assert scrape(identity, {**PLAIN, **random_id}) == [0]
    assert scrape(identity, random_id) == [0]


def test_a_readable_instance_id_names_an_endpoint_that_says_nothing_else() -> None:
    identity = laptop()
    scrape(identity, {"service.instance.id": "worker-3"})
    assert identity.directory().id[0] == "worker-3"
    assert identity.directory().address[0] == ""


def test_random_ids_of_earlier_processes_are_dropped() -> None:
    identity = laptop()
    for i in range(50):
        scrape(identity, {**PLAIN, "service.instance.id": f"{i:032x}"})
    assert scrape(identity, {"service.instance.id": f"{49:032x}"}) == [0]
    assert scrape(identity, {"service.instance.id": f"{1:032x}"}, engine="") == [-1]
    (endpoint,) = identity.export_state().endpoints
    assert len(endpoint.aliases) < 20


def test_a_pod_that_restarts_under_its_name_stays_the_same_endpoint() -> None:
    identity = laptop()
    restarted = {**POD, "k8s.pod.uid": "uid-1", "server.address": "10.0.0.8",
                 "service.instance.id": "10.0.0.8:8000"}  # fmt: skip
    assert scrape(identity, POD) == [0]
    assert scrape(identity, restarted, now=START.plus_s(5)) == [0]
    directory = identity.directory()
    assert directory.id[0] == "chat/vllm-0"
    assert directory.address[0] == "10.0.0.8:8000"
    assert identity.conflicts == 0


def test_one_pod_name_in_two_namespaces_or_clusters_is_several_endpoints() -> None:
    identity = laptop()
    here = {"k8s.pod.name": "vllm-0", "k8s.namespace.name": "a"}
    rows = [here, {**here, "k8s.namespace.name": "b"}, {**here, "k8s.cluster.name": "east"}]
    assert scrape(identity, *rows) == [0, 1, 2]
    assert identity.directory().id[:3] == ("a/vllm-0", "b/vllm-0", "east/a/vllm-0")


def test_the_named_local_cluster_is_the_same_as_none() -> None:
    identity = laptop(cluster="west")
    assert scrape(identity, POD, {**POD, "k8s.cluster.name": "west"}) == [0, 0]
    assert identity.directory().id[0] == "chat/vllm-0"


def test_a_taken_over_address_goes_to_the_newest_pod_and_is_counted_while_both_live() -> None:
    identity = laptop()
    scrape(identity, POD)
    newer = {**POD, "k8s.pod.name": "vllm-1", "k8s.pod.uid": "uid-1"}
    assert scrape(identity, newer, now=START.plus_s(5)) == [1]
    directory = identity.directory()
    assert directory.address[:2] == ("", "10.0.0.7:8000")
    assert directory.member[:2].tolist() == [False, True]
    assert identity.conflicts > 0
    notes, counts = identity.take_notes()
    assert counts["alias_conflict"] == identity.conflicts
    assert any("chat/vllm-0" in note and "chat/vllm-1" in note for note in notes)
    assert address_slots(identity, ("10.0.0.7", 8000)) == [1]


def test_an_address_that_changes_hands_after_silence_is_no_conflict() -> None:
    identity = laptop()
    scrape(identity, POD)
    newer = {**POD, "k8s.pod.name": "vllm-1", "k8s.pod.uid": "uid-1"}
    scrape(identity, newer, now=START.plus_s(120))
    assert identity.conflicts == 0


# loopback and merged identities


def test_a_laptop_engine_on_localhost_has_the_loopback_address() -> None:
    identity = laptop()
    assert scrape(identity, SIDECAR, sender=LOCAL) == [0]
    assert identity.directory().id[0] == "127.0.0.1:8000"
    assert identity.directory().address[0] == "127.0.0.1:8000"
    assert address_slots(identity, ("127.0.0.1", 8000), ("localhost", 8000)) == [0, -1]


def test_a_static_member_on_loopback_is_the_target_scraped_as_localhost() -> None:
    identity = laptop(static(Member(address="127.0.0.1:8000", id="mine")))
    assert scrape(identity, SIDECAR, sender=LOCAL) == [0]
    assert identity.directory().id[0] == "mine"


def test_a_loopback_target_of_another_machine_has_no_address() -> None:
    identity = laptop()
    scrape(identity, {**SIDECAR, "host.name": "gpu-1"})
    assert identity.directory().id[0] == "gpu-1/localhost:8000"
    assert identity.directory().address[0] == ""


def test_sidecars_that_name_their_node_stay_apart() -> None:
    identity = laptop()
    one, two = {**SIDECAR, "host.name": "gpu-1"}, {**SIDECAR, "host.name": "gpu-2"}
    assert scrape(identity, one, two, one, sender=LOCAL) == [0, 1, 0]
    assert identity.directory().address[:2] == ("", "")
    assert not identity.interleaved(0)


def test_two_nodes_under_one_localhost_name_are_detected_and_refused() -> None:
    identity = laptop()
    found = []
    for step in range(6):
        sender = COLLECTOR if step % 2 else OTHER
        found += scrape(identity, SIDECAR, sender=sender, now=START.plus_s(15 * step))
    assert found == [0, 0, 0, -1, -1, -1]
    assert identity.interleaved(0)
    assert not identity.directory().member[0]
    notes, counts = identity.take_notes()
    assert counts["merged_identity"] == 3
    assert sum("two sources report" in note for note in notes) == 1


def test_two_resources_under_one_localhost_name_from_one_peer_are_detected_too() -> None:
    identity = laptop()
    other = {**SIDECAR, "service.name": "vllm-b"}
    rounds = [scrape(identity, SIDECAR, other, now=START.plus_s(15 * i)) for i in range(3)]
    assert rounds[-1] == [-1, -1]


def test_a_merged_identity_is_taken_again_when_only_one_source_is_left() -> None:
    identity = laptop()
    for step in range(4):
        scrape(identity, SIDECAR, sender=(COLLECTOR, OTHER)[step % 2], now=START.plus_s(step))
    assert identity.interleaved(0)
    assert scrape(identity, SIDECAR, sender=OTHER, now=START.plus_s(400)) == [0]
    assert identity.directory().member[0]


def test_a_collector_that_restarts_elsewhere_is_not_two_machines() -> None:
    identity = laptop()
    assert scrape(identity, SIDECAR, sender=COLLECTOR) == [0]
    for step in range(1, 5):
        assert scrape(identity, SIDECAR, sender=OTHER, now=START.plus_s(step)) == [0]


def test_gateways_that_share_strongly_named_targets_are_not_two_machines() -> None:
    identity = laptop()
    for step in range(8):
        sender = (COLLECTOR, OTHER)[step % 2]
        assert scrape(identity, POD, sender=sender, now=START.plus_s(step)) == [0]


def test_counters_seen_to_interleave_refuse_the_identity() -> None:
    identity = laptop()
    scrape(identity, SIDECAR)
    identity.refuse_merged(0, START)
    assert identity.interleaved(0)
    assert scrape(identity, SIDECAR, now=START.plus_s(1)) == [-1]


def test_a_listed_member_stays_one_while_its_merged_telemetry_is_refused() -> None:
    identity = laptop(static(Member(address="127.0.0.1:8000", id="mine")))
    scrape(identity, SIDECAR, sender=LOCAL)
    identity.refuse_merged(0, START)
    assert scrape(identity, SIDECAR, sender=LOCAL, now=START.plus_s(1)) == [-1]
    assert identity.directory().member[0]


# pools


def pool_of(identity: Identity, slot: int = 0) -> str:
    directory = identity.directory()
    return directory.pools[directory.pool[slot]] if directory.pool[slot] >= 0 else ""


@pytest.mark.parametrize(
    ("resource", "model", "sender", "expected"),
    [
        ({**POD, "tailrace.pool": "claimed", "service.name": "ruled"}, "m", TRUSTED, "by-rule"),
        ({**POD, "tailrace.pool": "claimed"}, "m", TRUSTED, "claimed"),
        ({**POD, "tailrace.pool": "claimed"}, "m", COLLECTOR, "chat/m"),
        (POD, "m", COLLECTOR, "chat/m"),
        (POD, "", COLLECTOR, "chat/vllm"),
        (PLAIN, "m", COLLECTOR, "m"),
        ({**POD, "k8s.cluster.name": "east"}, "m", COLLECTOR, "east/chat/m"),
        ({"server.address": "10.0.0.7", "server.port": "80"}, "", COLLECTOR, ""),
    ],
)
def test_the_pool_is_the_first_that_exists(
    resource: dict[str, str], model: str, sender: Sender, expected: str
) -> None:
    identity = laptop(PoolConfig(name="by-rule", match=PoolMatch(service_name="rule*")))
    scrape(identity, resource, model=model, sender=sender)
    assert pool_of(identity) == expected


def test_every_given_field_of_a_rule_must_match() -> None:
    rule = PoolMatch(namespace="chat", model_name="llama-*", address="10.0.*")
    identity = laptop(PoolConfig(name="rule", match=rule))
    rows = [POD, {**POD, "k8s.pod.name": "b", "k8s.pod.uid": "b", "server.address": "10.1.0.8"}]
    scrape(identity, *rows, model="llama-3")
    assert [pool_of(identity, slot) for slot in (0, 1)] == ["rule", "chat/llama-3"]


def test_a_model_name_alone_forms_no_pool_across_namespaces() -> None:
    identity = laptop()
    scrape(identity, POD, {**POD, "k8s.namespace.name": "batch", "k8s.pod.uid": "u"})
    assert {pool_of(identity, 0), pool_of(identity, 1)} == {"chat/m", "batch/m"}


def test_pools_whose_names_would_read_alike_stay_apart() -> None:
    identity = laptop()
    scrape(identity, {**PLAIN, "k8s.namespace.name": "org"}, model="llama")
    scrape(identity, {"server.address": "10.0.0.8", "server.port": "80"}, model="org/llama")
    assert pool_of(identity, 0) != pool_of(identity, 1)


def test_several_models_on_one_endpoint_are_one_pool_with_a_set_of_models() -> None:
    identity = laptop()
    other = {**PLAIN, "server.address": "10.0.0.8"}
    scrape(identity, PLAIN, model="a")
    scrape(identity, PLAIN, model="b")
    scrape(identity, other, model="b")
    assert [pool_of(identity, 0), pool_of(identity, 1)] == ["a", "a"]
    assert identity.directory().models[0] == ("a", "b")


def test_a_model_that_is_learned_later_replaces_the_service_name() -> None:
    identity = laptop()
    scrape(identity, PLAIN, model="")
    assert pool_of(identity) == "vllm"
    scrape(identity, PLAIN, model="m")
    assert pool_of(identity) == "m"


def test_pools_beyond_the_bound_are_counted_and_their_endpoints_have_none() -> None:
    identity = laptop(max_pools=2)
    for i in range(4):
        scrape(identity, {**PLAIN, "server.address": f"10.0.0.{i}"}, model=f"m{i}")
    assert identity.directory().pools == ("m0", "m1")
    assert identity.directory().pool[:4].tolist() == [0, 1, -1, -1]
    assert identity.take_notes()[1]["pool_overflow"] >= 2


# addresses


def test_the_serving_port_of_the_pool_goes_with_the_scraped_host() -> None:
    identity = laptop(
        PoolConfig(name="t", match=PoolMatch(service_name="triton"), serving_port=8001)
    )
    scrape(identity, {**PLAIN, "service.name": "triton", "server.port": "8002"}, engine="triton")
    assert identity.directory().address[0] == "10.0.0.7:8001"
    assert address_slots(identity, ("10.0.0.7", 8001), ("10.0.0.7", 8002)) == [0, 0]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "llamacpp"])
def test_engines_that_serve_where_they_are_scraped_need_no_serving_port(engine: str) -> None:
    identity = laptop()
    scrape(identity, PLAIN, engine=engine)
    assert identity.directory().address[0] == "10.0.0.7:8000"


@pytest.mark.parametrize("engine", ["triton", "other"])
def test_other_engines_have_no_address_until_somebody_names_it(engine: str) -> None:
    identity = laptop()
    scrape(identity, PLAIN, engine=engine)
    assert identity.directory().address[0] == ""
    assert identity.directory().member[0]


def test_a_host_name_is_an_alias_and_never_an_address() -> None:
    identity = laptop()
    scrape(identity, {"server.address": "GPU-1", "server.port": "8000"})
    assert identity.directory().address[0] == ""
    assert address_slots(identity, ("gpu-1", 8000), ("gpu-1", 0)) == [0, 0]


def test_an_allowed_explicit_address_beats_the_scraped_one() -> None:
    identity = laptop()
    row = {**PLAIN, "tailrace.address": "10.5.5.5:9000"}
    scrape(identity, row, sender=COLLECTOR)
    assert identity.directory().address[0] == "10.0.0.7:8000"
    scrape(identity, row, sender=TRUSTED)
    assert identity.directory().address[0] == "10.5.5.5:9000"


def test_an_explicit_address_that_is_no_ip_is_counted() -> None:
    identity = laptop()
    scrape(identity, {**PLAIN, "tailrace.address": "gpu-1:9000"}, sender=TRUSTED)
    assert identity.directory().address[0] == "10.0.0.7:8000"
    assert identity.take_notes()[1] == {"bad_address": 1}


def test_a_host_with_several_endpoints_says_nothing_without_a_port() -> None:
    identity = laptop()
    scrape(identity, PLAIN, {**PLAIN, "server.port": "8001"})
    found = address_slots(identity, ("10.0.0.7", 0), ("10.0.0.7", 8001), ("10.0.0.7", 8002))
    assert found == [-1, 1, -1]


def test_one_address_in_two_other_clusters_means_neither_and_the_local_one_wins() -> None:
    identity = laptop()
    scrape(identity, *({**PLAIN, "k8s.cluster.name": c} for c in ("east", "west")))
    assert address_slots(identity, ("10.0.0.7", 8000)) == [-1]
    scrape(identity, PLAIN)
    assert address_slots(identity, ("10.0.0.7", 8000)) == [2]


# pods and nodes


def test_gpu_data_joins_by_pod_and_else_by_a_node_with_one_endpoint() -> None:
    identity = laptop()
    second = {**POD, "k8s.pod.name": "b", "k8s.pod.uid": "b", "k8s.node.name": "n2",
              "server.address": "10.0.0.8", "service.instance.id": "10.0.0.8:8000"}  # fmt: skip
    scrape(identity, POD, second)
    found = place_slots(
        identity,
        ("chat", "vllm-0", "n2"),
        ("", "", "n2"),
        ("chat", "other", "n2"),
        ("other", "vllm-0", ""),
        ("", "", "n3"),
    )
    assert found == [0, 1, -1, -1, -1]


def test_a_node_with_two_endpoints_means_neither() -> None:
    identity = laptop()
    scrape(identity, POD, {**POD, "k8s.pod.name": "b", "k8s.pod.uid": "b"})
    assert place_slots(identity, ("", "", "n1")) == [-1]


# explicit claims


def test_an_allowed_sender_makes_an_endpoint_known_by_name() -> None:
    identity = laptop()
    slot = identity.explicit("gpu-a", "mine", "10.0.0.7:8000", TRUSTED, START)
    directory = identity.directory()
    assert directory.id[slot] == "gpu-a"
    assert directory.address[slot] == "10.0.0.7:8000"
    assert pool_of(identity, slot) == "mine"
    assert scrape(identity, PLAIN) == [slot]


def test_a_claim_without_the_right_is_counted_and_told_once() -> None:
    identity = laptop()
    for _ in range(3):
        assert identity.explicit("gpu-a", "", "", COLLECTOR, START) == -1
    scrape(identity, {**PLAIN, "tailrace.endpoint": "gpu-a"})
    notes, counts = identity.take_notes()
    assert counts == {"identity_refused": 1}
    assert len(notes) == 1
    assert identity.directory().id[0] == "10.0.0.7:8000"


def test_a_stream_of_claims_is_bounded_in_what_it_tells() -> None:
    identity = laptop()
    for i in range(10_000):
        identity.explicit(f"e{i}", "", "", COLLECTOR, START)
    notes, counts = identity.take_notes()
    assert len(notes) <= 64
    assert counts == {"identity_refused": 10_000}
    assert not identity.directory().known.any()


# membership


def test_only_listed_endpoints_are_members_of_a_static_pool() -> None:
    identity = laptop(
        static(Member(address="10.0.0.7:8000", id="a", node="n1", zone="z", role="decode")),
        PoolConfig(name="*", membership="static"),
    )
    assert scrape(identity, PLAIN, {**PLAIN, "server.address": "10.0.0.8"}) == [0, 1]
    directory = identity.directory()
    assert directory.id[:2] == ("a", "10.0.0.8:8000")
    assert directory.member[:2].tolist() == [True, False]
    assert (directory.node[0], directory.zone[0], directory.role[0]) == ("n1", "z", Role.DECODE)
    assert pool_of(identity, 0) == "p"
    assert identity.unmatched.tolist() == [1]


def test_a_member_on_the_serving_port_is_the_target_scraped_on_the_metrics_port() -> None:
    identity = laptop(static(Member(address="10.0.0.7:8001", id="a"), serving_port=8001))
    assert scrape(identity, {**PLAIN, "server.port": "8002"}, engine="triton") == [0]
    assert identity.directory().address[0] == "10.0.0.7:8001"
    assert scrape(identity, {**PLAIN, "server.port": "8003"}, engine="triton") == [1]


def test_membership_that_arrives_after_the_scrape_finds_the_endpoint() -> None:
    identity = laptop(
        PoolConfig(name="p", membership="file", serving_port=8001,
                   match=PoolMatch(service_name="vllm")),
    )  # fmt: skip
    scrape(identity, {**PLAIN, "server.port": "8002"}, engine="triton")
    assert not identity.directory().member[0]
    assert identity.set_members("p", (Member(address="10.0.0.7:8001", id="a"),)) == ()
    directory = identity.directory()
    assert directory.known.sum() == 1
    assert directory.id[0] == "a"
    assert directory.member[0]


def test_a_listed_member_in_a_cluster_that_collectors_name_is_still_found() -> None:
    identity = laptop(static(Member(address="10.0.0.7:8000", id="a")))
    assert scrape(identity, {**POD, "k8s.cluster.name": "prod"}) == [0]


def test_a_pod_behind_a_listed_address_may_change() -> None:
    identity = laptop(static(Member(address="10.0.0.7:8000", id="a")))
    newer = {**POD, "k8s.pod.name": "vllm-9", "k8s.pod.uid": "uid-9"}
    assert scrape(identity, POD) == [0]
    assert scrape(identity, newer, now=START.plus_s(60)) == [0]
    assert identity.directory().id[0] == "a"


def test_replacing_the_membership_unlists_whoever_is_missing() -> None:
    identity = laptop(PoolConfig(name="p", membership="file"))
    members = (Member(address="10.0.0.7:8000", id="a"), Member(address="10.0.0.8:8000", id="b"))
    identity.set_members("p", members)
    identity.set_members("p", members[1:])
    assert identity.directory().member[:2].tolist() == [False, True]
    identity.set_members("p", (Member(address="10.0.0.9:8000", id="b"),))
    assert identity.directory().address[1] == "10.0.0.9:8000"
    identity.set_members("p", members)
    assert identity.directory().member[:2].tolist() == [True, True]


def test_an_endpoint_listed_in_two_pools_stays_in_the_first_and_is_told() -> None:
    identity = laptop(
        PoolConfig(name="p", membership="file"), PoolConfig(name="q", membership="file")
    )
    members = (Member(address="10.0.0.7:8000"),)
    assert identity.set_members("p", members) == ()
    assert len(identity.set_members("q", members)) == 1
    assert pool_of(identity) == "p"


def test_telemetry_cannot_take_a_members_listed_address() -> None:
    identity = laptop(static(Member(address="10.0.0.7:8000", id="a")))
    identity.explicit("thief", "", "10.0.0.7:8000", TRUSTED, START)
    assert address_slots(identity, ("10.0.0.7", 8000)) == [0]
    assert identity.conflicts == 1


def test_with_pools_listed_what_reports_in_another_is_no_member_unless_the_defaults_say_so() -> (
    None
):
    pool = static(Member(address="10.0.0.9:8000"))
    for pools, is_member in (((), True), ((pool,), False), ((pool, PoolConfig(name="*")), True)):
        identity = laptop(*pools)
        (slot,) = scrape(identity, PLAIN)
        assert identity.directory().member[slot] == is_member


# silence


def retired(identity: Identity, seconds: float) -> list[int]:
    return [int(slot) for slot in identity.retired(START.plus_s(seconds))]


def test_silence_never_removes_a_member() -> None:
    identity = laptop(static(Member(address="10.0.0.9:8000")), PoolConfig(name="*"))
    scrape(identity, PLAIN)
    retired(identity, 0)
    assert retired(identity, 1e6) == []
    assert identity.directory().member.sum() == 2


def test_a_silent_endpoint_that_is_no_member_is_forgotten_and_its_slot_given_again() -> None:
    identity = laptop(PoolConfig(name="*", membership="static"), forget_after_s=60.0)
    scrape(identity, PLAIN)
    assert retired(identity, 60) == []
    assert retired(identity, 61) == [0]
    assert not identity.directory().known.any()
    assert address_slots(identity, ("10.0.0.7", 8000)) == [-1]
    later = START.plus_s(62)
    assert scrape(identity, {**PLAIN, "server.address": "10.0.0.8"}, now=later) == [0]
    assert identity.directory().id[0] == "10.0.0.8:8000"


def test_a_member_whose_address_another_took_over_is_forgotten_when_silent() -> None:
    identity = laptop(forget_after_s=60.0)
    scrape(identity, POD)
    newer = {**POD, "k8s.pod.name": "vllm-1", "k8s.pod.uid": "uid-1"}
    scrape(identity, newer, now=START.plus_s(70))
    assert retired(identity, 71) == [0]


def test_a_full_table_refuses_and_makes_room_of_the_silent() -> None:
    identity = laptop(max_endpoints=8, forget_after_s=60.0)
    rows = [{**PLAIN, "server.address": f"10.0.0.{i}"} for i in range(8)]
    scrape(identity, *rows)
    extra = {**PLAIN, "server.address": "10.0.1.1"}
    assert scrape(identity, rows[0], extra, now=START.plus_s(90)) == [0, -1]
    assert identity.take_notes()[1]["endpoint_overflow"] == 1
    assert retired(identity, 91) == [1, 2, 3, 4, 5, 6, 7]
    assert scrape(identity, extra, now=START.plus_s(92))[0] > 0


# restarts


def test_ids_aliases_and_pools_survive_a_restart() -> None:
    before = laptop()
    scrape(before, {**POD, "service.instance.id": "b72cb100-e48a-4760-81d0-5f054c3ddd80"})
    scrape(before, {**PLAIN, "server.address": "10.0.0.8"}, model="b")
    scrape(before, {**PLAIN, "server.address": "10.0.0.8"}, model="a")
    before.set_role(1, Role.PREFILL)
    data = msgspec.json.encode(before.export_state())
    after = laptop()
    after.restore(msgspec.json.decode(data, type=IdentityState))
    left, right = before.directory(), after.directory()
    for name in ("id", "address", "node", "engine", "models", "pools"):
        assert getattr(left, name) == getattr(right, name), name
    for name in ("pool", "role", "known", "member"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)
    alias = {"service.instance.id": "b72cb100-e48a-4760-81d0-5f054c3ddd80"}
    assert scrape(after, alias, engine="") == [0]
    assert address_slots(after, ("10.0.0.8", 8000)) == [1]


def test_a_restart_keeps_the_configured_membership() -> None:
    before = laptop(static(Member(address="10.0.0.7:8000", id="a")))
    scrape(before, PLAIN)
    after = laptop(static(Member(address="10.0.0.9:8000", id="b")))
    after.restore(before.export_state())
    directory = after.directory()
    members = {directory.id[slot] for slot in np.flatnonzero(directory.member)}
    assert "b" in members
    retired(after, 0)
    assert {directory.id[slot] for slot in retired(after, 1e6)} <= {"a"}


def test_the_same_batches_give_the_same_state_whoever_replays_them() -> None:
    def run() -> Sequence[object]:
        identity = laptop()
        for step, row in enumerate((POD, PLAIN, SIDECAR, {**POD, "k8s.pod.name": "x"})):
            scrape(identity, row, sender=LOCAL, now=START.plus_s(step))
        return identity.export_state().endpoints, identity.directory().id, identity.take_notes()

    assert run() == run()


# names that are none


@pytest.mark.parametrize("text", ["x" * 513, "a\x1b[2J", "a\n", "a\u202e"])
def test_text_that_is_no_name_is_ignored_counted_and_told_once(text: str) -> None:
    identity = laptop()
    given = {"k8s.pod.name": text, "k8s.node.name": text, "topology.kubernetes.io/zone": text}
    for _ in range(2):
        [slot] = scrape(identity, {**PLAIN, **given})
    notes, counts = identity.take_notes()
    directory = identity.directory()
    assert (directory.id[slot], directory.node[slot], directory.zone[slot]) == (
        "10.0.0.7:8000",
        "",
        "",
    )
    assert counts["bad_name"] == 2  # one distinct text in each of two batches
    assert len(notes) == 1


def test_an_explicit_name_that_is_none_makes_nobody_known() -> None:
    identity = laptop()
    assert identity.explicit("x" * 513, "", "", TRUSTED, START) == -1
    assert not identity.directory().known.any()


def target(k: int) -> dict[str, str]:
    return PLAIN | {"server.address": f"10.1.2.{k}"}


def test_one_sender_cannot_take_the_room_of_all() -> None:
    identity = laptop(max_endpoints=16, max_endpoints_per_sender=3)
    found = [scrape(identity, target(k))[0] for k in range(6)]
    assert [slot >= 0 for slot in found] == [True, True, True, False, False, False]
    notes, counts = identity.take_notes()
    assert counts["sender_endpoints"] == 3
    assert sum("max_endpoints_per_sender" in note for note in notes) == 1
    assert scrape(identity, target(9), sender=OTHER) != [-1]
    assert scrape(identity, target(0)) == found[:1]


def test_members_do_not_count_for_the_sender_that_reports_them() -> None:
    members = [Member(address=f"10.1.2.{k}:8000") for k in range(4)]
    identity = laptop(static(*members), max_endpoints=16, max_endpoints_per_sender=2)
    found = [scrape(identity, target(k))[0] for k in range(7)]
    assert [slot >= 0 for slot in found] == [True] * 6 + [False]


def test_who_becomes_a_member_makes_room_for_another_of_its_sender() -> None:
    pool = PoolConfig(name="p", membership="file", file="x")
    identity = laptop(pool, max_endpoints=16, max_endpoints_per_sender=1)
    scrape(identity, target(1))
    assert scrape(identity, target(2)) == [-1]
    identity.set_members("p", [Member(address="10.1.2.1:8000")])
    assert scrape(identity, target(2)) != [-1]


def test_a_forgotten_endpoint_makes_room_for_another_of_its_sender() -> None:
    identity = laptop(static(), max_endpoints_per_sender=1, forget_after_s=10.0)
    scrape(identity, target(1))
    later = START.plus_s(60.0)
    assert len(identity.retired(later)) == 1
    assert scrape(identity, target(2), now=later) != [-1]


def test_after_a_restart_endpoints_count_for_whoever_reports_them_again() -> None:
    before = laptop(max_endpoints_per_sender=2)
    scrape(before, target(0), target(1))
    after = laptop(max_endpoints_per_sender=2)
    after.restore(before.export_state())
    assert [slot >= 0 for slot in scrape(after, *map(target, range(3)))] == [True, True, False]
