"""Compressed requests: the same columns, under a cap, and anything but one whole stream refused."""

import gzip
import random
import subprocess
import sys
import zlib
from typing import Final

import pytest
import zstandard

from pipeline.decode.columns import Decoder
from pipeline.errors import Rejected
from pipeline.model import Columns, Encoding, OtlpSignal
from tests.decode import wire
from tests.decode.decoding import Decoding
from tests.decode.same import assert_same_columns

SIGNALS: Final = list(OtlpSignal)


def body_of(signal: OtlpSignal, seed: int = 0) -> bytes:
    """The first body from this seed on that decodes to something."""
    while True:
        emitter = wire.Emitter(random.Random(f"{signal}-{seed}"), disorder=0.0, fields=200)
        body = emitter.request(signal)
        if len(body) > 300:
            return body
        seed += 1


def refusal(decoder: Decoder, body: bytes, encoding: Encoding, max_bytes: int = 64 << 20) -> str:
    """Why a traces request is refused; "" when it is not."""
    try:
        decoder.decode(OtlpSignal.TRACES, body, encoding, max_bytes)
    except Rejected as error:
        return error.reason
    return ""


def compressed(encoding: Encoding, body: bytes) -> bytes:
    match encoding:
        case Encoding.GZIP:
            return gzip.compress(body, mtime=0)
        case Encoding.DEFLATE:
            return zlib.compress(body)
        case Encoding.ZSTD:
            return zstandard.ZstdCompressor().compress(body)
        case Encoding.IDENTITY:
            return body


def decoded(decoder: Decoder, signal: OtlpSignal, body: bytes, encoding: Encoding) -> Columns:
    columns = decoder.decode(signal, compressed(encoding, body), encoding)
    assert decoder.inflated_bytes == len(body)
    return columns


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("encoding", list(Encoding))
def test_columns_are_those_of_the_plain_request(
    signal: OtlpSignal, encoding: Encoding, decoding: Decoding
) -> None:
    body = body_of(signal)
    decoder = decoding.new()
    plain = decoding.decode(signal, body)
    for _ in range(2):  # buffers that are used again change nothing
        assert_same_columns(decoded(decoder, signal, body, encoding), plain)


@pytest.mark.parametrize("level", [0, 1, 6, 9])
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 1_000_000])
def test_any_size_and_level_of_gzip_is_inflated(level: int, size: int, decoding: Decoding) -> None:
    unknown = wire.length(99, random.Random(size).randbytes(min(size, 70_000)) + bytes(size))
    decoder = decoding.new()
    assert refusal(decoder, gzip.compress(unknown, level), Encoding.GZIP) == ""
    assert decoder.inflated_bytes == len(unknown)


def test_a_gzip_header_may_hold_a_name_a_comment_an_extra_field_and_a_checksum(
    decoding: Decoding,
) -> None:
    plain = gzip.compress(b"", mtime=0)
    extra = b"\x1f\x8b\x08\x1e" + plain[4:10] + b"\x03\x00abc" + b"name\x00" + b"comment\x00"
    whole = extra + (zlib.crc32(extra) & 0xFFFF).to_bytes(2, "little") + plain[10:]
    assert refusal(decoding.new(), whole, Encoding.GZIP) == ""
    assert gzip.decompress(whole) == b""


@pytest.mark.parametrize("encoding", list(Encoding))
def test_the_cap_holds_to_the_byte(encoding: Encoding, decoding: Decoding) -> None:
    body = wire.length(99, bytes(100_000))
    sent = compressed(encoding, body)
    decoder = decoding.new()
    assert refusal(decoder, sent, encoding, len(body)) == ""
    assert refusal(decoder, sent, encoding, len(body) - 1) == "too_large"
    assert refusal(decoder, sent, encoding, len(body)) == ""


@pytest.mark.parametrize("encoding", [Encoding.GZIP, Encoding.DEFLATE, Encoding.ZSTD])
def test_a_stream_cut_at_every_byte_is_corrupt(encoding: Encoding, decoding: Decoding) -> None:
    whole = compressed(encoding, body_of(OtlpSignal.TRACES))
    decoder = decoding.new()
    assert {refusal(decoder, whole[:cut], encoding) for cut in range(len(whole))} == {
        "corrupt_encoding"
    }


@pytest.mark.parametrize("tail", [b"\x00", b"x", gzip.compress(b""), b"\x1f\x8b"])
def test_bytes_behind_the_one_member_are_corrupt(tail: bytes, decoding: Decoding) -> None:
    whole = gzip.compress(body_of(OtlpSignal.TRACES), mtime=0)
    assert refusal(decoding.new(), whole + tail, Encoding.GZIP) == "corrupt_encoding"


def test_a_checksum_or_a_length_that_is_wrong_is_corrupt(decoding: Decoding) -> None:
    whole = gzip.compress(body_of(OtlpSignal.TRACES), mtime=0)
    decoder = decoding.new()
    for at in range(1, 9):
        wrong = whole[:-at] + bytes((whole[-at] ^ 1,)) + whole[len(whole) - at + 1 :]
        assert refusal(decoder, wrong, Encoding.GZIP) == "corrupt_encoding"


def test_damaged_gzip_is_judged_alike_by_both_decoders(native: Decoding) -> None:
    """Beyond damaged bytes that change nothing (time, name, OS) all are corrupt."""
    whole = gzip.compress(body_of(OtlpSignal.TRACES), mtime=0)
    decoders = Decoding("reference").new(), native.new()
    reasons = set()
    for at in range(len(whole)):
        for bit in range(8):
            damaged = whole[:at] + bytes((whole[at] ^ 1 << bit,)) + whole[at + 1 :]
            a, b = (refusal(decoder, damaged, Encoding.GZIP) for decoder in decoders)
            assert a == b, (at, bit)
            reasons.add(a)
    assert reasons == {"", "corrupt_encoding"}


@pytest.mark.parametrize("body", [b"", b"\x1f", b"plain text", b"\x1f\x8b\x08", b"\x0a\x00"])
def test_what_is_no_gzip_is_corrupt(body: bytes, decoding: Decoding) -> None:
    assert refusal(decoding.new(), body, Encoding.GZIP) == "corrupt_encoding"


def test_a_request_that_is_malformed_behind_its_encoding_is_malformed(decoding: Decoding) -> None:
    assert refusal(decoding.new(), gzip.compress(b"\xff"), Encoding.GZIP) == "malformed"


_BOMB: Final = """
import gzip, sys, zlib
from pathlib import Path
from pipeline.decode.columns import new_decoder
from pipeline.errors import Rejected
from pipeline.model import Encoding, OtlpSignal

def held():
    # KiB in use at most so far; ru_maxrss would start with that of the parent process.
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


stream = zlib.compressobj(1, zlib.DEFLATED, 31)
bomb = b"".join([stream.compress(bytes(1 << 20)) for _ in range(400)]) + stream.flush()
decoder = new_decoder(sys.argv[1])
decoder.decode(OtlpSignal.TRACES, gzip.compress(b""), Encoding.GZIP)
before = held()
for _ in range(3):
    try:
        decoder.decode(OtlpSignal.TRACES, bomb, Encoding.GZIP, 8 << 20)
    except Rejected as error:
        print(error.reason)
print(held() - before)
"""


def test_a_bomb_takes_memory_for_its_cap_and_no_more(decoding: Decoding) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BOMB, decoding.name], check=True, capture_output=True, text=True
    )
    *reasons, grown_kib = done.stdout.split()
    assert reasons == ["too_large"] * 3
    assert int(grown_kib) < 3 * 8 << 10
