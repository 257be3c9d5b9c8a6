"""The whole demo with the real parts: llama.cpp servers, the service, OTLP over the wire."""

import itertools
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.parts import require

DEMO = ["demo", "--headless", "--seconds"]
COMMAND = [sys.executable, "-m", "pipeline", *DEMO]
WITHOUT_COLLECTOR = """
from pathlib import Path
from pipeline.__main__ import main
from pipeline.demo import collector

collector.BINARY = Path("missing")
main()
"""
WITHIN_S = 120
STOPS_WITHIN_S = 30


@pytest.fixture(autouse=True)
def _parts() -> None:
    found = all(find_spec(name) is not None for name in ("gguf", "opentelemetry.sdk", "xllamacpp"))
    require("llama.cpp", found, "pip install 'tailrace[demo]'")


def environment(folder: Path) -> dict[str, str]:
    """With a proxy that is not there: nothing of the demo leaves the loopback."""
    nowhere = "http://127.0.0.1:9"
    return {**os.environ, "TMPDIR": str(folder), "http_proxy": nowhere, "https_proxy": nowhere}


@pytest.mark.timeout(WITHIN_S + 10)
def test_the_demo_shows_a_slow_engine_avoided_a_dead_one_opened_and_a_new_one_let_back_in(
    tmp_path: Path,
) -> None:
    """Scenario: three engines, one is made slow, killed, restarted, within forty seconds.

    Guarantees: one line of JSON and nothing else on standard output; the slow engine loses more
    than half of its traffic, the dead one its circuit within 3 s, hardly a request fails, and no
    file is left.
    """
    done = subprocess.run(
        [*COMMAND, "40", "--json"],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        env=environment(tmp_path),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    shown: dict[str, Any] = json.loads(done.stdout)
    assert shown["endpoints"] == 3
    assert shown["updates_per_s"] >= 5
    assert shown["epochs"] >= 5 * 40
    assert shown["killed_open_s"] <= 3
    assert shown["share_of_slow_after"] < shown["share_of_slow_before"] / 2
    assert shown["requests"] > 400
    assert shown["failed_requests"] <= shown["requests"] / 100
    assert [key for key, value in shown.items() if value is None] == []
    assert shown.keys() >= {"slow_noticed_s", "recovered_s"}
    assert shown.keys() >= {"p99_ms_before", "p99_ms_during", "p99_ms_after"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_says_so_and_leaves_no_process_and_no_file(
    tmp_path: Path, number: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WITHOUT_COLLECTOR, *DEMO, "600"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(tmp_path),
        start_new_session=True,
    ) as demo:
        assert demo.stdout is not None
        lines = iter(demo.stdout.readline, "")
        said = list(itertools.takewhile(lambda line: "sending completions" not in line, lines))
        children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
        demo.send_signal(number)
        rest, _ = demo.communicate(timeout=STOPS_WITHIN_S)
    assert any("no Collector here" in line for line in said)
    assert demo.returncode == 130
    assert rest.splitlines()[-1] == "stopped"
    assert len(children) >= 4  # the engines and the service
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []
    assert list(tmp_path.iterdir()) == []
