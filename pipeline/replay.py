"""Feeds a journal to the loop: the same entries, instants and slices give the same snapshots.

Reads no clock. Two replays on one machine and build are byte-identical; that is how behaviour is
tested and how an operator audits a decision afterwards.
"""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from pipeline.config import TailraceConfig
from pipeline.decode.columns import new_decoder
from pipeline.errors import Rejected
from pipeline.journal import Batch, JournalError, Operation, Record, Start, Tick, read
from pipeline.loop import Loop, UnusableState, Work
from pipeline.model import Snapshot

READABLE_VERSIONS: Final = (1,)


def replay(folder: Path) -> Iterator[Snapshot]:
    """The snapshots of the journal in `folder`, one a tick; `JournalError` when it cannot be."""
    records = read(folder)
    loop = _begin(folder, next(records, None))
    decoder = new_decoder()
    work: Work | None = None
    for record in records:
        entry = record.entry
        if isinstance(entry, Tick):
            while work is not None and work.done < min(entry.slices, len(work.parts)):
                loop.fold_slice(work)
            yield loop.tick(record.now)
            continue
        if work is not None:
            loop.fold_all(work)
            work = None
        if isinstance(entry, Batch):
            columns = decoder.decode(entry.signal, entry.body)
            work = loop.begin(columns, entry.sender(), record.now)
        elif isinstance(entry, Operation):
            with suppress(Rejected):  # the operator was told so
                loop.operate(entry, record.now)
        elif isinstance(entry, Start):
            raise JournalError(f"{folder}: a second start record")
        else:
            loop.apply(entry)


def _begin(folder: Path, first: Record | None) -> Loop:
    if first is None or not isinstance(first.entry, Start):
        raise JournalError(f"{folder}: the first record must be the start record")
    start = first.entry
    if start.version not in READABLE_VERSIONS:
        raise JournalError(f"{folder}: recorded in format {start.version}, which is not known")
    try:
        config = msgspec.json.decode(start.config, type=TailraceConfig)
    except msgspec.MsgspecError as error:
        raise JournalError(f"{folder}: its configuration does not fit: {error}") from error
    loop = Loop(config)
    try:
        loop.restore(start.state)
    except UnusableState as error:
        raise JournalError(f"{folder}: its start state does not fit: {error}") from error
    return loop


class Digest:
    """A running hash over the canonical bytes of snapshots."""

    def __init__(self) -> None:
        """Nothing hashed yet."""
        self._hash = hashlib.blake2b(digest_size=16)
        self.epochs = 0

    def add(self, canonical: bytes) -> str:
        """Take in one snapshot; the digest of this snapshot alone."""
        self._hash.update(len(canonical).to_bytes(8, "little"))
        self._hash.update(canonical)
        self.epochs += 1
        return hashlib.blake2b(canonical, digest_size=16).hexdigest()

    def hexdigest(self) -> str:
        """Of all snapshots so far, in order."""
        return self._hash.hexdigest()
