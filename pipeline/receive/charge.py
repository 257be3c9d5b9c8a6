"""What a request becomes when it is inflated, read off its compressed bytes without inflating.

Admission charges this number and the decoder inflates no further: a sender that lies is cut off.
gzip ends with its size (RFC 1952, of one member, as every OTLP sender writes it), zstd says it in
front or shows it by its blocks (RFC 8878), zlib says nothing.
"""

from typing import Final

import zstandard

from pipeline.errors import Rejected
from pipeline.model import Encoding

TOO_LARGE: Final = "too_large"
"""`Rejected.reason` of a request beyond max_message_bytes: RESOURCE_EXHAUSTED, 413."""
CORRUPT: Final = "corrupt_encoding"
"""`Rejected.reason` of a request whose compressed bytes contradict themselves."""

DEFLATE_RATIO: Final = 1032
"""No deflate stream grows by more: 258 bytes for two bits."""
ZSTD_BLOCK_BYTES: Final = 128 << 10
"""No zstd block becomes more."""

_GZIP: Final = b"\x1f\x8b"
_GZIP_BYTES: Final = 18
"""The least: header, trailer, nothing between."""
_ZLIB: Final = 0x78
"""First byte of zlib's deflate with its usual window, the only one that gRPC writes."""
_MAX_BLOCKS: Final = 1024
"""Looked at in one zstd frame: enough for 128 MiB; more would only cost time."""
_RAW, _RLE, _COMPRESSED, _RESERVED = range(4)


def sniff(body: bytes) -> Encoding:
    """How `body` is compressed, where the header that says so is out of sight.

    An OTLP request begins with tag 0x0a. gzip's 0x1f would be field 3 with wire type 7, which does
    not exist. zlib's 0x78 would be an unknown field 15 in front of everything, and its check bits
    have to hold too. Anything else, b"" too, is not compressed.

    >>> sniff(bytes.fromhex("1f8b08")), sniff(bytes.fromhex("789c")), sniff(bytes.fromhex("0a05"))
    (<Encoding.GZIP: 'gzip'>, <Encoding.DEFLATE: 'deflate'>, <Encoding.IDENTITY: 'identity'>)
    """
    head = body[:2]
    if head == _GZIP:
        return Encoding.GZIP
    if len(head) == 2 and head[0] == _ZLIB and int.from_bytes(head, "big") % 31 == 0:
        return Encoding.DEFLATE
    return Encoding.IDENTITY


def charge(body: bytes, encoding: Encoding, most: int) -> int:
    """Bytes to set aside for `body`: what it becomes, at least what it is, at most `most`.

    `Rejected` with `TOO_LARGE` when it says that it becomes more, with `CORRUPT` when it cannot
    become what it says.
    """
    size = len(body)
    if encoding is Encoding.GZIP:
        size = max(size, _gzip_size(body))
    elif encoding is Encoding.DEFLATE:
        size = max(size, min(most, size * DEFLATE_RATIO))
    elif encoding is Encoding.ZSTD:
        size = max(size, _zstd_size(body, most))
    if size > most:
        raise Rejected(TOO_LARGE, f"larger than {most} bytes")
    return size


def _gzip_size(body: bytes) -> int:
    if len(body) < _GZIP_BYTES:
        raise Rejected(CORRUPT, "not a whole gzip stream")
    size = int.from_bytes(body[-4:], "little")
    if size > DEFLATE_RATIO * len(body):
        raise Rejected(CORRUPT, "no gzip stream inflates that far")
    return size


def _zstd_size(body: bytes, most: int) -> int:
    """What the frame declares, else the most that its blocks become (`most` when in doubt)."""
    try:
        frame = zstandard.get_frame_parameters(body)
        start = zstandard.frame_header_size(body)
    except zstandard.ZstdError as error:
        raise Rejected(CORRUPT, "not a zstd stream") from error
    if frame.content_size != zstandard.CONTENTSIZE_UNKNOWN:
        return int(frame.content_size)
    return _blocks_size(body, start, most)


def _blocks_size(body: bytes, at: int, most: int) -> int:
    size = 0
    for _ in range(_MAX_BLOCKS):
        header = int.from_bytes(body[at : at + 3], "little")
        last, kind, length = header & 1, header >> 1 & 3, header >> 3
        if at + 3 > len(body) or kind == _RESERVED:
            raise Rejected(CORRUPT, "not a whole zstd stream")
        size += ZSTD_BLOCK_BYTES if kind == _COMPRESSED else min(length, ZSTD_BLOCK_BYTES)
        at += 3 + (1 if kind == _RLE else length)
        if size > most or last:
            break
    return min(size, most) if last else most
