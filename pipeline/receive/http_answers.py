"""What an OTLP/HTTP sender is answered, in protobuf or in OTLP's JSON.

Every refusal carries a google.rpc.Status in the encoding of the request, also where the request
could not be read as HTTP; then, as for media types that are not OTLP's, it is JSON.
"""

from collections.abc import Mapping
from enum import StrEnum
from http import HTTPStatus
from math import ceil
from typing import Final, NamedTuple, TypeAlias

import msgspec

from pipeline.errors import TailraceError
from pipeline.model import OtlpSignal, Receipt
from pipeline.receive.google_rpc import partial_success, status

Headers: TypeAlias = list[tuple[bytes, bytes]]

MAX_MESSAGE_CHARS: Final = 1024
"""Of a partial success: OTLP wants answers bounded."""

_CODES: Final[Mapping[int, int]] = {
    400: 3,  # INVALID_ARGUMENT
    401: 16,  # UNAUTHENTICATED
    404: 12,  # UNIMPLEMENTED
    405: 12,
    408: 4,  # DEADLINE_EXCEEDED
    413: 8,  # RESOURCE_EXHAUSTED
    415: 3,
    429: 8,
    431: 8,
    503: 14,  # UNAVAILABLE
}
"""HTTP status -> google.rpc.Code."""

_REJECTED: Final[Mapping[OtlpSignal, str]] = {
    OtlpSignal.TRACES: "rejectedSpans",
    OtlpSignal.METRICS: "rejectedDataPoints",
    OtlpSignal.LOGS: "rejectedLogRecords",
    OtlpSignal.PROFILES: "rejectedProfiles",
}


class Media(StrEnum):
    """The two encodings of OTLP/HTTP."""

    PROTOBUF = "application/x-protobuf"
    JSON = "application/json"


class Refusal(TailraceError):
    """An answer that is no success."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        retry_after_s: float | None = None,
        headers: Headers | None = None,
    ) -> None:
        """`message` is what the sender reads; never the text of an unknown exception."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s
        self.headers = headers or []


class Answer(NamedTuple):
    """One response, whole."""

    status: int
    headers: Headers
    body: bytes

    def raw(self) -> bytes:
        """The response as bytes, for a connection that closes after it."""
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}".encode()]
        lines += [name + b": " + value for name, value in self.headers]
        return b"\r\n".join([*lines, b"connection: close", b"", self.body])


def accepted(signal: OtlpSignal, media: Media, receipt: Receipt) -> Answer:
    """200; the body is OTLP's partial success, empty when there is nothing to say."""
    message = receipt.message[:MAX_MESSAGE_CHARS]
    if media is Media.PROTOBUF:
        return _answer(200, media, partial_success(receipt.rejected, message))
    partial: dict[str, str] = {}
    if receipt.rejected:
        partial[_REJECTED[signal]] = str(receipt.rejected)  # 64 bits are strings in JSON
    if message:
        partial["errorMessage"] = message
    body = {"partialSuccess": partial} if partial else {}
    return _answer(200, media, msgspec.json.encode(body))


def refused(refusal: Refusal, media: Media) -> Answer:
    """The refusal as a google.rpc.Status, with Retry-After in whole seconds where it has one."""
    code = _CODES[refusal.status]
    message = refusal.message[:MAX_MESSAGE_CHARS]
    if media is Media.PROTOBUF:
        body = status(code, message, refusal.retry_after_s)
    else:
        body = msgspec.json.encode({"code": code, "message": message})
    answer = _answer(refusal.status, media, body)
    answer.headers.extend(refusal.headers)
    if refusal.retry_after_s is not None:
        seconds = max(1, ceil(refusal.retry_after_s))
        answer.headers.append((b"retry-after", str(seconds).encode()))
    return answer


def _answer(status: int, media: Media, body: bytes) -> Answer:
    length = str(len(body)).encode()
    return Answer(
        status, [(b"content-type", media.value.encode()), (b"content-length", length)], body
    )
