"""The bench's side of the load generator, and one measurement of one engine with it."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Final, Self

import msgspec

from pipeline.bench.jobs import Build, Job, Outcome, encode
from pipeline.bench.machine import pinned, tree_memory_mb
from pipeline.errors import DependencyLost

MEMORY_EVERY_S: Final = 0.2


class Generator:
    """A load generator process, pinned to `core`; a context manager that ends it."""

    def __init__(self, core: int | None) -> None:
        """Nothing runs before it is entered."""
        self._core = core
        self._process: subprocess.Popen[bytes] | None = None
        self._built: Build | None = None

    def __enter__(self) -> Self:
        """Start it."""
        with pinned(self._core):
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pipeline.bench.generator"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        return self

    def __exit__(self, *_: object) -> None:
        """End it; it is given no time when it is at work."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def build(self, job: Build) -> None:
        """Have it hold those batches, unless it does already."""
        if job != self._built:
            self.do(job)
            self._built = job

    def do(self, job: Job) -> Outcome:
        """Have it do a job; `DependencyLost` when it cannot."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(encode(job))
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise DependencyLost("the load generator ended") from error
        line = self._process.stdout.readline()
        if not line:
            raise DependencyLost("the load generator ended; it says why above")
        return msgspec.json.decode(line, type=Outcome)


class Memory:
    """The most memory that a process tree was seen to have."""

    def __init__(self, pid: int) -> None:
        """Nothing has been looked at."""
        self.most_mb = 0.0
        self._pid = pid
        self._stop = threading.Event()

    @contextlib.contextmanager
    def watched(self) -> Iterator[Self]:
        """Look several times a second while the block runs."""
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()

    def _watch(self) -> None:
        while True:
            self.most_mb = max(self.most_mb, tree_memory_mb(self._pid))
            if self._stop.wait(MEMORY_EVERY_S):
                return
