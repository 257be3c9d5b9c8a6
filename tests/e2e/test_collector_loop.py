"""The whole loop with the real Collector, real engines, a real SDK and the real commands."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.demo.collector import is_built
from pipeline.doctor import PARTS
from tests.e2e.collector_run import Run, record, replayed
from tests.otelcol.collector import HOW
from tests.parts import require

pytestmark = pytest.mark.timeout(180)
JOURNAL_LIMIT_BYTES = 1_000_000
WANTED = {"queue_depth", "running", "output_tokens_per_s"}
LATENCY = {"window_ttft_p50_s", "window_duration_p50_s", "ttft_p50_s", "e2e_p50_s", "itl_mean_s"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    require("otelcol", is_built(), HOW)
    engines = next(part for part in PARTS if part.name == "llama.cpp")
    require(engines.name, engines.is_here(), engines.how)
    return record(tmp_path_factory.mktemp("collector-run"))


def states(view: dict[str, Any]) -> dict[str, str]:
    return {e["address"]: e["state"] for e in view["endpoints"].values()}


def test_watch_shows_three_endpoints_and_why(run: Run) -> None:
    """Scenario: three engines scraped by the Collector, traffic steered by their weights.

    Guarantees: `watch --json` names all three, with queue, running, token rate and latency.
    """
    before = [view for view in run.watched if len(view["endpoints"]) == 3]
    assert before, "never saw three endpoints"
    best = [
        {reason["signal"] for reason in endpoint["reasons"]}
        for view in before
        for endpoint in view["endpoints"].values()
    ]
    assert any(seen >= WANTED and seen & LATENCY for seen in best), sorted(set().union(*best))


def test_a_stopped_server_is_opened_and_the_others_are_not(run: Run) -> None:
    """Scenario: SIGKILL of one server under traffic.

    Guarantees: its circuit opens, with a reason that a person can read; the others stay.
    """
    assert run.opened_s < 5.0
    last = run.watched[-1]
    assert states(last)[run.killed] == "STATE_OPEN"
    assert sorted(states(last).values()).count("STATE_OPEN") == 1
    opened = next(e for e in last["endpoints"].values() if e["address"] == run.killed)
    assert opened["weight"] == 0
    assert opened["rule"]


def test_users_hardly_notice_the_kill(run: Run) -> None:
    """Guarantees: with one retry elsewhere, at most a few requests of hundreds are lost."""
    assert run.requests > 200
    assert run.failed <= run.requests * 0.02


def test_replaying_the_recording_twice_gives_the_same_snapshots(run: Run) -> None:
    """Guarantees: byte-identical snapshots, the opened circuit among them; a small recording."""
    first, second = replayed(run.journal), replayed(run.journal)
    assert first == second
    assert first[-1]["epochs"] > 100
    assert any("open" in event[2] for line in first[:-1] for event in line["events"])
    size = sum(path.stat().st_size for path in Path(run.journal).iterdir())
    assert size < JOURNAL_LIMIT_BYTES


def test_replay_decides_what_was_decided_live(run: Run) -> None:
    """Guarantees: what the client was sent in ROUTING is what replay finds at that epoch."""
    decided = {line["epoch"]: line["endpoints"] for line in replayed(run.journal)[:-1]}
    held = [(epoch, endpoints) for epoch, endpoints in run.held if endpoints]
    assert len(held) > 100
    for epoch, endpoints in held:
        assert {name: decided[epoch][name] for name in endpoints} == endpoints
