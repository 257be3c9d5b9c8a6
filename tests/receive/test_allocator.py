"""The allocator is told, in a process of its own."""

import subprocess
import sys

FREED_AND_HELD = """
import resource
from pathlib import Path
from pipeline.receive.allocator import keep_freed_memory
assert keep_freed_memory()
for _ in range(50):
    bytes(range(256)) * 4096
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(200):
    held = [bytes(range(256)) * 4096 for _ in range(4)]
    del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_memory_of_one_request_serves_the_next_without_a_page_fault_each() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FREED_AND_HELD], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 200 * 4 * 256 // 10  # a tenth of its pages, which are 4 KiB


FREED_BY_THREADS = """
import threading
from pipeline.receive.allocator import give_back, keep_freed_memory, resident_bytes
assert keep_freed_memory()
before, filled = resident_bytes(), threading.Barrier(5)
def fill():
    held = [bytes(range(256)) * 400 for _ in range(400)]
    filled.wait()
    filled.wait()
threads = [threading.Thread(target=fill) for _ in range(4)]
for thread in threads:
    thread.start()
filled.wait()
most = resident_bytes()
filled.wait()
for thread in threads:
    thread.join()
give_back()
print(most - before, resident_bytes() - before)
"""


def test_what_threads_have_freed_can_be_given_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FREED_BY_THREADS], capture_output=True, text=True, check=True
    )
    grown, kept = map(int, done.stdout.split())
    assert grown > 100 << 20
    assert kept < 16 << 20
