"""Bearer tokens: who is let in, rotation, and that no token ever shows."""

import hashlib
import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from prometheus_client import generate_latest

from pipeline.clock import HandClock
from pipeline.errors import ConfigError, Unauthenticated
from pipeline.model import Client
from pipeline.receive.config import MIB, ReceiveConfig
from pipeline.receive.intake import MAX_PEERS_NAMED, Intake
from pipeline.receive.tokens import MAX_FILE_BYTES, MAX_TOKENS, Tokens
from pipeline.telemetry import Telemetry
from tests.receive.serving import Sink, serving, trailers, write

EU = "eu-token-0123456789"
US = "us-token-0123456789"
NEW = "new-token-0123456789"
SECRET = "s3cr3t-s3cr3t-s3cr3t"

TWO = f"""
- {{name: gateway-eu, token: {EU}}}
- {{name: gateway-us, sha256: {hashlib.sha256(US.encode()).hexdigest()}}}
"""


@pytest.fixture(name="path")
def tokens_path(tmp_path: Path) -> Path:
    write(tmp_path / "tokens.yaml", TWO)
    return tmp_path / "tokens.yaml"


@pytest.fixture(name="logs")
def captured_logs() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as logs:
        yield logs


def bearer(token: str) -> dict[str, Any]:
    return {"metadata": (("authorization", f"Bearer {token}"),)}


def tokens_of(path: Path, clock: HandClock | None = None) -> Tokens:
    return Tokens(str(path), (clock or HandClock()).now(), list[str]().append)


@pytest.mark.parametrize(("token", "name"), [(EU, "gateway-eu"), (US, "gateway-us")])
async def test_a_valid_token_names_its_sender(path: Path, token: str, name: str) -> None:
    async with serving(tokens_file=str(path)) as running:
        await running.export(b"x", **bearer(token))
        assert running.sink.clients == [Client("127.0.0.1", name)]


@pytest.mark.parametrize(
    ("authorization", "reason"),
    [
        (None, "missing"),
        ("", "missing"),
        (EU, "missing"),
        (f"Basic {EU}", "missing"),
        ("Bearer", "missing"),
        ("Bearer ", "unknown"),
        (f"Bearer {EU}x", "unknown"),
        (f"Bearer {EU[:-1]}", "unknown"),
        (f"Bearer {EU.upper()}", "unknown"),
        (f"Bearer {hashlib.sha256(US.encode()).hexdigest()}", "unknown"),
    ],
)
async def test_anything_else_is_unauthenticated_and_never_reaches_the_budget(
    path: Path, authorization: str | None, reason: str
) -> None:
    async with serving(tokens_file=str(path)) as running:
        metadata = () if authorization is None else (("authorization", authorization),)
        error = await running.refused(bytes(2 * MIB), metadata=metadata)
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert error.details() == "no valid bearer token"
        assert "grpc-status-details-bin" not in trailers(error)
        assert running.sink.exports == []
        assert running.intake.bytes_in_flight == 0
        assert running.value("unauthenticated_requests_total", reason=reason) == 1
        assert running.value("prehandler_failures_total") == 0


def test_the_scheme_is_read_in_any_case_and_spaces_do_not_matter(path: Path) -> None:
    now = HandClock().now()
    assert tokens_of(path).name_of(f"bEARER  {EU} ", now) == "gateway-eu"


def test_tokens_rotate_without_a_restart(path: Path) -> None:
    clock = HandClock()
    tokens = tokens_of(path, clock)
    write(path, f"- {{name: gateway-eu, token: {NEW}}}\n- {{name: gateway-eu, token: {EU}}}")
    assert tokens.name_of(f"Bearer {EU}", clock.now()) == "gateway-eu"  # both hold for a while
    assert tokens.name_of(f"Bearer {NEW}", clock.advance(1.0)) == "gateway-eu"
    write(path, f"- {{name: gateway-eu, token: {NEW}}}")
    with pytest.raises(Unauthenticated, match="unknown"):
        tokens.name_of(f"Bearer {EU}", clock.advance(1.0))
    assert tokens.name_of(f"Bearer {NEW}", clock.now()) == "gateway-eu"


def test_the_file_is_looked_at_once_a_second_at_most(path: Path) -> None:
    clock = HandClock()
    tokens = tokens_of(path, clock)
    write(path, f"- {{name: new, token: {NEW}}}")
    with pytest.raises(Unauthenticated):
        tokens.name_of(f"Bearer {NEW}", clock.advance(0.9))
    assert tokens.name_of(f"Bearer {NEW}", clock.advance(0.1)) == "new"


def test_a_token_ends_when_it_expires(path: Path) -> None:
    clock = HandClock()  # begins on 2023-11-14T22:13:20Z
    write(path, f"- {{name: a, token: {EU}, expires: 2023-11-14T22:13:30Z}}")
    tokens = tokens_of(path, clock)
    assert tokens.name_of(f"Bearer {EU}", clock.advance(9.9)) == "a"
    with pytest.raises(Unauthenticated, match="expired"):
        tokens.name_of(f"Bearer {EU}", clock.advance(0.1))


BROKEN = {
    "not a list": "a: 1",
    "empty": "",
    "no entry": "[]",
    "a list of tokens": f"- {SECRET}",
    "token as key": f"- {SECRET}: gateway",
    "not YAML": f"- {{name: a, token: {SECRET}\n- ]: [",
    "a tab": f"\t- {{name: a, token: {SECRET}}}",
    "an alias": f"- {{name: a, token: *{SECRET}}}",
    "a tag": f"- {{name: a, token: !!int {SECRET}}}",
    "no name": f"- {{token: {SECRET}}}",
    "bad name": f"- {{name: 'a b', token: {SECRET}}}",
    "neither": "- {name: a}",
    "both": f"- {{name: a, token: {SECRET}, sha256: {'0' * 64}}}",
    "short": "- {name: a, token: s3cr3t-s3cr3t}",
    "not a digest": f"- {{name: a, sha256: {SECRET}}}",
    "no offset": f"- {{name: a, token: {SECRET}, expires: 2030-01-01T00:00:00}}",
    "bad date": f"- {{name: a, token: {SECRET}, expires: {SECRET}}}",
    "not ASCII": f"- {{name: a, token: {SECRET}\u00e9}}",
    "twice": f"- {{name: a, token: {SECRET}}}\n- {{name: b, token: {SECRET}}}",
    "too many": "".join(f"- {{name: a, token: {SECRET}{i}}}\n" for i in range(MAX_TOKENS + 1)),
    "too large": f"# {SECRET}\n" * (MAX_FILE_BYTES // 10),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_file_that_cannot_be_used_stops_the_start_without_showing_a_token(
    path: Path, content: str
) -> None:
    write(path, content)
    with pytest.raises(ConfigError, match=r"receive\.tokens_file") as error:
        tokens_of(path)
    assert "s3cr3t" not in "".join(traceback.format_exception_only(error.value))
    assert error.value.__cause__ is None
    assert error.value.__context__ is None or error.value.__suppress_context__


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_new_file_keeps_the_old_tokens_and_is_told_once(
    path: Path, content: str, logs: list[Any]
) -> None:
    clock, outcomes = HandClock(), list[str]()
    tokens = Tokens(str(path), clock.now(), outcomes.append)
    write(path, content)
    for _ in range(3):
        assert tokens.name_of(f"Bearer {EU}", clock.advance(1.0)) == "gateway-eu"
    assert outcomes == ["failed"]
    assert [entry["log_level"] for entry in logs] == ["error"]
    assert "s3cr3t" not in repr(logs)
    write(path, f"- {{name: fixed, token: {NEW}}}")
    assert tokens.name_of(f"Bearer {NEW}", clock.advance(1.0)) == "fixed"
    assert outcomes == ["failed", "ok"]


def test_a_file_that_is_gone_or_is_no_file_keeps_the_old_tokens(
    path: Path, tmp_path: Path, logs: list[Any]
) -> None:
    clock = HandClock()
    tokens = tokens_of(path, clock)
    path.unlink()
    assert tokens.name_of(f"Bearer {EU}", clock.advance(1.0)) == "gateway-eu"
    os.mkfifo(path)  # nobody writes: opening it must not wait
    assert tokens.name_of(f"Bearer {EU}", clock.advance(1.0)) == "gateway-eu"
    assert len(logs) == 2
    with pytest.raises(ConfigError, match="No such file"):
        tokens_of(tmp_path / "missing")
    with pytest.raises(ConfigError, match="Is a directory"):
        tokens_of(tmp_path)


async def test_no_failing_path_shows_a_token_anywhere(path: Path, logs: list[Any]) -> None:
    clock = HandClock()
    write(path, f"- {{name: a, token: {SECRET}, expires: 2023-11-14T22:13:30Z}}")
    async with serving(tokens_file=str(path), clock=clock) as running:
        told = []
        running.sink.answer = RuntimeError("a fault")
        told.append(await running.refused(b"x", **bearer(SECRET)))
        told.append(await running.refused(b"x", **bearer(f"{SECRET}?")))
        told.append(await running.refused(b"x", metadata=(("authorization", f"Basic {SECRET}"),)))
        write(path, f"- {{name: a, token: {SECRET}, extra: {SECRET}")
        clock.advance(60.0)
        told.append(await running.refused(b"x", **bearer(SECRET)))
        seen = repr(logs) + repr(told) + str(running.intake.config)
        seen += "".join(str(error.details()) + repr(error.trailing_metadata()) for error in told)
        seen += generate_latest(running.telemetry.registry).decode()
        assert len(logs) == 3  # the fault, the wrong token, the broken file
        assert "s3cr3t" not in seen


def test_a_storm_of_wrong_tokens_fills_no_log_and_no_table(path: Path, logs: list[Any]) -> None:
    telemetry = Telemetry()
    intake = Intake(ReceiveConfig(tokens_file=str(path)), Sink().submit, telemetry)
    for i in range(1000):
        with pytest.raises(Unauthenticated):
            intake.authenticate(f"10.0.{i // 256}.{i % 256}", "Bearer wrong", "")
    assert len(logs) == MAX_PEERS_NAMED
    counted = telemetry.registry.get_sample_value(
        "tailrace_unauthenticated_requests_total", {"reason": "unknown"}
    )
    assert counted == 1000


@pytest.mark.parametrize("is_open", [True, False])
def test_tokens_over_plaintext_off_loopback_are_warned_about(
    path: Path, is_open: bool, logs: list[Any]
) -> None:
    config = ReceiveConfig(tokens_file=str(path), plaintext_off_loopback=is_open)
    Intake(config, Sink().submit, Telemetry())
    assert [entry["log_level"] for entry in logs] == ["warning"] * is_open
