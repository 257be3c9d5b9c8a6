"""Keeps the memory of one request for the next: half of the cost of receiving large ones.

glibc gives memory above its thresholds back to the kernel as soon as it is free, and a request of
some hundred kilobytes is above them: each one is then paged in anew, by gRPC and again by Python.
"""

import ctypes
import os
from pathlib import Path
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
"""Of glibc's malloc.h."""

MMAP_THRESHOLD_BYTES: Final = 32 << 20
"""Smaller pieces come from the heap; the most that glibc allows."""
TRIM_THRESHOLD_BYTES: Final = 64 << 20
"""Free memory that the heap keeps at its top."""
_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
ARENAS: Final = 1
"""One heap for all threads. A request is received in one thread, decoded in a second and freed in a
third: with a heap for each, every one of them keeps free memory that no other can use."""


def keep_freed_memory() -> bool:
    """Tell this process's allocator, before it is busy; False where it is not glibc's."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(
        mallopt(_M_ARENA_MAX, ARENAS)
        and mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        and mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
    )


def resident_bytes() -> int:
    """What this process holds of the machine's memory; 0 where it cannot be told."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def give_back() -> None:
    """Return all free memory to the kernel, where the allocator is glibc's."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
