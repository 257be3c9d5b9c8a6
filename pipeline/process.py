"""What a serving process asks of its allocator, interpreter, event loop and kernel."""

import asyncio
import os
import sys
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import uvloop

from pipeline.receive.allocator import keep_freed_memory

SWITCH_INTERVAL_S: Final = 0.001
"""A tick gives the interpreter up at every large numpy call, and waits this long to have it back
while a batch is decoded; at the default of 5 ms, such ticks take twice as long."""


T = TypeVar("T")


def prepare() -> None:
    """Call it in the main thread before another one starts: threads inherit how they are run."""
    keep_freed_memory()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    run_without_preemption()


def run_without_preemption() -> bool:
    """Let a thread that wakes up wait for the running one's turn to end; False where it cannot be.

    A request wakes four threads, and most need the interpreter that the running thread holds: by
    default each interrupts it, finds the interpreter taken and sleeps again. A sixth of the CPU
    time of small requests went into that, a tenth of large ones.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (AttributeError, OSError):  # not Linux, or forbidden
        return False
    return True


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The event loop that serves: gRPC wakes it several times a request, cheaper with uvloop."""
    return uvloop.new_event_loop()


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on such an event loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
