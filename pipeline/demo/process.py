"""Child processes that end with this one, on every path.

`python -m pipeline.demo.process PARENT -- COMMAND` ties itself to its parent's life and becomes
COMMAND, which thereby is tied as well (Linux; elsewhere only `stop` ends it).
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from pipeline.demo.engine import die_with

STOP_TIMEOUT_S = 10.0  # the service finishes what it admitted within half of this


class Child:
    """A process whose output goes to a file; a context manager that ends it.

    Linux ends a child with the *thread* that started it, so enter this from a thread that lives on.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """`environment` is added to this process's own."""
        self.log = log
        self._command = command
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        """Start it."""
        launcher = [sys.executable, "-m", "pipeline.demo.process", str(os.getpid()), "--"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*launcher, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                process_group=0,  # Ctrl-C reaches the parent alone, which stops things in order
            )
        return self

    def __exit__(self, *_: object) -> None:
        """End it: politely, after `STOP_TIMEOUT_S` by force."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        """The last line that it wrote, "" when there is none."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


def main() -> None:
    """Tie this process to its parent and become the command."""
    match sys.argv[1:]:
        case [parent, "--", name, *arguments]:
            die_with(int(parent))
            os.execvp(name, [name, *arguments])  # noqa: S606 - the command is the caller's own
    raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
