"""Set the scene: three engines, the service, and what carries telemetry between them.

Leaves: the addresses of everything that runs, for the length of a `with` block. All processes and
files of the demo end with the block, on every path. Enter it from the main thread.
"""

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import grpc.aio
import yaml

from pipeline.demo import collector, http1
from pipeline.demo.engine import HOST, READY_TIMEOUT_S, Engine, free_port
from pipeline.demo.process import Child
from pipeline.demo.scrape import Scraper
from pipeline.demo.tiny_model import write_tiny_model
from pipeline.errors import DependencyLost

ENGINES: Final = 3
POLL_S: Final = 0.05
SDK_LOGGER: Final = "opentelemetry"

Say = Callable[[str], None]
"""Tells a person what happens, one line each."""


class Scene(NamedTuple):
    """What runs."""

    engines: list[Engine]
    otlp: str
    """Where the client sends its spans: the Collector, or the service itself."""
    decisions: str
    metrics: str
    """The service's own `/metrics`."""
    telemetry: str
    """What brings the engines' metrics: collector or scraper."""


@asynccontextmanager
async def scene(say: Say) -> AsyncIterator[Scene]:
    """Start everything, one line to `say` for each step.

    Raises DependencyLost when a part does not get ready.
    """
    # Everything is on the loopback, where a proxy that the environment names has no business.
    os.environ["no_grpc_proxy"] = HOST  # noqa: SIM112 - the name that gRPC reads
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="tailrace-demo-")))
        stack.enter_context(_sdk_log(folder / "sdk.log"))
        say(f"starting {ENGINES} llama.cpp servers on a tiny model, and Tailrace")
        model = write_tiny_model(folder / "tiny.gguf")
        engines = [Engine(model, folder / f"engine-{i}.log") for i in range(ENGINES)]
        for engine in engines:
            stack.callback(engine.stop)
            engine.start()
        ports = Ports(*(f"{HOST}:{free_port()}" for _ in Ports._fields))
        service = stack.enter_context(_service(folder, ports))
        await asyncio.gather(*map(_engine_ready, engines))
        say(f"engines: {', '.join(engine.address for engine in engines)}")
        await _ready("Tailrace", service, lambda: _accepts(ports.otlp))
        say(f"Tailrace takes OTLP on {ports.otlp}, serves decisions on {ports.decisions}")
        say("its authority is act: the client routes by its weights (the default is observe)")
        addresses = [engine.address for engine in engines]
        if not collector.is_built():
            say("no Collector here (make collector builds it): scraping the engines ourselves")
            scraper = asyncio.create_task(Scraper(addresses, ports.otlp).run(), name="scraper")
            stack.push_async_callback(_cancelled, scraper)
            yield Scene(engines, ports.otlp, ports.decisions, ports.metrics, "scraper")
            return
        carrier = collector.Collector(folder, engines=addresses, service=ports.otlp)
        stack.enter_context(carrier)
        await _ready("the Collector", carrier, lambda: http1.is_healthy(carrier.health, "/"))
        say(f"the OpenTelemetry Collector scrapes the engines and takes spans on {carrier.otlp}")
        yield Scene(engines, carrier.otlp, ports.decisions, ports.metrics, "collector")


class Ports(NamedTuple):
    """The service's addresses."""

    otlp: str
    decisions: str
    metrics: str


def configuration(ports: Ports) -> dict[str, Any]:
    """The service's configuration: its defaults, but for addresses, authority and kept state."""
    return {
        "receive": {"listen": ports.otlp, "http": {"listen": ""}},
        "publish": {"listen": ports.decisions},
        "telemetry": {"metrics_listen": ports.metrics},
        "pools": [{"name": "*", "authority": "act"}],
        "state": {"folder": ""},
    }


def _service(folder: Path, ports: Ports) -> Child:
    file = folder / "tailrace.yaml"
    file.write_text(yaml.safe_dump(configuration(ports)), encoding="utf-8")
    command = [sys.executable, "-m", "pipeline", "serve", "--config", str(file)]
    return Child(command, folder / "tailrace.log")


async def _engine_ready(engine: Engine) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while not await http1.is_healthy(engine.address):
        if not engine.is_alive() or time.monotonic() > deadline_s:
            raise DependencyLost(f"the engine on {engine.address} does not get ready")
        await asyncio.sleep(POLL_S)


async def _ready(name: str, child: Child, is_ready: Callable[[], Awaitable[bool]]) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while not await is_ready():
        if not child.is_alive or time.monotonic() > deadline_s:
            raise DependencyLost(f"{name} does not get ready: {child.last_words() or 'no word'}")
        await asyncio.sleep(POLL_S)


async def _accepts(address: str) -> bool:
    """Whether a gRPC server answers; the service opens its OTLP port last."""
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            async with asyncio.timeout(1.0):
                await channel.channel_ready()
        except TimeoutError:
            return False
    return True


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@contextmanager
def _sdk_log(file: Path) -> Iterator[None]:
    """Keep the SDK's warnings off the screen."""
    logger = logging.getLogger(SDK_LOGGER)
    handler = logging.FileHandler(file)
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
        handler.close()
