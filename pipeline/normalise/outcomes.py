"""How a request ended: HTTP and gRPC status, error type, Envoy's response flags -> `Outcome`.

Failure is refused, reset, timeout, 5xx, broken stream. Overload (429, 503 with Retry-After,
RESOURCE_EXHAUSTED) is pressure. Other 4xx and client aborts are neither.
"""

import re
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.model import Bools, Bytes, Floats, Outcome


class Verdict(IntEnum):
    """What one string says about the end of a request."""

    NOTHING = 0
    FAILURE = 1
    REFUSED = 2
    OVERLOAD = 3
    NEITHER = 4


_FAILURE, _REFUSED, _OVERLOAD, _NEITHER = 1, 2, 3, 4
"""As plain numbers, which numpy compares faster."""

_REFUSED_ERROR: Final = re.compile(r"econnrefused|connection_?\s?refused|(^|\.)connecterror$")
_ABORT_ERROR: Final = re.compile(
    r"cancel|client_?(closed|disconnect)|(^|\.)aborterror$|generatorexit|context canceled"
)
_OVERLOAD_ERROR: Final = re.compile(
    r"rate_?limit|too_?many_?requests|resource_?exhausted|overloaded|queue_?full"
)
_CALLER_ERROR: Final = re.compile(
    r"bad_?request|invalid_?(request|argument)|unauthori[sz]ed|authentication|permission_?denied"
    r"|forbidden|not_?found|unprocessable|validation|content_?filter|conflicterror"
)

_FLAGS: Final = {
    "UF": Verdict.REFUSED,
    **dict.fromkeys(("UT", "UC", "UR", "LR", "UPE", "SI", "DT", "UMSDR", "LH"), Verdict.FAILURE),
    **dict.fromkeys(("UO", "OM", "RL", "RLSE"), Verdict.OVERLOAD),
    **dict.fromkeys(("DC", "DR", "DPE", "DI", "FI", "UAEX", "IH"), Verdict.NEITHER),
}
"""Envoy's flags that speak of the endpoint or of the caller. UH, NR, NC, DF name no endpoint, and
with URX the status decides."""
_LONG_FLAGS: Final = {
    "upstreamconnectionfailure": "UF",
    "upstreamrequesttimeout": "UT",
    "upstreamconnectiontermination": "UC",
    "upstreamremotereset": "UR",
    "localreset": "LR",
    "upstreamprotocolerror": "UPE",
    "streamidletimeout": "SI",
    "durationtimeout": "DT",
    "upstreamoverflow": "UO",
    "overloadmanager": "OM",
    "ratelimited": "RL",
    "downstreamconnectiontermination": "DC",
    "downstreamremotereset": "DR",
}
_STRONGEST: Final = (Verdict.REFUSED, Verdict.FAILURE, Verdict.OVERLOAD, Verdict.NEITHER)

_GRPC_FAILURES: Final = (2, 4, 13, 14, 15)
"""UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE, DATA_LOSS."""
_GRPC_EXHAUSTED: Final = 8
_CLIENT_CLOSED: Final = 499


def error_verdict(text: str) -> Verdict:
    """What an `error.type` says: an exception's name, a status code or a low-cardinality word.

    >>> [error_verdict(t).name for t in ("httpx.ConnectError", "503", "404", "timeout")]
    ['REFUSED', 'FAILURE', 'NEITHER', 'FAILURE']
    """
    word = text.strip().lower()
    if not word:
        return Verdict.NOTHING
    if word.isascii() and word.isdigit():
        return _status_verdict(int(word[:4]))
    for pattern, verdict in (
        (_REFUSED_ERROR, Verdict.REFUSED),
        (_ABORT_ERROR, Verdict.NEITHER),
        (_OVERLOAD_ERROR, Verdict.OVERLOAD),
        (_CALLER_ERROR, Verdict.NEITHER),
    ):
        if pattern.search(word):
            return verdict
    return Verdict.FAILURE


def _status_verdict(status: int) -> Verdict:
    if status < 400:
        return Verdict.NOTHING
    if status == 429:
        return Verdict.OVERLOAD
    return Verdict.FAILURE if status >= 500 else Verdict.NEITHER


def flags_verdict(text: str) -> Verdict:
    """What Envoy's response flags say, short or long, comma-separated; the strongest wins.

    >>> flags_verdict("UF,URX").name, flags_verdict("-").name, flags_verdict("DC").name
    ('REFUSED', 'NOTHING', 'NEITHER')
    """
    found = set()
    for part in text.split(","):
        flag = part.strip()
        found.add(_FLAGS.get(_LONG_FLAGS.get(flag.lower(), flag), Verdict.NOTHING))
    return next((verdict for verdict in _STRONGEST if verdict in found), Verdict.NOTHING)


def finish_verdict(text: str) -> Verdict:
    """What a finish reason says: an abort is usually the client leaving."""
    word = text.lower()
    if "abort" in word or "cancel" in word:
        return Verdict.NEITHER
    return Verdict.FAILURE if "error" in word else Verdict.NOTHING


class Ends(NamedTuple):
    """Everything that is known of how n requests ended; NaN and NOTHING = not said."""

    status: Floats
    grpc_status: Floats
    retry_after: Floats
    error: Bytes
    flags: Bytes
    finish: Bytes
    is_error: Bools
    """The span's own status is ERROR."""

    def part(self, rows: npt.NDArray[np.intp]) -> "Ends":
        """Some of the rows."""
        return Ends(
            status=self.status[rows],
            grpc_status=self.grpc_status[rows],
            retry_after=self.retry_after[rows],
            error=self.error[rows],
            flags=self.flags[rows],
            finish=self.finish[rows],
            is_error=self.is_error[rows],
        )


def classify(ends: Ends) -> tuple[Bytes, Bools]:
    """uint8[n] `Outcome` and bool[n] whether the connection was refused."""
    status = ends.status
    outcome = np.zeros(len(status), np.uint8)
    refused = np.zeros(len(status), np.bool_)
    said = ends.error | ends.flags | ends.finish | ends.is_error.view(np.uint8)
    plain = (np.isnan(status) | ((status > 0) & (status < 400))) & (said == 0)
    plain &= np.isnan(ends.grpc_status) | (ends.grpc_status == 0)
    rest = np.flatnonzero(~plain)
    if len(rest):  # most requests end well
        outcome[rest], refused[rest] = _classify(ends.part(rest))
    return outcome, refused


def _classify(ends: Ends) -> tuple[Bytes, Bools]:
    status, flags, error, finish = ends.status, ends.flags, ends.error, ends.finish
    grpc = ends.grpc_status
    answered = (status > 0) & (status < 500)
    refused = (flags == _REFUSED) | ((error == _REFUSED) & ~answered)
    cases = (
        (refused, Outcome.FAILURE),
        ((status == 429) | ((status == 503) & ~np.isnan(ends.retry_after)), Outcome.OVERLOAD),
        (flags == _OVERLOAD, Outcome.OVERLOAD),
        (flags == _FAILURE, Outcome.FAILURE),
        ((status == _CLIENT_CLOSED) | (flags == _NEITHER), Outcome.NEITHER),
        (status >= 500, Outcome.FAILURE),
        ((status >= 400) | (status == 0), Outcome.NEITHER),
        (error == _OVERLOAD, Outcome.OVERLOAD),
        (error == _NEITHER, Outcome.NEITHER),
        ((error == _FAILURE) | (error == _REFUSED), Outcome.FAILURE),
        (grpc == _GRPC_EXHAUSTED, Outcome.OVERLOAD),
        (np.isin(grpc, _GRPC_FAILURES), Outcome.FAILURE),
        (grpc > 0, Outcome.NEITHER),
        (finish == _NEITHER, Outcome.NEITHER),
        (ends.is_error | (finish == _FAILURE), Outcome.FAILURE),
    )
    outcome = np.select(
        [mask for mask, _ in cases],
        [np.uint8(result) for _, result in cases],
        np.uint8(Outcome.OK),
    )
    return outcome, refused
