"""A whole service on real ports: overrides, restarts, files, its own spans, a clean start."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pipeline.client import DecisionsClient
from pipeline.model import OtlpSignal
from pipeline.state import StateStore
from pipeline.wire import decisions_pb2 as wire
from pipeline.wire.decisions_pb2_grpc import DecisionsStub, OperatorStub
from tests.e2e.embedded import PORTS, Running, running, tailrace
from tests.hand_fleet import HandFleet, static_pool

ADDRESSES = [f"10.0.0.{i}:8000" for i in range(1, 5)]


def feed(service: Running, fleet: HandFleet) -> None:
    """One scrape and one round of requests, stamped with the service's own clock."""
    now = service.service._clock.now()
    service.export(fleet.scrape(now), OtlpSignal.METRICS)
    service.export(fleet.requests(now), OtlpSignal.TRACES)


def get(service: Running) -> wire.Snapshot:
    with grpc.insecure_channel(service.decisions) as channel:
        request = wire.GetRequest(view=wire.VIEW_FULL)
        answer: wire.Snapshot = DecisionsStub(channel).Get(request, timeout=5)
    return answer


def weights(snapshot: wire.Snapshot) -> dict[str, int]:
    return {each.id: each.weight for each in snapshot.endpoints}


async def seen_by_all(clients: list[DecisionsClient], weight: int, timeout_s: float) -> None:
    await asyncio.gather(
        *(
            client.until(
                lambda view: (
                    len(view.endpoints) == len(ADDRESSES)
                    and all(each.weight == weight for each in view.endpoints.values())
                ),
                timeout_s,
            )
            for client in clients
        )
    )


async def test_off_reaches_every_watcher_within_two_seconds() -> None:
    """Scenario: an operator pins one endpoint, then turns everything off.

    Guarantees: each of ten watchers holds the neutral weight for all, within 2 s of the command.
    """
    with running(static_pool(ADDRESSES)) as service:
        pinned = await asyncio.to_thread(
            tailrace, "override", "pin", ADDRESSES[0], "--value", "77", "-a", service.decisions
        )
        assert pinned.returncode == 0, pinned.stderr
        clients = [DecisionsClient(service.decisions, agent_id=f"a{i}") for i in range(10)]
        for client in clients:
            await client.start()
        try:
            for client in clients:
                await client.until(
                    lambda view: any(each.weight == 77 for each in view.endpoints.values()), 5.0
                )
            with grpc.insecure_channel(service.decisions) as channel:
                off = wire.Override(
                    scope=wire.Override.SCOPE_ALL,
                    action=wire.Override.ACTION_OFF,
                    owner="on call",
                )
                OperatorStub(channel).SetOverride(wire.SetOverrideRequest(override=off))
            await seen_by_all(clients, 1000, 2.0)
            assert all(pool.off for client in clients for pool in client.view.pools.values())
        finally:
            await asyncio.gather(*(client.close() for client in clients))


def test_a_restart_keeps_weights_overrides_and_the_epoch(tmp_path: Path) -> None:
    """Guarantees: the first snapshot equals the last one but for a higher epoch."""
    fleet = HandFleet(ADDRESSES)
    with running(static_pool(ADDRESSES), state=tmp_path) as service:
        feed(service, fleet)
        done = tailrace("override", "pin", ADDRESSES[1], "--value", "250", "-a", service.decisions)
        assert done.returncode == 0, done.stderr
        last = _eventually(service, lambda s: weights(s)[ADDRESSES[1]] == 250)
    with running(static_pool(ADDRESSES), state=tmp_path) as service:
        first = get(service)
        assert first.epoch > last.epoch
        assert weights(first) == weights(last)
        assert {e.id: e.state for e in first.endpoints} == {e.id: e.state for e in last.endpoints}


def test_state_of_another_shape_costs_its_stage_and_no_other(tmp_path: Path) -> None:
    """Scenario: the deciding stage's state file is whole, but of a version from the future.

    Guarantees: the service starts, with the epoch and the overrides of before, and the file is set
    aside.
    """
    with running(static_pool(ADDRESSES), state=tmp_path) as service:
        done = tailrace("override", "pin", ADDRESSES[0], "--value", "77", "-a", service.decisions)
        assert done.returncode == 0, done.stderr
        before = get(service)
    StateStore(tmp_path).save("decide", {"version": 99})
    (tmp_path / "decide.state.1").unlink()
    with running(static_pool(ADDRESSES), state=tmp_path) as service:
        after = get(service)
        assert after.epoch > before.epoch
        assert weights(after)[ADDRESSES[0]] == 77
        assert (tmp_path / "decide.state.bad").exists()


def test_a_state_folder_in_use_is_one_line_that_names_it(tmp_path: Path) -> None:
    config = tmp_path / "second.yaml"
    config.write_text(PORTS + f'state: {{folder: "{tmp_path}/state"}}\n')
    with running(state=tmp_path / "state"):
        done = tailrace("serve", "--config", str(config))
    assert done.returncode == 2
    assert f"{tmp_path}/state is in use by another service" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_membership_file_is_followed_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    """Guarantees: members come and go with the file; while it is broken, nothing moves."""
    file = tmp_path / "members.json"
    file.write_text('[{"targets": ["10.0.0.1:8000", "10.0.0.2:8000"]}]')
    config = f"pools: [{{name: chat, membership: file, file: '{file}'}}]"
    with running(config) as service:
        assert sorted(weights(get(service))) == ["10.0.0.1:8000", "10.0.0.2:8000"]
        file.write_text("[{targets: ")
        told = _eventually(service, lambda s: any("stays in force" in e.text for e in s.events))
        assert sorted(weights(told)) == ["10.0.0.1:8000", "10.0.0.2:8000"]
        file.write_text('[{"targets": ["10.0.0.2:8000", "10.0.0.3:8000"]}]')
        moved = _eventually(service, lambda s: "10.0.0.3:8000" in weights(s))
        assert sorted(weights(moved)) == ["10.0.0.2:8000", "10.0.0.3:8000"]


def test_an_override_file_acts_and_ends_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "overrides.yaml"
    config = static_pool(ADDRESSES) + f'overrides_file: "{file}"\n'
    with running(config) as service:
        file.write_text(
            "overrides:\n  - {scope: endpoint, target: '10.0.0.1:8000', action: exclude,"
            " owner: ops, reason: maintenance}\n"
        )
        out = _eventually(service, lambda s: weights(s)["10.0.0.1:8000"] == 0)
        excluded = next(each for each in out.endpoints if each.id == "10.0.0.1:8000")
        assert excluded.state == wire.STATE_OPEN
        assert "maintenance" in excluded.rule
        file.unlink()
        _eventually(service, lambda s: weights(s)["10.0.0.1:8000"] > 0)


def _eventually(service: Running, holds: Callable[[wire.Snapshot], bool]) -> wire.Snapshot:
    deadline_s = time.monotonic() + 10.0
    with grpc.insecure_channel(service.decisions) as channel:
        stream = DecisionsStub(channel).Watch(wire.WatchRequest(view=wire.VIEW_FULL), timeout=15)
        for _ in stream:
            snapshot = get(service)
            if holds(snapshot):
                stream.cancel()
                return snapshot
            assert time.monotonic() < deadline_s, "did not happen"
    raise AssertionError("the stream ended")


def test_own_spans_are_sent_and_dropped_when_they_come_back() -> None:
    """Scenario: the service's own spans are exported to a second service, which must ignore them.

    Guarantees: they arrive as OTLP, and the receiver counts them as its own kind, not as requests.
    """
    with running() as sink:
        otlp = sink.service.addresses["otlp"]
        config = static_pool(ADDRESSES).replace("\n", "\n") + ""
        with running(
            config + f'telemetry: {{traces_endpoint: "{otlp}", metrics_listen: ""}}\n'
        ) as _:
            deadline_s = time.monotonic() + 10
            while sink.dropped().get("normalise/self", 0) == 0:
                assert time.monotonic() < deadline_s
                sink.export(ExportTraceServiceRequest().SerializeToString())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("loop: {tick_s: fast}", "loop.tick_s: Expected `float`, got `str`"),
        ("loop: {tick_s: 0}", "loop.tick_s: Expected `float` >= 0.02"),
        ("lopp: {}", "Object contains unknown field `lopp`"),
        ("decide: {unknown: 1}", "decide: Object contains unknown field `unknown`"),
        ("receive: {listen: '0.0.0.0:4317'}", "pools: off loopback"),
        ("senders: [{network: 10.0.0.0/99, rights: []}]", "senders[0].network:"),
        ("a: [", "not YAML"),
    ],
)
def test_a_bad_configuration_is_one_line_with_the_path_and_exit_code_2(
    tmp_path: Path, text: str, told: str
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    for arguments in (("check", str(file)), ("serve", "--config", str(file))):
        done = tailrace(*arguments)
        assert done.returncode == 2
        assert str(file) in done.stderr
        assert told in done.stderr
        assert done.stderr.count("\n") == 1


def test_check_prints_a_tree_that_is_itself_a_valid_configuration(tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text("")
    first = tailrace("check", str(file))
    assert first.returncode == 0
    file.write_text(first.stdout)
    assert tailrace("check", str(file)).stdout == first.stdout


def test_a_taken_port_is_one_line_that_names_it() -> None:
    with running() as service:
        listen = service.decisions
        done = subprocess.run(
            [sys.executable, "-m", "pipeline", "serve", "--config", "/dev/stdin"],
            input=(
                'receive: {listen: "127.0.0.1:0", http: {listen: ""}}\n'
                f'publish: {{listen: "{listen}"}}\n'
                'telemetry: {metrics_listen: ""}\nstate: {folder: ""}\n'
            ),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert listen in done.stderr


def test_nothing_heavy_is_imported_before_the_ports_open() -> None:
    code = (
        "import sys, pipeline.service; "
        "print([m for m in ('river', 'scipy', 'polars', 'pandas', 'opentelemetry.sdk')"
        " if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
