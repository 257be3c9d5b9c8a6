"""The client: completions at random moments, each to the endpoint that the newest weights pick.

Arrivals are a Poisson process that does not wait for answers, as users do not. Prompts share
prefixes by family, tenants take turns, a part of the answers streams. A request whose first attempt
fails is tried once more at another endpoint; it failed only when that fails too.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final

from pipeline.client import DecisionsClient
from pipeline.demo import http1
from pipeline.demo.engine import MODEL_NAME
from pipeline.demo.story import Phase
from pipeline.pick import Endpoint

PATH: Final = "/v1/completions"
RATE_PER_S: Final = 26.0  # about a sixth of what three engines can do on an idle machine
MAX_IN_FLIGHT: Final = 96  # more than that is not sent, and counted
TIMEOUT_S: Final = 5.0
STREAM_SHARE: Final = 0.3
TENANTS: Final = ("blue", "green", "red")
FAMILIES: Final = 8
PREFIX_SYLLABLES: Final = 120  # a token each; what requests of one family share
OWN_SYLLABLES: Final = 24
MAX_TOKENS: Final = 48
DRAWS: Final = 8  # picks before the second attempt looks for another endpoint itself
SYLLABLES: Final = tuple(a + b for a in "bdfgklmnprstvz" for b in "aeiou")


@dataclass(frozen=True, slots=True)
class Job:
    """One request as a user makes it."""

    prompt: str
    tenant: str
    stream: bool
    max_tokens: int = MAX_TOKENS
    model: str = MODEL_NAME

    def body(self) -> bytes:
        """The JSON of OpenAI's completions endpoint."""
        fields: dict[str, Any] = {
            "model": self.model,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
        }
        if self.stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        return json.dumps(fields).encode()


class Jobs:
    """An endless supply of jobs, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        """Draws the shared prefixes."""
        self._rng = random.Random(seed)  # noqa: S311 - a workload, not a secret
        self._prefixes = [self._text(PREFIX_SYLLABLES) for _ in range(FAMILIES)]

    def gap_s(self) -> float:
        """Time until the next arrival."""
        return self._rng.expovariate(RATE_PER_S)

    def next(self) -> Job:
        """One more job."""
        prefix = self._rng.choice(self._prefixes)
        return Job(
            prompt=f"{prefix} {self._text(OWN_SYLLABLES)}",
            tenant=self._rng.choice(TENANTS),
            stream=self._rng.random() < STREAM_SHARE,
        )

    def _text(self, syllables: int) -> str:
        return " ".join(self._rng.choices(SYLLABLES, k=syllables))


@dataclass(frozen=True, slots=True)
class Attempt:
    """One HTTP exchange with one endpoint."""

    address: str
    job: Job
    resend_count: int
    started_ns: int
    """Wall time."""
    duration_s: float = 0.0
    ttft_s: float | None = None
    """Until the first event of a stream; None for whole answers."""
    status: int = 0
    """0 = no answer began."""
    error: str = ""
    """error.type: the status of a refusal, else what happened to the connection; "" = none."""
    input_tokens: int = 0
    output_tokens: int = 0


class Failed(Exception):
    """Tells the lease of an endpoint that its attempt failed."""


async def attempt(address: str, job: Job, resend_count: int = 0) -> Attempt:
    """Send `job` to `address`; every way it can go wrong is in the result."""
    begun = Attempt(address, job, resend_count, time.time_ns())
    start_s = time.monotonic()
    done = begun
    try:
        async with asyncio.timeout(TIMEOUT_S), http1.send(address, PATH, job.body()) as answer:
            done = replace(begun, status=answer.status)
            if answer.status != HTTPStatus.OK:
                done = replace(done, error=str(answer.status))
            elif job.stream:
                done = await _stream(done, answer, start_s)
            else:
                done = _with_usage(done, json.loads(await answer.read()))
    except OSError as error:  # TimeoutError is one
        done = replace(done, error=type(error).__name__)
    except ValueError:
        done = replace(done, error="malformed_answer")
    return replace(done, duration_s=time.monotonic() - start_s)


async def _stream(begun: Attempt, answer: http1.Answer, start_s: float) -> Attempt:
    """Read server-sent events; llama.cpp puts the usage into the last one."""
    done = begun
    rest = b""
    async for part in answer.parts():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: ") or line == b"data: [DONE]":
                continue
            if done.ttft_s is None:
                done = replace(done, ttft_s=time.monotonic() - start_s)
            done = _with_usage(done, json.loads(line.removeprefix(b"data: ")))
    return done


def _with_usage(attempt: Attempt, answer: Any) -> Attempt:
    match answer:
        case {"usage": {"prompt_tokens": int(prompt), "completion_tokens": int(output)}}:
            return replace(attempt, input_tokens=prompt, output_tokens=output)
        case {}:
            return attempt
    raise ValueError("an answer is a JSON object")


@dataclass(frozen=True, slots=True)
class Request:
    """One request as its user saw it, retry included."""

    duration_s: float
    failed: bool
    retried: bool


class Traffic:
    """Sends jobs until cancelled. `attempts` and `requests` hear of everything that finished."""

    def __init__(
        self,
        client: DecisionsClient,
        *,
        seed: int,
        phase: Callable[[], Phase],
        attempts: Callable[[Phase, Attempt], None],
        requests: Callable[[Phase, Request], None],
    ) -> None:
        """`phase` names the part of the story in which a request begins."""
        self._client = client
        self._jobs = Jobs(seed)
        self._phase = phase
        self._attempts = attempts
        self._requests = requests
        self._in_flight: dict[str, int] = {}
        self._running = 0
        self.skipped = 0

    def in_flight(self, address: str) -> int:
        """Requests under way to an address."""
        return self._in_flight.get(address, 0)

    async def run(self) -> None:
        """Send for ever; cancelling cancels what is under way."""
        async with asyncio.TaskGroup() as group:
            due_s = time.monotonic()
            while True:
                due_s += self._jobs.gap_s()
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                job = self._jobs.next()
                if self._running < MAX_IN_FLIGHT:
                    group.create_task(self._serve(job))
                else:
                    self.skipped += 1

    async def _serve(self, job: Job) -> None:
        self._running += 1
        try:
            await self._request(job)
        finally:
            self._running -= 1

    async def _request(self, job: Job) -> None:
        phase = self._phase()
        start_s = time.monotonic()
        failed, retried = True, False
        first = self._client.pick()
        if first is not None:
            failed = not await self._try(first, job, phase, 0)
            second = self._other(first) if failed else None
            if second is not None:
                retried = True
                failed = not await self._try(second, job, phase, 1)
        self._requests(phase, Request(time.monotonic() - start_s, failed, retried))

    async def _try(self, endpoint: Endpoint, job: Job, phase: Phase, resend_count: int) -> bool:
        address = endpoint.address
        self._in_flight[address] = self._in_flight.get(address, 0) + 1
        done: Attempt | None = None
        try:
            with suppress(Failed), self._client.request(endpoint):
                done = await attempt(address, job, resend_count)
                if done.error:
                    raise Failed
        finally:
            self._in_flight[address] -= 1
        assert done is not None
        self._attempts(phase, done)
        return not done.error

    def _other(self, first: Endpoint) -> Endpoint | None:
        """Another endpoint than `first`, by weight when the draws find one."""
        for _ in range(DRAWS):
            picked = self._client.pick()
            if picked is not None and picked.id != first.id:
                return picked
        others = [each for each in self._client.endpoints if each.id != first.id]
        return max(others, key=lambda each: each.weight, default=None)
