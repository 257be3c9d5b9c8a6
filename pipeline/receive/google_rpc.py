"""The few google.rpc messages that OTLP answers carry, encoded by hand: each is a field or two.

Go senders read `grpc-status-details-bin` (a google.rpc.Status), the Python SDK reads
`google.rpc.retryinfo-bin` (a google.rpc.RetryInfo): a refusal carries both.
"""

from typing import Final, TypeAlias

Trailers: TypeAlias = tuple[tuple[str, bytes], ...]

STATUS_DETAILS: Final = "grpc-status-details-bin"
RETRY_INFO: Final = "google.rpc.retryinfo-bin"

_TYPES: Final = "type.googleapis.com/google.rpc."
_LENGTH_DELIMITED: Final = 2


def retry_trailers(code: int, message: str, retry_after_s: float) -> Trailers:
    """Trailers of a retryable answer that asks for a delay."""
    seconds, nanos = divmod(round(retry_after_s * 1_000_000_000), 1_000_000_000)
    info = _bytes_field(1, _number_field(1, seconds) + _number_field(2, nanos))
    return ((STATUS_DETAILS, _status(code, message, "RetryInfo", info)), (RETRY_INFO, info))


def bad_request_trailers(code: int, message: str, field: str) -> Trailers:
    """Trailers of a permanent refusal: a BadRequest that says what is wrong with `field`."""
    violation = _text_field(1, field) + _text_field(2, message)
    return ((STATUS_DETAILS, _status(code, message, "BadRequest", _bytes_field(1, violation))),)


def status(code: int, message: str, retry_after_s: float | None = None) -> bytes:
    """A google.rpc.Status, with RetryInfo where a delay is asked for: OTLP/HTTP's error body."""
    if retry_after_s is not None:
        return dict(retry_trailers(code, message, retry_after_s))[STATUS_DETAILS]
    return _number_field(1, code) + _text_field(2, message)


def partial_success(rejected: int, message: str) -> bytes:
    """An Export*ServiceResponse; all four have the same shape. Nothing to say: empty."""
    inner = _number_field(1, rejected) + (_text_field(2, message) if message else b"")
    return _bytes_field(1, inner) if inner else b""


def _status(code: int, message: str, kind: str, detail: bytes) -> bytes:
    wrapped = _text_field(1, _TYPES + kind) + _bytes_field(2, detail)
    return _number_field(1, code) + _text_field(2, message) + _bytes_field(3, wrapped)


def _number_field(number: int, value: int) -> bytes:
    """A varint field; zero is left out, as proto3 does."""
    return _varint(number << 3) + _varint(value) if value else b""


def _text_field(number: int, text: str) -> bytes:
    return _bytes_field(number, text.encode())


def _bytes_field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    """A varint of a number that is not negative."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
