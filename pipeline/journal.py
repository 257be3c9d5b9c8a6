"""The journal: the queue of the loop thread as it was taken, for replay.

A folder of segments. A record is its length, CRC and a msgpack array: both clocks, then the entry.
The first entry holds the resolved configuration and the start state. Prompt text never gets in:
bodies are redacted to the attributes that decoding keeps. The folder is bounded: when it is full,
recording ends with a log line and the service goes on.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from io import BufferedWriter
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from pipeline.clock import Instant
from pipeline.errors import TailraceError
from pipeline.model import Member, OtlpSignal, Override, Rights, Sender

FRAME: Final = struct.Struct("<II")
MAX_ENTRY_BYTES: Final = 256 * 1024 * 1024
"""Above the largest request (64 MiB) and the largest start state."""

log = structlog.get_logger()


class JournalError(TailraceError):
    """A journal that cannot be replayed; the message names the file and the offset."""


class Start(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """How the service began: `config` as JSON, `state` by stage, `version` of this format."""

    version: int
    config: bytes
    state: dict[str, Any]
    decoder: str


class Batch(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """One export request, redacted."""

    signal: OtlpSignal
    body: bytes
    peer: str
    rights: int

    def sender(self) -> Sender:
        """The sender with its rights."""
        return Sender(self.peer, Rights(self.rights))


class Tick(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A tick, after `slices` slices of the batch before it had been folded."""

    slices: int


class Operation(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """An operator's word: set an override, or remove the one on (scope, target); neither = list."""

    set: Override | None = None
    remove: tuple[str, str] | None = None


class OverrideFile(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The override file as read last; replaces what it said before."""

    overrides: tuple[Override, ...]


class Members(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The membership of one pool, as read last."""

    pool: str
    members: tuple[Member, ...]


class Note(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A sentence for the next snapshot's events, such as a file that could not be read."""

    text: str


Entry = Start | Batch | Tick | Operation | OverrideFile | Members | Note


class Record(msgspec.Struct, array_like=True, frozen=True):
    """An entry with the instant at which the loop thread took it."""

    mono_ns: int
    wall_ns: int
    entry: Entry

    @property
    def now(self) -> Instant:
        """The instant of taking."""
        return Instant(self.mono_ns, self.wall_ns)


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Record)


class JournalWriter:
    """Appends records to segments of a folder, up to a bound."""

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int,
        max_bytes: int,
        written: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Begin a journal in `folder`, which must be empty of segments (else `JournalError`)."""
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._left = max_bytes
        self._written = written
        self._number = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if segments(folder):
                raise JournalError(f"{folder} already holds a journal; record into an empty folder")
            self._file = self._next_segment()
        except OSError as error:
            raise JournalError(f"{folder} cannot be recorded into: {error.strerror}") from error

    def append(self, now: Instant, entry: Entry) -> None:
        """Write one record; a full folder or disk ends the recording, nothing else."""
        if self._file.closed:
            return
        body = _encoder.encode(Record(now.mono_ns, now.wall_ns, entry))
        frame = FRAME.pack(len(body), zlib.crc32(body)) + body
        self._left -= len(frame)
        if self._left < 0:
            self._end("the journal is full")
            return
        try:
            if self._file.tell() > self._segment_bytes:
                self._file.close()
                self._file = self._next_segment()
            self._file.write(frame)
        except OSError as error:
            self._end(str(error))
            return
        self._written(len(frame))

    def close(self) -> None:
        """Flush and close; safe to call twice."""
        try:
            self._file.close()
        except OSError as error:  # closed all the same; what was buffered is lost
            log.warning("the last records are lost", folder=str(self._folder), why=str(error))

    def _end(self, why: str) -> None:
        log.warning("recording ended", folder=str(self._folder), why=why)
        self.close()

    def _next_segment(self) -> BufferedWriter:
        self._number += 1
        return (self._folder / f"{self._number:06}.journal").open("wb")


def segments(folder: Path) -> list[Path]:
    """The segments of a journal, in order."""
    return sorted(folder.glob("*.journal"))


def read(folder: Path) -> Iterator[Record]:
    """The records of a journal in order; a torn last record ends it, a broken one is an error."""
    paths = segments(folder)
    if not paths:
        raise JournalError(f"{folder} holds no journal (*.journal)")
    for path in paths:
        yield from _read_segment(path, last=path is paths[-1])


def _read_segment(path: Path, *, last: bool) -> Iterator[Record]:
    with path.open("rb") as file:
        while head := file.read(FRAME.size):
            at = file.tell() - len(head)
            length, checksum = FRAME.unpack(head) if len(head) == FRAME.size else (0, 0)
            body = file.read(min(length, MAX_ENTRY_BYTES))
            if len(head) < FRAME.size or len(body) < length:
                if last:
                    return
                raise JournalError(f"{path} ends in the middle of a record at byte {at}")
            if zlib.crc32(body) != checksum:
                raise JournalError(f"{path} is damaged at byte {at} (checksum mismatch)")
            try:
                yield _decoder.decode(body)
            except msgspec.MsgspecError as error:
                raise JournalError(f"{path} at byte {at}: {error}") from error
