"""What a serving process asks of the machine, in a process of its own."""

import os
import subprocess
import sys

import pytest

PREPARED = """
import os, sys, threading
from pipeline.process import prepare
prepare()
policies = [os.sched_getscheduler(0)]
thread = threading.Thread(target=lambda: policies.append(os.sched_getscheduler(0)))
thread.start()
thread.join()
print(*policies, sys.getswitchinterval())
"""
FORBIDDEN = """
import os
def forbidden(*_):
    raise PermissionError
os.sched_setscheduler = forbidden
from pipeline.process import prepare, run_without_preemption
prepare()
print(run_without_preemption())
"""


def run(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="another kernel than Linux")
def test_no_thread_of_a_serving_process_interrupts_another() -> None:
    assert run(PREPARED) == [str(os.SCHED_BATCH), str(os.SCHED_BATCH), "0.001"]


def test_where_the_scheduler_cannot_be_asked_the_process_serves_all_the_same() -> None:
    assert run(FORBIDDEN) == ["False"]
