"""Request bodies inflated under a hard cap, for decoders that do not inflate themselves.

One gzip member, zlib or raw deflate stream or zstd frame, whole and with nothing behind it. Output
grows in chunks, so memory stays within the cap and a chunk (zstd: and a window of at most 8 MiB,
the bound of RFC 9659), whatever the body promises.
"""

import io
import zlib
from collections.abc import Iterator
from typing import Final

import zstandard

from pipeline.errors import Rejected
from pipeline.model import Encoding

_INPUT_BYTES: Final = 16 << 10
"""Fed at once: zlib copies what it has not used yet each time its output chunk is full."""

_CHUNK_BYTES: Final = 256 << 10

_ZSTD_WINDOW_BYTES: Final = 8 << 20
_ZSTD_RLE: Final = 1
"""The block type that is one byte, repeated."""

_ZSTD_BLOCK_BYTES: Final = 256
"""A frame whose blocks hold less on average is refused: only an attack is cut so fine."""

_ZSTD_FREE_BLOCKS: Final = 4096
"""Blocks that need no average."""


def inflate(body: bytes, encoding: Encoding, max_bytes: int) -> bytes:
    """The bytes behind `body`, at most `max_bytes`; an IDENTITY body is itself.

    `Rejected("too_large")` beyond the cap, `Rejected("corrupt_encoding")` for a stream that is
    broken, cut short (an empty body too), or followed by anything, a second member included.
    """
    match encoding:
        case Encoding.IDENTITY:
            if len(body) > max_bytes:
                raise _too_large(max_bytes)
            return body
        case Encoding.GZIP:
            return _zlib(body, encoding, zlib.MAX_WBITS | 16, max_bytes)
        case Encoding.DEFLATE:
            wbits = zlib.MAX_WBITS if _has_zlib_header(body) else -zlib.MAX_WBITS
            return _zlib(body, encoding, wbits, max_bytes)
        case Encoding.ZSTD:
            return _zstd(body, max_bytes)


def _has_zlib_header(body: bytes) -> bool:
    """Whether deflate comes wrapped in zlib, as RFC 9110 says, or raw, as many senders do it.

    A raw stream never looks wrapped: it would begin with a stored block whose padding is not zero.
    """
    return len(body) >= 2 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0


def _zlib(body: bytes, encoding: Encoding, wbits: int, max_bytes: int) -> bytes:
    stream = zlib.decompressobj(wbits)
    try:
        inflated = _collect(_zlib_chunks(stream, memoryview(body)), max_bytes)
    except zlib.error:
        raise _corrupt(encoding) from None
    if not stream.eof or stream.unused_data:
        raise _corrupt(encoding)
    return inflated


def _zlib_chunks(stream: "zlib._Decompress", body: memoryview) -> Iterator[bytes]:
    for start in range(0, len(body), _INPUT_BYTES):
        if stream.eof:
            raise zlib.error("bytes behind the end")
        yield stream.decompress(body[start : start + _INPUT_BYTES], _CHUNK_BYTES)
        while stream.unconsumed_tail and not stream.eof:
            yield stream.decompress(stream.unconsumed_tail, _CHUNK_BYTES)
    while not stream.eof:  # what its window still holds
        chunk = stream.decompress(b"", _CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


def _zstd(body: bytes, max_bytes: int) -> bytes:
    try:
        size = zstandard.frame_content_size(body)
        if size > max_bytes:
            raise _too_large(max_bytes)
        _check_one_frame(body, max_bytes)
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        if size >= 0:  # told by the frame: in one piece, without a window
            return decompressor.decompress(body)
        reader = decompressor.stream_reader(body)
        return _collect(iter(lambda: reader.read(_CHUNK_BYTES), b""), max_bytes)
    except (zstandard.ZstdError, IndexError):
        raise _corrupt(Encoding.ZSTD) from None


def _check_one_frame(body: bytes, max_bytes: int) -> None:
    """Walk the headers of a frame's blocks (RFC 8878, 3.1.1): its end has to be the body's end.

    The library reads a frame that was cut short, or is followed by something, without a word.
    """
    at = zstandard.frame_header_size(body)
    most = _ZSTD_FREE_BLOCKS + max_bytes // _ZSTD_BLOCK_BYTES
    for _ in range(most):
        header = body[at] | body[at + 1] << 8 | body[at + 2] << 16
        is_last, kind, size = header & 1, header >> 1 & 3, header >> 3
        at += 3 + (1 if kind == _ZSTD_RLE else size)
        if is_last:
            break
    checksum_bytes = 4 if zstandard.get_frame_parameters(body).has_checksum else 0
    if not is_last or at + checksum_bytes != len(body):
        raise _corrupt(Encoding.ZSTD)


def _collect(chunks: Iterator[bytes], max_bytes: int) -> bytes:
    """All chunks joined, without a second copy; `Rejected` once they pass the cap."""
    inflated = io.BytesIO()
    for chunk in chunks:
        if inflated.tell() + len(chunk) > max_bytes:
            raise _too_large(max_bytes)
        inflated.write(chunk)
    return inflated.getvalue()


def _too_large(max_bytes: int) -> Rejected:
    return Rejected("too_large", f"the request inflates to more than {max_bytes} bytes")


def _corrupt(encoding: Encoding) -> Rejected:
    return Rejected("corrupt_encoding", f"the request is not valid {encoding.value}")
