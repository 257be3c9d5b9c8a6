"""One real run, shared by the end-to-end tests: engines, Collector, SDK, service, recording.

Three llama.cpp servers are scraped every second by the Collector's prometheus receiver; the client
routes by the weights it watches and sends SDK spans through the Collector's otlp receiver. One
server is killed on the way. Everything is recorded.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from pipeline.client import DecisionsClient
from pipeline.demo import http1
from pipeline.demo.collector import Collector
from pipeline.demo.engine import HOST, Engine, free_port
from pipeline.demo.process import Child
from pipeline.demo.spans import SpanSender
from pipeline.demo.story import Phase
from pipeline.demo.tiny_model import write_tiny_model
from pipeline.demo.traffic import Traffic

STEADY_S: Final = 14.0
"""Traffic before the kill: a dozen scrapes, so that rates and latencies are known."""
AFTER_S: Final = 4.0
READY_WITHIN_S: Final = 30.0
OPENS_WITHIN_S: Final = 15.0


@dataclass(frozen=True)
class Run:
    """What a run left behind."""

    journal: Path
    watched: list[dict[str, Any]]
    """The lines of `watch --json`, one view each."""
    held: list[tuple[int, dict[str, list[int]]]]
    """What the client held, now and then: epoch, and weight and state by endpoint."""
    killed: str
    """Address of the engine that was killed."""
    opened_s: float
    """From the kill to OPEN in the client's hands; inf = never."""
    failed: int
    requests: int


def record(folder: Path) -> Run:
    """Do the run with its files in `folder`."""
    return asyncio.run(_record(folder))


async def _record(folder: Path) -> Run:
    async with AsyncExitStack() as stack:
        model = write_tiny_model(folder / "tiny.gguf")
        engines = [Engine(model, folder / f"engine-{i}.log") for i in range(3)]
        for engine in engines:
            stack.callback(engine.stop)
            engine.start()
        otlp, decisions = f"{HOST}:{free_port()}", f"{HOST}:{free_port()}"
        _serve(stack, folder, otlp, decisions)
        addresses = [engine.address for engine in engines]
        carrier = Collector(folder, engines=addresses, service=otlp)
        stack.enter_context(carrier)
        await _until(lambda: http1.is_healthy(carrier.health, "/"))
        await _until(lambda: _listens(decisions))  # `watch` does not wait for a service to come
        watch = stack.enter_context(_watch(folder, decisions))
        spans = stack.enter_context(SpanSender(carrier.otlp, "e2e"))
        client = DecisionsClient(decisions, agent_id="e2e")
        await client.start()
        stack.push_async_callback(client.close)
        await client.until(lambda view: len(view.endpoints) == 3, READY_WITHIN_S)
        results: list[bool] = []
        traffic = Traffic(
            client,
            seed=3,
            phase=lambda: Phase.BEFORE,
            attempts=lambda _, attempt: spans.send(attempt),
            requests=lambda _, request: results.append(request.failed),
        )
        sending = asyncio.create_task(traffic.run())
        held: list[tuple[int, dict[str, list[int]]]] = []
        noting = asyncio.create_task(_note(client, held))
        await asyncio.sleep(STEADY_S)
        killed = engines[1]
        killed.kill()
        begun_s = time.monotonic()
        opened_s = await _opened(client, killed.address, begun_s)
        await asyncio.sleep(AFTER_S)
        for task in (sending, noting):
            task.cancel()
        await asyncio.gather(sending, noting, return_exceptions=True)
    lines = watch.log.read_text(encoding="utf-8").splitlines()
    return Run(
        journal=folder / "journal",
        watched=[json.loads(line) for line in lines if line.startswith("{")],  # beside its stderr
        held=held,
        killed=killed.address,
        opened_s=opened_s,
        failed=sum(results),
        requests=len(results),
    )


def _serve(stack: AsyncExitStack, folder: Path, otlp: str, decisions: str) -> None:
    config = folder / "tailrace.yaml"
    tree = {
        "receive": {"listen": otlp, "http": {"listen": ""}},
        "publish": {"listen": decisions},
        "telemetry": {"metrics_listen": ""},
        "pools": [{"name": "*", "authority": "act"}],
        "state": {"folder": ""},
    }
    config.write_text(yaml.safe_dump(tree), encoding="utf-8")
    command = [sys.executable, "-m", "pipeline", "serve", "--config", str(config)]
    command += ["--record", str(folder / "journal")]
    stack.enter_context(Child(command, folder / "tailrace.log"))


def _watch(folder: Path, decisions: str) -> Child:
    command = [sys.executable, "-m", "pipeline", "watch", decisions, "--json"]
    return Child(command, folder / "watch.jsonl")


async def _until(holds: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + READY_WITHIN_S
    while not await holds():
        assert time.monotonic() < deadline_s, "not ready in time"
        await asyncio.sleep(0.05)


async def _listens(address: str) -> bool:
    try:
        _, writer = await asyncio.open_connection(*address.split(":"))
    except OSError:
        return False
    writer.close()
    return True


async def _note(client: DecisionsClient, held: list[tuple[int, dict[str, list[int]]]]) -> None:
    while True:
        view = client.view
        endpoints = {name: [each.weight, each.state] for name, each in view.endpoints.items()}
        held.append((view.epoch, endpoints))
        await asyncio.sleep(0.1)


async def _opened(client: DecisionsClient, address: str, begun_s: float) -> float:
    try:
        await client.until(
            lambda view: any(
                each.address == address and each.state == 3 for each in view.endpoints.values()
            ),
            OPENS_WITHIN_S,
        )
    except TimeoutError:
        return float("inf")
    return time.monotonic() - begun_s


def replayed(journal: Path) -> list[dict[str, Any]]:
    """The lines of `tailrace replay --json`."""
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "replay", str(journal), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]
