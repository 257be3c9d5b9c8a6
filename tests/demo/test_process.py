"""Child processes end with their parent, whatever happens to it."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.demo import process
from pipeline.demo.process import Child

SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]
STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""
TELLS_ITS_ID = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
HOLDS_A_CHILD = """
import sys, time
from pathlib import Path
from pipeline.demo.process import Child
with Child([sys.executable, "-c", sys.argv[2]], Path(sys.argv[1])):
    time.sleep(60)
"""
WITHIN_MS = 10_000


def written(file: Path) -> str:
    """The first line of a file that a process is about to write."""
    with file.open() as lines:
        deadline = select.poll()
        for _ in range(WITHIN_MS // 10):
            if line := lines.readline():
                return line.strip()
            deadline.poll(10)
    raise AssertionError(f"nothing was written to {file}")


def ends(handle: int) -> bool:
    """Whether the process behind a pidfd ends in time."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(WITHIN_MS))


def test_a_child_runs_within_the_block_and_not_after(tmp_path: Path) -> None:
    with Child(SLEEPS, tmp_path / "log") as child:
        assert child.is_alive
    assert not child.is_alive


def test_what_it_writes_is_kept_and_its_last_line_quoted(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import os; print('first'); print(os.environ['WORD'])"]
    with Child(command, tmp_path / "log", {"WORD": "last"}) as child:
        written(child.log)
    assert child.last_words() == "last"


def test_a_child_that_ignores_the_polite_way_is_ended_by_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "STOP_TIMEOUT_S", 0.1)
    with Child([sys.executable, "-c", STUBBORN], tmp_path / "log") as child:
        assert written(child.log) == "ready"
    assert not child.is_alive


def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", HOLDS_A_CHILD, str(log), TELLS_ITS_ID]
    log.touch()
    with subprocess.Popen(command) as parent:
        try:
            child = os.pidfd_open(int(written(log)))
        finally:
            parent.send_signal(signal.SIGKILL)
        try:
            assert ends(child)
        finally:
            os.close(child)


def test_without_a_command_it_says_how_to_call_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.demo.process", "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "PARENT -- COMMAND" in done.stderr
