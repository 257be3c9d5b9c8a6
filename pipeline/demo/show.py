"""The performance: traffic by the decisions, the story, and everything that is seen of it.

Enters: a scene where everything runs. Leaves: an `Outcome`, and on the way lines or a live screen.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from rich.console import Console
from rich.live import Live

from pipeline.client import DecisionsClient, View
from pipeline.clock import NS_PER_S
from pipeline.demo import http1, start
from pipeline.demo.measure import Measure, Outcome, Recent, quantile_ms
from pipeline.demo.scrape import parse
from pipeline.demo.spans import SpanSender
from pipeline.demo.story import SLOW_FACTOR, Act, Cue, Phase, play
from pipeline.demo.traffic import Attempt, Traffic
from pipeline.demo.view import EngineLine, Frame, Happening, print_line, screen
from pipeline.errors import DependencyLost
from pipeline.model import State
from pipeline.terminal import in_short
from pipeline.wire import decisions_pb2 as wire

AGENT_ID: Final = "demo-client"
NAMES: Final = "ABC"
TARGET: Final = 1  # the engine that things happen to
SEED: Final = 7
KNOWN_TIMEOUT_S: Final = 20.0  # an endpoint is known after its first scrapes
ANSWER_TIMEOUT_S: Final = 5.0
REFRESH_S: Final = 0.25
KEPT_EVENTS: Final = 64


class Show:
    """One performance; `run` it once."""

    def __init__(self, scene: start.Scene, cues: tuple[Cue, ...], spans: SpanSender) -> None:
        """`cues` say what happens when, `spans` hears of every attempt."""
        self._scene = scene
        self._cues = cues
        self._spans = spans
        self._target = scene.engines[TARGET]
        self.measure = Measure(self._target.address)
        self._recent = Recent()
        # Weights by the shortest way; what a person wants to know beside them comes by another.
        self._router = DecisionsClient(scene.decisions, agent_id=AGENT_ID)
        self._reader = DecisionsClient(scene.decisions, agent_id=f"{AGENT_ID}-view", full=True)
        self._traffic = Traffic(
            self._router,
            seed=SEED,
            phase=lambda: self.measure.phase,
            attempts=self._attempted,
            requests=self.measure.request,
        )
        self._events: deque[str] = deque(maxlen=KEPT_EVENTS)
        self._now = ""
        self._begin_s = 0.0
        self._begin_ns = 0
        self._newest_event_ns = 0
        self._print: Callable[[str], None] = lambda _: None

    async def run(self, console: Console, say: start.Say, *, is_live: bool) -> Outcome:
        """Wait for the first decisions, send traffic, play the story; what came of it."""
        async with self._router, self._reader:
            say("waiting until Tailrace knows the engines")
            await self._all_known()
            say(f"sending completions for {self._cues[-1].at_s:g} s")
            ticks, self._begin_s = await self._ticks(), time.monotonic()
            self._begin_ns = time.time_ns()
            if not is_live:
                self._print = partial(print_line, console)
            await self._perform(console if is_live else None)
            epochs = await self._ticks() - ticks
            seconds = time.monotonic() - self._begin_s
            return self.measure.outcome(
                epochs=epochs, seconds=seconds, telemetry=self._scene.telemetry
            )

    def happenings(self) -> list[Happening]:
        """What happened and what came of it, for the summary."""
        measure, name = self.measure, NAMES[TARGET]
        told = {
            Act.SLOW: (
                f"{name} ({self._target.address}) was made {SLOW_FACTOR:g} times slower",
                _after("its weight had fallen below half", measure.slow_noticed_s),
            ),
            Act.KILL: (
                f"{name} was killed (SIGKILL)",
                _after("its circuit was open", measure.killed_open_s),
            ),
            Act.RESTART: (
                f"{name} was started again",
                _after("it was HEALTHY with half its weight or more", measure.recovered_s),
            ),
        }
        return [
            Happening(at_s - self._begin_s, *texts)
            for act, texts in told.items()
            if (at_s := measure.at_s(act)) is not None
        ]

    async def _perform(self, console: Console | None) -> None:
        tasks = [
            asyncio.create_task(step, name=name)
            for name, step in {
                "traffic": self._traffic.run(),
                "router": _follow(self._router, self._routed),
                "reader": _follow(self._reader, self._read),
                "screen": self._screen(console),
            }.items()
        ]
        story = asyncio.create_task(self._play(), name="story")
        try:
            await asyncio.wait([story, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (story, *tasks):
                task.cancel()
            await asyncio.gather(story, *tasks, return_exceptions=True)
        for task in (*tasks, story):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _play(self) -> None:
        await play(
            self._cues,
            actions={
                Act.SLOW: lambda: self._target.slow(SLOW_FACTOR),
                Act.UNSLOW: self._target.unslow,
                Act.KILL: self._target.kill,
                Act.RESTART: self._target.restart,
            },
            waits_for={act: partial(self.measure.has_seen, act) for act in Act},
            acted=self._acted,
        )

    def _acted(self, act: Act) -> None:
        self.measure.acted(act, time.monotonic())
        name = NAMES[TARGET]
        text = {
            Act.STEADY: "all engines run at full speed",
            Act.SLOW: f"{name} is {SLOW_FACTOR:g} times slower",
            Act.UNSLOW: f"{name} runs at full speed again",
            Act.KILL: f"{name} was killed",
            Act.RESTART: f"{name} was started again",
        }.get(act)
        if text is not None:
            self._now = text
            self._event(time.monotonic() - self._begin_s, f">> {text}")

    def _attempted(self, phase: Phase, attempt: Attempt) -> None:
        self._spans.send(attempt)
        self.measure.attempt(phase, attempt)
        self._recent.add(attempt, time.monotonic())

    def _routed(self, _: View) -> None:
        self.measure.heard(self._router.endpoints, time.monotonic())

    def _read(self, view: View) -> None:
        for event in view.events:
            if event.time_unix_ns > max(self._newest_event_ns, self._begin_ns):
                at_s = (event.time_unix_ns - self._begin_ns) / NS_PER_S
                self._event(at_s, f"{self._named(event.endpoint)} {event.text}".strip())
        if view.events:
            self._newest_event_ns = max(event.time_unix_ns for event in view.events)

    def _event(self, at_s: float, text: str) -> None:
        line = f"{at_s:5.1f} s  {text}"
        self._events.append(line)
        self._print(line)

    def _named(self, endpoint_id: str) -> str:
        sent = self._reader.view.endpoints.get(endpoint_id)
        address = endpoint_id if sent is None else sent.address
        for name, engine in zip(NAMES, self._scene.engines, strict=True):
            if engine.address == address:
                return name
        return endpoint_id

    async def _all_known(self) -> None:
        wanted = {engine.address for engine in self._scene.engines}

        def is_known(view: View) -> bool:
            return wanted <= {endpoint.address for endpoint in view.endpoints.values()}

        try:
            await self._router.until(is_known, KNOWN_TIMEOUT_S)
        except TimeoutError as error:
            raise DependencyLost(
                f"Tailrace published no decisions about the engines within {KNOWN_TIMEOUT_S:g} s"
            ) from error

    async def _ticks(self) -> int:
        """Epochs that the service decided since its start, as it says itself."""
        async with (
            asyncio.timeout(ANSWER_TIMEOUT_S),
            http1.send(self._scene.metrics, "/metrics") as answer,
        ):
            page = (await answer.read()).decode()
        families = [family for family in parse(page) if family.name == "tailrace_ticks_total"]
        return round(sum(sample.value for family in families for sample in family.samples))

    async def _screen(self, console: Console | None) -> None:
        """Draw for ever; without a console, wait for ever."""
        if console is None:
            await asyncio.Event().wait()
            return
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(screen(self._moment()), refresh=True)
                await asyncio.sleep(REFRESH_S)

    def _moment(self) -> Frame:
        now_s = time.monotonic()
        recent = self._recent.durations_s(now_s)
        total = sum(map(len, recent.values()))
        routed = {endpoint.address: endpoint for endpoint in self._router.endpoints}
        sent = {endpoint.address: endpoint for endpoint in self._reader.view.endpoints.values()}
        lines = []
        for name, engine in zip(NAMES, self._scene.engines, strict=True):
            address = engine.address
            durations_s = recent.get(address, [])
            endpoint = routed.get(address)
            lines.append(
                EngineLine(
                    name,
                    address,
                    State.UNKNOWN if endpoint is None else endpoint.state,
                    0 if endpoint is None else endpoint.weight,
                    len(durations_s) / total if total else None,
                    quantile_ms(durations_s, 0.5),
                    quantile_ms(durations_s, 0.99),
                    self._traffic.in_flight(address),
                    _because(sent.get(address)),
                )
            )
        notes = [pool.note for pool in self._reader.view.pools.values() if pool.note]
        elapsed_s = now_s - self._begin_s
        return Frame(elapsed_s, self._cues[-1].at_s, self._now, lines, list(self._events), notes)


async def _follow(client: DecisionsClient, heard: Callable[[View], None]) -> None:
    """Call `heard` after every message, for ever."""
    epoch = -1

    def is_newer(view: View) -> bool:
        return view.epoch > epoch

    while True:
        try:
            view = await client.until(is_newer)
        except TimeoutError:
            continue
        epoch = view.epoch
        heard(view)


def _because(endpoint: wire.Endpoint | None) -> str:
    if endpoint is None:
        return ""
    reasons = (in_short(reason) for reason in endpoint.reasons[:3] if reason.points)
    return "; ".join([*filter(None, [endpoint.rule]), *reasons])


def _after(what: str, seconds: float | None) -> str:
    return "never seen" if seconds is None else f"{what} after {seconds:.1f} s"
