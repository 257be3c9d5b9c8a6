"""What the machine and its processes say about themselves: CPU time, memory, steal, the model.

CPU time is what the kernel has charged to a process and its descendants, children that ended
included. All figures come from /proc, so they exist on Linux only.
"""

import contextlib
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Stat(NamedTuple):
    """What one /proc/PID/stat says."""

    parent: int
    cpu_ticks: int
    """User and system time, of children that were waited for too."""


class Steal(NamedTuple):
    """Time of all cores since boot, in clock ticks."""

    stolen: int
    total: int

    def ratio_since(self, earlier: "Steal") -> float:
        """The share of time that the hypervisor gave to others since `earlier`; 0 for no time."""
        total = self.total - earlier.total
        return (self.stolen - earlier.stolen) / total if total > 0 else 0.0


def parse_stat(text: str) -> Stat:
    """The fields of /proc/PID/stat; the command name may hold spaces and brackets.

    >>> parse_stat("7 (a) b) S 3 " + "0 " * 9 + "50 25 4 1 20")
    Stat(parent=3, cpu_ticks=80)
    """
    fields = text.rsplit(")", 1)[1].split()
    return Stat(int(fields[1]), sum(int(field) for field in fields[11:15]))


def tree(pid: int, stats: dict[int, Stat]) -> list[int]:
    """`pid` and its descendants among `stats`; empty when `pid` is not there.

    >>> tree(2, {1: Stat(0, 5), 2: Stat(1, 5), 3: Stat(2, 5), 4: Stat(3, 5), 5: Stat(1, 5)})
    [2, 3, 4]
    """
    found = [pid] if pid in stats else []
    for each in found:  # grows while it is read
        found += sorted(child for child, stat in stats.items() if stat.parent == each)
    return found


def _stats() -> dict[int, Stat]:
    stats = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile
                stats[int(folder.name)] = parse_stat((folder / "stat").read_text())
    return stats


def tree_cpu_s(pid: int) -> float:
    """CPU seconds of a process and all its descendants; 0.0 when it is gone."""
    stats = _stats()
    return sum(stats[each].cpu_ticks for each in tree(pid, stats)) / TICKS_PER_S


def free_memory_bytes() -> int:
    """What may be taken without anyone being swapped out (MemAvailable)."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")


def tree_memory_mb(pid: int) -> float:
    """Resident memory in MB; of several processes the sum of proportional shares."""
    pids = tree(pid, _stats())
    if len(pids) == 1:
        with contextlib.suppress(OSError):
            return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES / 1e6
    return sum(map(_share_mb, pids))


def _share_mb(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def steal() -> Steal:
    """Stolen and total time until now."""
    line = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    ticks = [int(field) for field in line.split()[1:9]]  # guests are within user time
    return Steal(ticks[7], sum(ticks))


@contextlib.contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """This thread, and so the children it starts, on one core; None changes nothing."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before if core is None else {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cores() -> tuple[int, int]:
    """The core for the engine and the one for the load: different, unless there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[-1]


def describe(decoder: str) -> dict[str, object]:
    """What a reader must know before comparing figures; `decoder` is the one that served."""
    model = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.split(": ", 1)[1] for line in lines if line.startswith("model n")), "")
    return {
        "cpu": model or platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "decoder": decoder,
        "date": time.strftime("%Y-%m-%d"),
    }
