"""A refused request is let go at once, not when the garbage collector comes: it may be large."""

import asyncio
import gc
import sys
from collections.abc import Iterator

import pytest
import zstandard

from pipeline.channel import Channel
from pipeline.errors import Rejected
from pipeline.ingest import Ingest, Received
from pipeline.model import Client, Encoding, Export, OtlpSignal, Receipt
from pipeline.receive.config import ReceiveConfig
from pipeline.receive.intake import Intake
from pipeline.telemetry import Telemetry

SENDER = Client("127.0.0.1")


@pytest.fixture(autouse=True)
def no_garbage_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def test_the_intake_keeps_no_body_that_was_refused() -> None:
    event_loop = asyncio.get_running_loop()

    def refuse(export: Export, client: Client) -> "asyncio.Future[Receipt]":
        answer: asyncio.Future[Receipt] = event_loop.create_future()
        event_loop.call_soon(answer.set_exception, Rejected("malformed", "not OTLP"))
        return answer

    intake = Intake(ReceiveConfig(), refuse, Telemetry())
    body = bytes(range(200))
    before = sys.getrefcount(body)
    try:
        await intake.accept(Export(OtlpSignal.TRACES, body), SENDER)
    except Rejected:
        pass
    else:
        pytest.fail("it was accepted")
    await asyncio.sleep(0)
    assert sys.getrefcount(body) == before


async def test_what_ingest_says_of_a_refused_body_holds_no_inflated_copy() -> None:
    channel: Channel[Received] = Channel(capacity=8)
    ingest = Ingest(channel, Telemetry(), threads=1)
    ingest.start()
    body = zstandard.compress(b"\xff" * 1000)
    export = Export(OtlpSignal.TRACES, body, Encoding.ZSTD, max_bytes=1000)
    with pytest.raises(Rejected) as caught:
        await ingest.submit(export, SENDER)
    here = caught.value.__traceback__
    assert here is not None
    frames = []
    while here is not None:
        frames.append(here.tb_frame.f_code.co_filename)
        here = here.tb_next
    assert frames == [__file__]
    assert caught.value.__context__ is None
    await ingest.stop()
