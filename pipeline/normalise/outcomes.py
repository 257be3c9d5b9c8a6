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
_GRPC_OTHER: Final = 17
"""Beyond the last code that gRPC knows."""
_GRPC_STATUSES: Final = np.array([0.0, 8.0, 2.0, 1.0])
"""One of each class: none or OK, RESOURCE_EXHAUSTED, a failure, the others."""
_GRPC_CLASS: Final = np.array([0, 3, 2, 3, 2, 3, 3, 3, 1, 3, 3, 3, 3, 2, 2, 2, 3, 3], np.intp)
"""The class of each code 0..17, of which the last stands for everything that is no code."""
_CLIENT_CLOSED: Final = 499
_STATUS_EDGES: Final = np.array(
    [0.0, 5e-324, 400.0, 429.0, np.nextafter(429.0, 500), 499.0, np.nextafter(499.0, 500), 500.0,
     503.0, np.nextafter(503.0, 600)]
)  # fmt: skip
"""Where the meaning of an HTTP status changes."""
_STATUSES: Final = np.array([-1, 0, 200, 400, 429, 430, 499, 499.5, 500, 503, 504], np.float64)
"""One status of each range between the edges."""
_VERDICTS: Final = len(Verdict)


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
    """Everything that is known of how n requests ended; NaN, NOTHING and None = not said."""

    is_error: Bools
    """bool[n]: the span's own status is ERROR."""
    status: Floats | None = None
    grpc_status: Floats | None = None
    retry_after: Floats | None = None
    error: Bytes | None = None
    flags: Bytes | None = None
    finish: Bytes | None = None


def classify(ends: Ends) -> tuple[Bytes, Bools]:
    """uint8[n] `Outcome` and bool[n] whether the connection was refused."""
    n = len(ends.is_error)
    outcome, refused = np.zeros(n, np.uint8), np.zeros(n, np.bool_)
    rest = _is_special(ends).nonzero()[0]
    if len(rest):  # most requests end well
        case = _cases(ends, rest)
        outcome[rest], refused[rest] = _OUTCOME[case], _IS_REFUSED[case]
    return outcome, refused


def _is_special(ends: Ends) -> Bools:
    """Whether anything but a plain answer is said."""
    special = ends.is_error
    if ends.status is not None:
        special = special | (ends.status >= 400) | (ends.status <= 0)
    if ends.grpc_status is not None:
        special = special | (ends.grpc_status > 0) | (ends.grpc_status < 0)
    for said in (ends.error, ends.flags, ends.finish):
        if said is not None:
            special = special | (said > 0)
    return special


def _cases(ends: Ends, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """The case of each row: one number for everything that is said of its end."""
    case = ends.is_error[rows].astype(np.intp)
    for said in (ends.error, ends.flags, ends.finish):
        case *= _VERDICTS
        if said is not None:
            case += said[rows]
    case *= len(_STATUSES)
    if ends.status is not None:
        # No status compares as a negative one does: it is in no range.
        case += np.searchsorted(_STATUS_EDGES, np.fmax(ends.status[rows], -1.0), side="right")
    case *= len(_GRPC_STATUSES)
    if ends.grpc_status is not None:
        case += _grpc_class(ends.grpc_status[rows])
    case *= 2
    if ends.retry_after is not None:
        case += ~np.isnan(ends.retry_after[rows])
    return case


def _grpc_class(grpc: Floats) -> npt.NDArray[np.intp]:
    known = np.fmin(np.fmax(grpc, 0.0), _GRPC_OTHER)
    classes: npt.NDArray[np.intp] = np.where(
        known == np.floor(known), _GRPC_CLASS[known.astype(np.intp)], _GRPC_CLASS[_GRPC_OTHER]
    )
    return classes


class _Case(NamedTuple):
    """Representatives of all cases, as columns."""

    is_error: Bools
    error: Bytes
    flags: Bytes
    finish: Bytes
    status: Floats
    grpc: Floats
    has_retry_after: Bools


def _all_cases() -> _Case:
    verdicts = np.arange(_VERDICTS, dtype=np.uint8)
    flag = np.array([False, True])
    axes = (flag, verdicts, verdicts, verdicts, _STATUSES, _GRPC_STATUSES, flag)
    return _Case(*(column.reshape(-1) for column in np.meshgrid(*axes, indexing="ij")))


def _judge(case: _Case) -> tuple[Bytes, Bools]:
    status, flags, error, finish = case.status, case.flags, case.error, case.finish
    grpc = case.grpc
    answered = (status > 0) & (status < 500)
    refused = (flags == _REFUSED) | ((error == _REFUSED) & ~answered)
    cases = (
        (refused, Outcome.FAILURE),
        ((status == 429) | ((status == 503) & case.has_retry_after), Outcome.OVERLOAD),
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
        (case.is_error | (finish == _FAILURE), Outcome.FAILURE),
    )
    outcome = np.select(
        [mask for mask, _ in cases],
        [np.uint8(result) for _, result in cases],
        np.uint8(Outcome.OK),
    )
    return outcome, refused


_OUTCOME, _IS_REFUSED = _judge(_all_cases())
"""By case: what a request's end was, and whether its connection was refused."""
