"""One attempt, against servers that answer and servers that do not."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pipeline.demo import traffic
from pipeline.demo.traffic import FAMILIES, PREFIX_SYLLABLES, TENANTS, Job, Jobs, attempt

WHOLE = Job("ba be bi", "blue", stream=False)
STREAMED = Job("ba be bi", "blue", stream=True)
USAGE = {"usage": {"prompt_tokens": 4, "completion_tokens": 48}}
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(data: object) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def whole(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


@asynccontextmanager
async def server(answer: bytes | None) -> AsyncIterator[str]:
    """Answers the one request with `answer` and closes, or with None says nothing; the address."""
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer is None:
            await reader.read()
        else:
            writer.write(answer)
        writer.close()
        await writer.wait_closed()
        ended.set()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with running:
        yield f"127.0.0.1:{running.sockets[0].getsockname()[1]}"
        await ended.wait()


async def test_a_whole_answer_brings_its_tokens_and_no_first_chunk() -> None:
    async with server(whole(200, json.dumps(USAGE).encode())) as address:
        done = await attempt(address, WHOLE)
    assert (done.status, done.error, done.input_tokens, done.output_tokens) == (200, "", 4, 48)
    assert done.ttft_s is None
    assert done.duration_s > 0


async def test_a_streamed_answer_brings_its_tokens_and_its_first_event() -> None:
    first, last = event({"choices": [{"text": "ba"}]}), event(USAGE)
    # The events are cut in the middle: chunks are the server's, events are the protocol's.
    parts = [first[:9], first[9:] + last[:5], last[5:] + b"data: [DONE]\n\n", b""]
    async with server(CHUNKED + b"".join(map(chunk, parts))) as address:
        done = await attempt(address, STREAMED)
    assert (done.status, done.error, done.input_tokens, done.output_tokens) == (200, "", 4, 48)
    assert done.ttft_s is not None
    assert 0 < done.ttft_s <= done.duration_s


@pytest.mark.parametrize(
    ("answer", "status", "error"),
    [
        (b"", 0, "ConnectionResetError"),
        (CHUNKED + chunk(event(USAGE)), 200, "ConnectionResetError"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", 200, "ConnectionResetError"),
        (whole(503, b"{}"), 503, "503"),
        (whole(200, b"not json"), 200, "malformed_answer"),
        (whole(200, b"[]"), 200, "malformed_answer"),
        (b"SSH-2.0-x y\r\n", 0, "malformed_answer"),
    ],
    ids=["nothing", "half_a_stream", "half_a_body", "refusal", "no_json", "no_object", "no_http"],
)
async def test_every_way_to_fail_is_in_the_result(answer: bytes, status: int, error: str) -> None:
    job = STREAMED if answer.startswith(CHUNKED) else WHOLE
    async with server(answer) as address:
        done = await attempt(address, job)
    assert (done.status, done.error) == (status, error)


async def test_a_refused_connection_is_named_so() -> None:
    done = await attempt("127.0.0.1:1", WHOLE)
    assert (done.status, done.error) == (0, "ConnectionRefusedError")


async def test_a_server_that_says_nothing_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "TIMEOUT_S", 0.05)
    async with server(None) as address:
        done = await attempt(address, WHOLE)
    assert (done.status, done.error) == (0, "TimeoutError")
    assert done.duration_s >= 0.05


def several(count: int, seed: int = 1) -> list[Job]:
    jobs = Jobs(seed)
    return [jobs.next() for _ in range(count)]


def test_jobs_are_the_same_for_the_same_seed() -> None:
    assert several(20) == several(20)
    assert several(20) != several(20, seed=2)


def test_jobs_share_prefixes_and_differ_after_them_over_all_tenants_and_some_stream() -> None:
    jobs = several(400)
    prefixes = {tuple(job.prompt.split()[:PREFIX_SYLLABLES]) for job in jobs}
    assert len(prefixes) == FAMILIES
    assert len({job.prompt for job in jobs}) == len(jobs)
    assert {job.tenant for job in jobs} == set(TENANTS)
    assert 0.2 < sum(job.stream for job in jobs) / len(jobs) < 0.4
