"""Export requests become entries of the one queue in admission order, bounded all the way."""

import asyncio
import gc
import gzip
import threading
import weakref
from collections.abc import Callable

import pytest

from pipeline import ingest as module
from pipeline.channel import Channel
from pipeline.errors import DependencyLost, Overloaded, Rejected
from pipeline.ingest import Ingest, Received, size_of
from pipeline.model import Client, Encoding, Export, OtlpSignal, Receipt
from pipeline.telemetry import Telemetry
from tests.builders import span_request

CLIENT = Client("10.0.0.1")
WAIT_S = 30.0


def spans(n: int) -> bytes:
    """An export request of `n` spans."""
    return span_request(
        ({"service.name": "a"}, [{"name": f"s{i}"} for i in range(n)])
    ).SerializeToString()


def export(body: bytes, encoding: Encoding = Encoding.IDENTITY) -> Export:
    return Export(OtlpSignal.TRACES, body, encoding)


def value(telemetry: Telemetry, name: str, **labels: str) -> float:
    return telemetry.registry.get_sample_value(f"tailrace_{name}", labels) or 0.0


class Bench:
    """An ingest whose batches are folded when the test says so."""

    def __init__(self, *, capacity: int = 1000, threads: int = 1, **more: object) -> None:
        self.telemetry = Telemetry()
        self.channel: Channel[Received] = Channel(capacity=capacity)
        self.ingest = Ingest(self.channel, self.telemetry, threads=threads, **more)  # type: ignore[arg-type]
        self.ingest.start()

    async def take(self) -> Received:
        """The next decoded batch."""
        item = await asyncio.to_thread(self.channel.take, WAIT_S)
        assert item is not None
        return item

    async def stop(self) -> None:
        await self.ingest.stop()


async def test_batches_come_out_in_admission_order_with_several_workers() -> None:
    """Guarantees: the order of the queue is the order of admission, whoever decodes faster."""
    bench = Bench(threads=4)
    sizes = [700, 1, 300, 2, 3, 500, 4, 5]
    for n in sizes:
        bench.ingest.submit(export(spans(n)), CLIENT)
    assert [(await bench.take()).columns.n for _ in sizes] == sizes
    await bench.stop()


async def test_a_folded_batch_is_freed_at_once_without_the_garbage_collector() -> None:
    bench = Bench()
    gc.disable()
    try:
        answer = bench.ingest.submit(export(spans(3)), CLIENT)
        item = await bench.take()
        columns = weakref.ref(item.columns.start_ns)  # type: ignore[union-attr]
        item.done(Receipt())
        del item
        await answer
        bench.ingest.submit(export(spans(1)), CLIENT)  # a worker remembers its last batch only
        (await bench.take()).done(Receipt())
        await bench.stop()
        assert columns() is None
    finally:
        gc.enable()


async def test_a_sender_is_told_after_the_fold_and_not_before() -> None:
    bench = Bench()
    answer = bench.ingest.submit(export(spans(2)), CLIENT)
    item = await bench.take()
    assert not answer.done()
    item.done(Receipt(1, "why"))
    assert await answer == Receipt(1, "why")
    await bench.stop()


async def test_answers_of_many_batches_all_arrive() -> None:
    bench = Bench()
    answers = [bench.ingest.submit(export(spans(1)), CLIENT) for _ in range(200)]

    def fold() -> None:
        for i in range(len(answers)):
            item = bench.channel.take(WAIT_S)
            assert item is not None
            item.done(Receipt(i))

    folder = threading.Thread(target=fold)
    folder.start()
    assert [receipt.rejected for receipt in await asyncio.gather(*answers)] == list(range(200))
    folder.join()
    await bench.stop()


async def test_a_malformed_request_is_rejected_and_holds_nobody_back() -> None:
    bench = Bench()
    bad = bench.ingest.submit(export(b"\xff\xff"), CLIENT)
    bench.ingest.submit(export(spans(3)), CLIENT)
    with pytest.raises(Rejected):
        await bad
    assert (await bench.take()).columns.n == 3
    assert value(bench.telemetry, "dropped_total", stage="decode", reason="malformed") == 1
    await bench.stop()


async def test_a_full_queue_is_a_retryable_answer_with_its_own_delay() -> None:
    bench = Bench(capacity=2)
    for _ in range(2):
        bench.ingest.submit(export(spans(1)), CLIENT)
    delays = set()
    for _ in range(5):
        with pytest.raises(Overloaded) as refused:
            await bench.ingest.submit(export(spans(1)), CLIENT)
        delays.add(refused.value.retry_after_s)
    assert len(delays) == 5
    await bench.stop()


async def test_what_is_decoded_ahead_of_the_fold_is_bounded_by_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scenario: tiny requests that become large columns, and a fold that does not keep up.

    Guarantees: decoding stops at the bound and goes on when a batch was folded; nothing is lost.
    """
    one = spans(50)
    probe = Bench()
    probe.ingest.submit(export(one), CLIENT)
    size = size_of((await probe.take()).columns)
    await probe.stop()
    monkeypatch.setattr(module, "MAX_AHEAD_BYTES", 3 * size)
    bench = Bench()
    for _ in range(10):
        bench.ingest.submit(export(one), CLIENT)
    taken = [await bench.take() for _ in range(3)]
    assert await asyncio.to_thread(bench.channel.take, 0.2) is None
    for _ in range(7):
        taken.pop(0).done(Receipt())
        taken.append(await bench.take())
    for item in taken:
        item.done(Receipt())
    await bench.stop()


async def test_many_small_batches_ahead_of_the_fold_are_bounded_by_their_number() -> None:
    bench = Bench()
    for _ in range(2 * module.MAX_AHEAD_BATCHES):
        bench.ingest.submit(export(spans(1)), CLIENT)
    taken = [await bench.take() for _ in range(module.MAX_AHEAD_BATCHES)]
    assert await asyncio.to_thread(bench.channel.take, 0.2) is None
    taken.pop(0).done(Receipt())
    taken.append(await bench.take())
    for item in taken:
        item.done(Receipt())
    await bench.stop()


async def test_on_enqueue_answers_at_once_within_its_bound_and_after_the_fold_beyond() -> None:
    """Guarantees: what was acknowledged and is not folded never exceeds the bound."""
    body = spans(1)
    cost = len(body) + module.REQUEST_BYTES
    bench = Bench(acknowledge="on-enqueue", max_owed_bytes=2 * cost)
    answers = [bench.ingest.submit(export(body), CLIENT) for _ in range(3)]
    assert [answer.done() for answer in answers] == [True, True, False]
    (await bench.take()).done(Receipt())
    assert bench.ingest.submit(export(body), CLIENT).done()
    for _ in range(3):
        (await bench.take()).done(Receipt())
    await asyncio.gather(*answers)
    await bench.stop()


@pytest.mark.parametrize(("body", "reason"), [(b"\xff\xff", "malformed"), (spans(1), "failed")])
async def test_on_enqueue_tells_what_it_lost_after_it_had_acknowledged(
    body: bytes, reason: str
) -> None:
    bench = Bench(acknowledge="on-enqueue", max_owed_bytes=1 << 20)
    assert await bench.ingest.submit(export(body), CLIENT) == Receipt()
    if reason == "failed":
        (await bench.take()).done(DependencyLost("folding failed"))
    await bench.stop()
    assert value(bench.telemetry, "lost_requests_total", signal="traces", reason=reason) == 1


async def test_after_fold_never_owes_anything() -> None:
    bench = Bench(acknowledge="after-fold", max_owed_bytes=1 << 20)
    assert not bench.ingest.submit(export(spans(1)), CLIENT).done()
    await bench.stop()


async def test_stop_decodes_what_was_submitted_and_refuses_what_comes_after() -> None:
    bench = Bench()
    for _ in range(5):
        bench.ingest.submit(export(spans(1)), CLIENT)
    await bench.stop()
    for _ in range(5):
        (await bench.take()).done(Receipt())
    with pytest.raises(Overloaded):
        await bench.ingest.submit(export(spans(1)), CLIENT)


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [(Encoding.IDENTITY, bytes), (Encoding.GZIP, gzip.compress)],
)
async def test_records_hold_inflated_bodies_without_what_nobody_reads(
    encoding: Encoding, pack: Callable[[bytes], bytes]
) -> None:
    body = span_request(
        ({"service.name": "a"}, [{"name": "x", "gen_ai.prompt": "secret words"}])
    ).SerializeToString()
    assert b"secret words" in body
    bench = Bench(record=True)
    bench.ingest.submit(export(pack(body), encoding), CLIENT)
    item = await bench.take()
    assert item.record is not None
    assert b"secret words" not in item.record
    assert b"service.name" in item.record
    await bench.stop()


async def test_otlp_json_is_decoded_like_protobuf() -> None:
    bench = Bench()
    body = b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"x"},{"name":"y"}]}]}]}'
    bench.ingest.submit(Export(OtlpSignal.TRACES, body, is_json=True), CLIENT)
    assert (await bench.take()).columns.n == 2
    await bench.stop()


@pytest.mark.parametrize("threads", [1, 3])
async def test_small_requests_that_come_together_keep_their_order_and_answers(
    threads: int,
) -> None:
    """Guarantees: going through the workers in groups changes neither order nor who is told what.

    A malformed one in their midst costs nobody else anything.
    """
    bench = Bench(threads=threads)
    bodies = [spans(1 + i % 7) for i in range(100)]
    bodies[40] = b"\xff\xff"
    answers = [
        bench.ingest.submit(Export(OtlpSignal.TRACES, body, max_bytes=len(body)), CLIENT)
        for body in bodies
    ]

    def fold() -> list[int]:
        sizes = []
        for _ in range(99):
            item = bench.channel.take(WAIT_S)
            assert item is not None
            sizes.append(item.columns.n)
            item.done(Receipt(item.columns.n))
        return sizes

    sizes = await asyncio.to_thread(fold)
    results = await asyncio.gather(*answers, return_exceptions=True)
    assert isinstance(results.pop(40), Rejected)
    assert sizes == [1 + i % 7 for i in range(100) if i != 40]
    assert [result.rejected for result in results if isinstance(result, Receipt)] == sizes
    await bench.stop()
