"""Endpoints as columns: the directory that every later stage indexes by slot."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from pipeline.model import Directory
from pipeline.normalise.endpoint import Endpoint

MIN_SLOTS: Final = 8
SPARE: Final = 16
"""Room grows in steps of a sixteenth of a power of two: every slot costs each tick, used or not."""

_NOBODY: Final = Endpoint(id="")


def build_directory(
    endpoints: Sequence[Endpoint | None],
    members: Sequence[bool],
    pools: tuple[str, ...],
    version: int,
) -> Directory:
    """Columns over slots, padded with unused ones to a length that grows in steps."""
    padding = room(len(endpoints)) - len(endpoints)
    rows = [endpoint or _NOBODY for endpoint in endpoints] + [_NOBODY] * padding
    addresses = [row.address() for row in rows]
    return Directory(
        version=version,
        id=tuple(row.id for row in rows),
        address=tuple(str(address) if address.port else "" for address in addresses),
        node=tuple(row.node for row in rows),
        engine=tuple(row.engine for row in rows),
        zone=tuple(row.zone for row in rows),
        models=tuple(tuple(sorted(row.models)) for row in rows),
        pools=pools,
        pool=np.array([row.pool for row in rows], np.int32),
        role=np.array([row.role for row in rows], np.uint8),
        known=np.array([row is not _NOBODY for row in rows], np.bool_),
        member=np.array([*members, *[False] * padding], np.bool_),
        draining=np.array([row.is_draining for row in rows], np.bool_),
    )


def room(slots: int) -> int:
    """A length with room for `slots`; what is spare are fewer than eight slots, or an eighth of it.

    >>> [room(slots) for slots in (0, 8, 9, 100, 1_200, 10_000)]
    [8, 8, 16, 104, 1280, 10240]
    """
    step = max(MIN_SLOTS, (1 << max(slots - 1, 0).bit_length()) // SPARE)
    return max(1, -(-slots // step)) * step
