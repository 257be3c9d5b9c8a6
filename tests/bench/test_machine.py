"""CPU time, memory and steal as /proc tells them."""

import os
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from pipeline.bench.machine import (
    Stat,
    Steal,
    describe,
    parse_stat,
    pinned,
    steal,
    tree,
    tree_cpu_s,
    tree_memory_mb,
)

CHILD_BURNS = """
import subprocess, sys, time
code = "import time\\nwhile time.process_time() < 0.3: pass\\nprint(flush=True)\\ntime.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
print(flush=True)
time.sleep(60)
"""


def test_a_command_name_with_spaces_and_brackets_moves_no_field() -> None:
    line = "42 (we (ird) name) S 7 42 42 0 -1 0 0 0 0 0 100 20 3 4 20 0 1 0 5"
    assert parse_stat(line) == Stat(parent=7, cpu_ticks=127)


def test_a_tree_holds_all_descendants_and_nobody_else() -> None:
    stats = {pid: Stat(parent, 1) for pid, parent in ((1, 0), (5, 1), (6, 5), (7, 6), (8, 1))}
    assert tree(5, stats) == [5, 6, 7]
    assert tree(9, stats) == []


def test_cpu_time_of_a_child_counts_for_its_parent() -> None:
    with ExitStack() as stack:
        command = [sys.executable, "-c", CHILD_BURNS]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0)
        stack.enter_context(process)
        stack.callback(os.killpg, process.pid, 9)
        assert process.stdout is not None
        process.stdout.readline()
        assert tree_cpu_s(process.pid) >= 0.29
        assert tree_memory_mb(process.pid) > 5


def test_a_process_that_is_gone_costs_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert tree_cpu_s(process.pid) == 0.0
    assert tree_memory_mb(process.pid) == 0.0


def test_own_cpu_time_agrees_with_the_interpreters() -> None:
    assert tree_cpu_s(os.getpid()) >= time.process_time() - 0.05


def test_steal_is_the_share_of_time_between_two_readings() -> None:
    assert Steal(30, 1100).ratio_since(Steal(10, 100)) == pytest.approx(0.02)
    assert Steal(10, 100).ratio_since(Steal(10, 100)) == 0.0
    assert 0 <= steal().stolen <= steal().total


def test_pinning_ends_with_its_block() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    with pinned(core):
        assert os.sched_getaffinity(0) == {core}
    with pinned(None):
        assert os.sched_getaffinity(0) == before
    assert os.sched_getaffinity(0) == before


def test_the_machine_is_described_with_the_decoder_that_served() -> None:
    facts = describe("native")
    assert facts["decoder"] == "native"
    assert {"cpu", "cores", "kernel", "python", "date"} <= facts.keys()
