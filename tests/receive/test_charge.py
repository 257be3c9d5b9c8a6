"""What a request becomes, read off its compressed bytes; the real codecs are the oracle."""

import gzip
import io
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import Rejected
from pipeline.model import Encoding
from pipeline.receive.charge import CORRUPT, TOO_LARGE, ZSTD_BLOCK_BYTES, charge, sniff

MOST = 1 << 20

contents = st.one_of(
    st.binary(max_size=2000),
    st.builds(bytes.__mul__, st.binary(min_size=1, max_size=20), st.integers(0, 40_000)),
)


def zstd_without_size(content: bytes) -> bytes:
    out = io.BytesIO()
    with zstandard.ZstdCompressor().stream_writer(out, closefd=False) as writer:
        writer.write(content)
    return out.getvalue()


@given(contents)
def test_gzip_says_exactly_what_it_becomes(content: bytes) -> None:
    body = gzip.compress(content)
    assert sniff(body) is Encoding.GZIP
    assert charge(body, Encoding.GZIP, MOST) == max(len(content), len(body))


@given(contents)
def test_zlib_is_charged_no_less_than_it_becomes(content: bytes) -> None:
    body = zlib.compress(content)
    assert sniff(body) is Encoding.DEFLATE
    assert max(len(content), len(body)) <= charge(body, Encoding.DEFLATE, MOST) <= MOST


@given(contents)
def test_zstd_with_its_size_is_charged_exactly(content: bytes) -> None:
    body = zstandard.ZstdCompressor().compress(content)
    assert charge(body, Encoding.ZSTD, MOST) == max(len(content), len(body))


@given(contents)
def test_zstd_without_its_size_is_charged_by_its_blocks(content: bytes) -> None:
    body = zstd_without_size(content)
    charged = charge(body, Encoding.ZSTD, MOST)
    assert len(content) <= charged <= max(len(body), len(content) + 2 * ZSTD_BLOCK_BYTES)


@given(st.binary(max_size=200))
def test_what_is_not_compressed_is_charged_as_it_is(body: bytes) -> None:
    assert charge(body, Encoding.IDENTITY, MOST) == len(body)


@given(st.binary(min_size=1, max_size=200))
def test_nothing_that_begins_like_an_otlp_request_is_taken_for_compressed(rest: bytes) -> None:
    assert sniff(b"\x0a" + rest) is Encoding.IDENTITY


@pytest.mark.parametrize("body", [b"", b"\x1f", b"\x78", b"\x78\x00", b"\x0a"])
def test_too_little_to_tell_is_not_compressed(body: bytes) -> None:
    assert sniff(body) is Encoding.IDENTITY


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        (Encoding.IDENTITY, bytes(MOST + 1)),
        (Encoding.GZIP, gzip.compress(bytes(MOST + 1))),
        (Encoding.ZSTD, zstandard.ZstdCompressor().compress(bytes(MOST + 1))),
    ],
)
def test_what_says_that_it_becomes_too_large_is_refused(encoding: Encoding, body: bytes) -> None:
    with pytest.raises(Rejected) as refused:
        charge(body, encoding, MOST)
    assert refused.value.reason == TOO_LARGE
    assert charge(body, encoding, MOST + 1) == MOST + 1


@pytest.mark.parametrize("encoding", [Encoding.DEFLATE, Encoding.ZSTD])
def test_what_only_might_be_too_large_is_charged_the_most(encoding: Encoding) -> None:
    content = bytes(2 * MOST)
    body = zlib.compress(content) if encoding is Encoding.DEFLATE else zstd_without_size(content)
    assert charge(body, encoding, MOST) == MOST


def test_a_gzip_that_claims_more_than_deflate_can_give_is_corrupt() -> None:
    body = gzip.compress(b"x")
    with pytest.raises(Rejected) as refused:
        charge(body[:-4] + (60_000).to_bytes(4, "little"), Encoding.GZIP, MOST)
    assert refused.value.reason == CORRUPT


def test_a_gzip_that_claims_less_is_charged_its_claim_which_caps_the_decoder() -> None:
    body = gzip.compress(bytes(50_000))
    assert charge(body[:-4] + bytes(4), Encoding.GZIP, MOST) == len(body)


@pytest.mark.parametrize("encoding", [Encoding.GZIP, Encoding.ZSTD])
@pytest.mark.parametrize("body", [b"", b"?", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"])
def test_less_than_a_whole_header_is_corrupt(encoding: Encoding, body: bytes) -> None:
    with pytest.raises(Rejected) as refused:
        charge(body, encoding, MOST)
    assert refused.value.reason == CORRUPT


def test_a_zstd_of_endless_empty_blocks_is_charged_the_most_without_reading_all() -> None:
    frame = zstd_without_size(bytes(300_000))
    start = zstandard.frame_header_size(frame)
    assert charge(frame[:start] + bytes(3 * 100_000), Encoding.ZSTD, MOST) == MOST


@given(st.binary(max_size=60), st.sampled_from(Encoding), st.booleans())
def test_any_bytes_are_charged_within_bounds_or_refused(
    rest: bytes, encoding: Encoding, magic: bool
) -> None:
    body = (b"\x28\xb5\x2f\xfd" if magic else b"") + rest
    try:
        assert len(body) <= charge(body, encoding, MOST) <= MOST
    except Rejected as refused:
        assert refused.reason in (CORRUPT, TOO_LARGE)
