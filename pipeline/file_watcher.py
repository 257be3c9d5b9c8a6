"""Membership and override files: read at the start, and again whenever they change.

Enters: the paths that the configuration names. Leaves: entries for the loop, one a file read. A bad
file stops the start; later it keeps what was read last, and a note tells.
"""

import asyncio
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import structlog

from pipeline.config import TailraceConfig
from pipeline.decide.overrides import parse_overrides
from pipeline.errors import ConfigError
from pipeline.journal import Members, Note, OverrideFile
from pipeline.model import PoolConfig
from pipeline.normalise.membership import MAX_FILE_BYTES, parse_members

FILE_POLL_S: Final = 0.5
"""How often the files are looked at; an override in a file acts within this and a tick."""

Entry: TypeAlias = Members | OverrideFile | Note

log = structlog.get_logger()


class FileWatcher:
    """Order: `first_read` before the loop starts, then `run`."""

    def __init__(self, config: TailraceConfig, put: Callable[[Entry], None]) -> None:
        """`put` takes the entries for the loop."""
        self._pools = [pool for pool in config.pools if pool.membership != "telemetry"]
        self._overrides = Path(config.overrides_file) if config.overrides_file else None
        self._put = put
        self._seen: dict[Path, tuple[int, int, int] | None] = {}

    def first_read(self) -> None:
        """Read everything once; `ConfigError` for a file that cannot be used."""
        for pool in self._pools:
            if pool.membership == "static":
                self._put(Members(pool.name, pool.members))
            else:
                self._read(Path(pool.file), partial(_members, pool))
        if self._overrides is not None and self._overrides.exists():
            self._read(self._overrides, partial(_overrides, self._overrides))
        else:
            self._put(OverrideFile(()))  # what a file said before a restart ends with the file

    async def run(self) -> None:
        """Look at the files for ever; a bad one keeps what was read last and is told once."""
        while True:
            await asyncio.sleep(FILE_POLL_S)
            await asyncio.to_thread(self.look)  # parsing a long list takes seconds

    def look(self) -> None:
        """Re-read every file that changed since it was read last."""
        for pool in self._pools:
            if pool.membership == "file":
                self._reread(Path(pool.file), partial(_members, pool))
        if self._overrides is not None:
            self._reread(self._overrides, partial(_overrides, self._overrides))

    def _reread(self, path: Path, parse: Callable[[bytes], Entry]) -> None:
        if _stamp(path) == self._seen.get(path):
            return
        try:
            self._read(path, parse)
        except ConfigError as error:
            log.warning("file not usable, keeping what it said before", why=str(error))
            self._put(Note(f"{error}; what it said before stays in force"))

    def _read(self, path: Path, parse: Callable[[bytes], Entry]) -> None:
        self._seen[path] = _stamp(path)
        try:
            data = _bytes(path)
        except FileNotFoundError as error:
            if path == self._overrides:
                self._put(OverrideFile(()))
                return
            raise ConfigError(f"{path}: {error.strerror}") from error
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
        self._put(parse(data))


def _bytes(path: Path) -> bytes:
    if not stat.S_ISREG(path.stat().st_mode):
        raise ConfigError(f"{path}: not a regular file")  # opening a pipe would wait for a writer
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
    return data


def _members(pool: PoolConfig, data: bytes) -> Members:
    return Members(pool.name, parse_members(data, pool.file))


def _overrides(path: Path, data: bytes) -> OverrideFile:
    try:
        return OverrideFile(parse_overrides(data.decode("utf-8", "replace")))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
