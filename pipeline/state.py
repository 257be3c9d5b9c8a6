"""State across restarts: one versioned file per stage, written atomically, never pickle.

A file is a header (magic, format version, CRC) and a msgpack map. Two generations are kept; a file
that cannot be read is set aside as `*.bad` and the older generation is used. Reading accepts the
previous format version.
"""

import fcntl
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import structlog

from pipeline.errors import ConfigError

MAGIC: Final = b"TRST"
VERSION: Final = 1
READABLE_VERSIONS: Final = (1,)
HEADER: Final = struct.Struct("<4sHI")
MAX_FILE_BYTES: Final = 256 * 1024 * 1024
"""Far above what bounded stages export; a larger file is not ours."""

log = structlog.get_logger()


def encode(state: Mapping[str, Any]) -> bytes:
    """The bytes of a state file."""
    body = msgspec.msgpack.encode(state)
    return HEADER.pack(MAGIC, VERSION, zlib.crc32(body)) + body


def decode(data: bytes) -> dict[str, Any]:
    """The map in a state file; `ValueError` says what is wrong with it.

    >>> decode(encode({"epoch": 7}))
    {'epoch': 7}
    """
    if len(data) < HEADER.size or len(data) > MAX_FILE_BYTES:
        raise ValueError(f"{len(data)} bytes is no state file")
    magic, version, checksum = HEADER.unpack_from(data)
    body = data[HEADER.size :]
    if magic != MAGIC or version not in READABLE_VERSIONS:
        raise ValueError(f"unknown format {magic!r} version {version}")
    if zlib.crc32(body) != checksum:
        raise ValueError("checksum mismatch")
    try:
        return msgspec.msgpack.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


class StateStore:
    """A folder of state files by name."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`, made when the first file is written."""
        self._folder = folder
        self._lock: BinaryIO | None = None

    def claim(self) -> None:
        """Keep other processes out until `release`; `ConfigError` when one is in already.

        A folder that cannot be written is only told: deciding does not depend on it.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = (self._folder / "lock").open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise ConfigError(
                f"state.folder: {self._folder} is in use by another service; "
                "give each a folder of its own"
            ) from error
        except OSError as error:
            log.warning("state folder not usable", folder=str(self._folder), why=str(error))

    def release(self) -> None:
        """Let others in; safe to call twice. The end of the process does so too."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def load(self, name: str) -> dict[str, Any] | None:
        """The newest readable generation of `name`, or None. Unreadable ones become `*.bad`."""
        for path in (self._path(name), self._older(name)):
            try:
                return decode(path.read_bytes())
            except FileNotFoundError:
                continue
            except (ValueError, OSError) as error:
                log.warning("state file set aside", file=str(path), why=str(error))
                self._set_aside(path)
        return None

    def reject(self, name: str, why: str) -> dict[str, Any] | None:
        """Set aside what `load` gave, which its stage cannot use; the older generation or None."""
        for path in (self._path(name), self._older(name)):
            if path.exists():
                log.warning("state file set aside", file=str(path), why=why)
                return self.load(name) if self._set_aside(path) else None
        return None

    def save(self, name: str, state: Mapping[str, Any]) -> None:
        """Replace `name`: temporary file, fsync, rename; the last one stays as `*.1`.

        Raises `OSError` (disk full, folder not writable); the files in place stay as they were.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._path(name)
        fresh = path.with_suffix(".new")
        with fresh.open("wb") as file:
            file.write(encode(state))
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            path.replace(self._older(name))
        fresh.replace(path)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.state"

    def _older(self, name: str) -> Path:
        return self._folder / f"{name}.state.1"

    def _set_aside(self, path: Path) -> bool:
        try:
            path.replace(path.with_name(path.name + ".bad"))
        except OSError as error:
            log.warning("state file could not be set aside", file=str(path), why=str(error))
            return False
        return True
