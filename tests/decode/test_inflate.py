"""Inflating under a cap: Python's own codecs and zstandard are the oracle."""

import gzip
import random
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pipeline.decode.inflate import inflate
from pipeline.errors import Rejected
from pipeline.model import Encoding

MIB = 1 << 20
SLACK_BYTES = 9 * MIB
"""zstd's window, and a chunk."""


def raw_deflate(body: bytes) -> bytes:
    return zlib.compress(body)[2:-4]


def zstd_of_unknown_size(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(body)


def zstd_with_checksum(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compress(body)


Codec = tuple[Encoding, Callable[[bytes], bytes]]

CODECS: list[Codec] = [
    (Encoding.GZIP, gzip.compress),
    (Encoding.DEFLATE, zlib.compress),
    (Encoding.DEFLATE, raw_deflate),
    (Encoding.ZSTD, zstandard.compress),
    (Encoding.ZSTD, zstd_of_unknown_size),
    (Encoding.ZSTD, zstd_with_checksum),
]

every_codec = pytest.mark.parametrize(
    ("encoding", "compress"), CODECS, ids=lambda value: getattr(value, "__name__", str(value))
)


def reason(body: bytes, encoding: Encoding, max_bytes: int = MIB) -> str:
    with pytest.raises(Rejected) as refused:
        inflate(body, encoding, max_bytes)
    return refused.value.reason


@contextmanager
def peak_below(limit_bytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit_bytes
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=3000), st.integers(0, 200), st.sampled_from(CODECS))
def test_what_was_compressed_comes_back(piece: bytes, times: int, codec: Codec) -> None:
    encoding, compress = codec
    body = piece * times
    assert inflate(compress(body), encoding, len(body)) == body


@every_codec
def test_the_cap_is_exact(encoding: Encoding, compress: Callable[[bytes], bytes]) -> None:
    body = random.Random(1).randbytes(300_000) + bytes(300_000)
    assert inflate(compress(body), encoding, len(body)) == body
    assert reason(compress(body), encoding, len(body) - 1) == "too_large"


def test_an_uncompressed_body_is_itself_within_the_cap() -> None:
    assert inflate(b"", Encoding.IDENTITY, 0) == b""
    assert inflate(b"abc", Encoding.IDENTITY, 3) == b"abc"
    assert reason(b"abcd", Encoding.IDENTITY, 3) == "too_large"


@every_codec
def test_a_stream_cut_anywhere_is_corrupt(
    encoding: Encoding, compress: Callable[[bytes], bytes]
) -> None:
    body = compress(random.Random(2).randbytes(50) + bytes(500))
    for size in range(len(body)):
        assert reason(body[:size], encoding) == "corrupt_encoding"


@every_codec
def test_nothing_may_follow_a_stream(
    encoding: Encoding, compress: Callable[[bytes], bytes]
) -> None:
    body = compress(b"abc" * 100)
    for more in (b"\x00", b"garbage", compress(b""), body):
        assert reason(body + more, encoding) == "corrupt_encoding"
        assert reason(body + bytes(200_000) + more, encoding) == "corrupt_encoding"


@every_codec
def test_flipped_bits_never_do_more_than_refuse(
    encoding: Encoding, compress: Callable[[bytes], bytes]
) -> None:
    source = random.Random(3)
    body = compress(source.randbytes(100) + b"abcabc" * 100)
    for _ in range(500):
        damaged = bytearray(body)
        damaged[source.randrange(len(body))] ^= 1 << source.randrange(8)
        try:
            inflate(bytes(damaged), encoding, MIB)
        except Rejected as refused:
            assert refused.reason in {"corrupt_encoding", "too_large"}


@every_codec
def test_a_bomb_is_refused_and_memory_stays_within_the_cap(
    encoding: Encoding, compress: Callable[[bytes], bytes]
) -> None:
    bomb = compress(bytes(100 * MIB))
    with peak_below(8 * MIB + SLACK_BYTES):
        assert reason(bomb, encoding, 8 * MIB) == "too_large"


@pytest.mark.parametrize(
    "body",
    [
        b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc",  # a frame to be skipped
        bytes.fromhex("28b52ffd00d0") + b"\x01\x00\x00",  # a window of 64 GiB
        bytes.fromhex("28b52ffd0058") + b"\x00\x00\x00" * 50_000 + b"\x01\x00\x00",  # empty blocks
        bytes.fromhex("28b52ffd0058") + b"\x07\x00\x00",  # a block of the reserved kind
        zstandard.ZstdCompressor(
            dict_data=zstandard.ZstdCompressionDict(b"a dictionary that nobody has" * 10)
        ).compress(b"a dictionary that nobody has" * 3)[:-1],
    ],
    ids=["skippable", "window", "blocks", "reserved", "dictionary"],
)
def test_zstd_frames_that_no_sender_means_are_refused(body: bytes) -> None:
    assert reason(body, Encoding.ZSTD) == "corrupt_encoding"


def test_a_refusal_names_the_encoding_and_the_cap() -> None:
    with pytest.raises(Rejected, match="not valid gzip"):
        inflate(b"x", Encoding.GZIP, 10)
    with pytest.raises(Rejected, match="more than 10 bytes"):
        inflate(gzip.compress(bytes(11)), Encoding.GZIP, 10)
