"""Real llama.cpp processes: what they serve, and that slowing, killing and restarting are real."""

import http.client
import json
import multiprocessing
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from pipeline.demo.engine import MODEL_NAME, SLOT_CONTEXT, SLOTS, STOP_TIMEOUT_S, Engine
from pipeline.errors import DependencyLost
from tests.parts import require

COMPLETIONS = "/v1/completions"
SPAWN = multiprocessing.get_context("spawn")  # a parent that can be killed without this process


@pytest.fixture(scope="module", autouse=True)
def _parts() -> None:
    found = all(find_spec(name) is not None for name in ("gguf", "xllamacpp"))
    require("llama.cpp", found, "pip install 'tailrace[demo]'")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pipeline.demo.tiny_model import write_tiny_model

    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    with Engine(model, model.with_name("engine.log")) as running:
        yield running


def exchange(engine: Engine, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
    """One request on a connection of its own: the status and the text of the answer."""
    with closing(http.client.HTTPConnection(engine.address, timeout=10)) as connection:
        method = "GET" if body is None else "POST"
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def complete(engine: Engine, prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, **more}
    status, text = exchange(engine, COMPLETIONS, body)
    assert status == 200, text
    answer: dict[str, Any] = json.loads(text)
    return answer


def metrics(engine: Engine) -> dict[str, float]:
    """Every sample of the page; llama.cpp puts no labels on them."""
    status, page = exchange(engine, "/metrics")
    assert status == 200
    samples = (line.split() for line in page.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in samples}


def refuses_connections(engine: Engine) -> bool:
    host, port = engine.address.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except ConnectionRefusedError:
        return True
    return False


def test_the_model_is_small_and_the_same_for_the_same_seed(tmp_path: Path) -> None:
    from pipeline.demo.tiny_model import write_tiny_model

    one = write_tiny_model(tmp_path / "one.gguf").read_bytes()
    same = write_tiny_model(tmp_path / "same.gguf").read_bytes()
    other = write_tiny_model(tmp_path / "other.gguf", seed=8).read_bytes()
    assert len(one) < 1_000_000
    assert one == same
    assert one != other
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "one.gguf",
        "other.gguf",
        "same.gguf",
    ]


def test_a_model_that_exists_is_reused(tmp_path: Path) -> None:
    from pipeline.demo.tiny_model import write_tiny_model

    path = tmp_path / "deep" / "tiny.gguf"
    first = write_tiny_model(path).stat()
    assert write_tiny_model(path).stat() == first


def test_a_prompt_of_syllables_costs_one_token_a_syllable_and_the_answer_has_the_length_asked(
    engine: Engine,
) -> None:
    answer = complete(engine, " ".join(["ba", "be", "bi", "bo"] * 16), 16)
    assert answer["usage"]["prompt_tokens"] == 1 + 64  # the begin token first
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["model"] == MODEL_NAME
    assert answer["choices"][0]["text"].isascii()


def test_any_text_is_a_prompt(engine: Engine) -> None:
    assert complete(engine, "Gr\u00fc\u00dfe, \u4f60\u597d! 42", 4)["usage"]["prompt_tokens"] > 10


def test_the_native_route_answers_with_its_timings(engine: Engine) -> None:
    status, text = exchange(engine, "/completion", {"prompt": "ba be", "n_predict": 8})
    assert status == 200
    timings = json.loads(text)["timings"]
    assert timings["predicted_n"] == 8
    assert timings["predicted_ms"] > 0


def test_a_streamed_completion_says_the_same_as_a_whole_one(engine: Engine) -> None:
    whole = complete(engine, "ra re ri", 12)["choices"][0]["text"]
    body = {"prompt": "ra re ri", "max_tokens": 12, "temperature": 0, "stream": True}
    status, text = exchange(engine, COMPLETIONS, body)
    events = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert status == 200
    assert events.pop() == "[DONE]"
    pieces = [json.loads(event)["choices"][0]["text"] for event in events]
    assert len(pieces) > 6  # it came in parts
    assert "".join(pieces) == whole


def test_a_repeated_prompt_is_taken_from_the_cache(engine: Engine) -> None:
    prompt = " ".join(["su", "se", "si", "sa", "so"] * 20)
    before = metrics(engine)
    complete(engine, prompt, 2)
    again = complete(engine, prompt, 2)
    after = metrics(engine)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 99
    assert again["timings"]["cache_n"] >= 99
    cached = "llamacpp:prompt_tokens_cached_total"
    assert after[cached] - before[cached] >= 99


def test_a_prompt_beyond_the_context_is_refused_and_the_engine_goes_on(engine: Engine) -> None:
    status, _ = exchange(engine, COMPLETIONS, {"prompt": "ba " * SLOT_CONTEXT, "max_tokens": 1})
    assert status == 400
    assert exchange(engine, "/health")[0] == 200


def test_more_requests_than_slots_are_all_answered_and_counted(engine: Engine) -> None:
    before = metrics(engine)
    with ThreadPoolExecutor(2 * SLOTS) as pool:
        prompts = [f"request {index} of many" for index in range(4 * SLOTS)]
        answers = list(pool.map(lambda prompt: complete(engine, prompt, 8), prompts))
    after = metrics(engine)
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [8] * 4 * SLOTS
    predicted = "llamacpp:tokens_predicted_total"
    assert after[predicted] - before[predicted] == 8 * 4 * SLOTS


def test_the_metrics_page_shows_the_requests_under_way(engine: Engine) -> None:
    assert metrics(engine)["llamacpp:requests_processing"] == 0
    with closing(http.client.HTTPConnection(engine.address, timeout=10)) as connection:
        body = {"prompt": "ba", "max_tokens": SLOT_CONTEXT - 8, "stream": True}
        connection.request("POST", COMPLETIONS, json.dumps(body))
        answer = connection.getresponse()  # the first of about a thousand tokens is there
        assert metrics(engine)["llamacpp:requests_processing"] == 1
        answer.read()


def test_a_slowed_engine_takes_longer_by_its_factor_and_recovers(engine: Engine) -> None:
    """Fast and slow in turn; the quickest of each, as other work on the machine only adds."""
    fast_s, slow_s = [], []
    for round_index in range(7):
        fast_s.append(seconds_of_a_completion(engine, f"fast {round_index}"))
        engine.slow(4)
        slow_s.append(seconds_of_a_completion(engine, f"slow {round_index}"))
        engine.unslow()
    fast_s.append(seconds_of_a_completion(engine, "fast again"))
    assert min(slow_s) >= 2 * min(fast_s)


def seconds_of_a_completion(engine: Engine, prompt: str) -> float:
    begin_s = time.perf_counter()
    complete(engine, prompt, 128)
    return time.perf_counter() - begin_s


def test_a_factor_that_slows_nothing_is_refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match="above 1"):
        engine.slow(1)


def test_a_killed_engine_refuses_and_comes_back_on_its_address_with_counters_at_zero(
    model: Path, tmp_path: Path
) -> None:
    with Engine(model, tmp_path / "engine.log") as engine:
        address, pid = engine.address, engine.pid
        complete(engine, "ba be bi", 4)
        engine.slow(8)  # the signal must reach a stopped process too
        engine.kill()
        assert not engine.is_alive()
        assert engine.pid is None
        assert refuses_connections(engine)
        engine.restart()
        engine.wait_ready()
        assert engine.address == address
        assert engine.pid not in {pid, None}
        assert metrics(engine)["llamacpp:tokens_predicted_total"] == 0
        complete(engine, "ba be bi", 4)


def test_stop_cuts_a_request_under_way_and_is_safe_twice(model: Path, tmp_path: Path) -> None:
    engine = Engine(model, tmp_path / "engine.log")
    engine.stop()
    engine.start()
    engine.wait_ready()
    with closing(http.client.HTTPConnection(engine.address, timeout=10)) as connection:
        body = {"prompt": "ba", "max_tokens": SLOT_CONTEXT - 8, "stream": True}
        connection.request("POST", COMPLETIONS, json.dumps(body))
        answer = connection.getresponse()
        begin_s = time.perf_counter()
        engine.stop()
        engine.stop()
        assert time.perf_counter() - begin_s < STOP_TIMEOUT_S  # it went by itself
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            answer.read()
    assert not engine.is_alive()


def test_stop_ends_by_force_a_process_that_does_not_react(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.demo.engine.STOP_TIMEOUT_S", 0.1)
    with Engine(model, tmp_path / "engine.log") as engine:
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGSTOP)
        engine.stop()
        assert not engine.is_alive()


def test_an_engine_that_cannot_load_its_model_says_so_at_once(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but no more")
    log = tmp_path / "engine.log"
    engine = Engine(broken, log)
    engine.start()
    with pytest.raises(DependencyLost, match=r"ended; see .*engine\.log"):
        engine.wait_ready()
    assert str(broken) in log.read_text()
    with pytest.raises(DependencyLost, match="does not run"):
        engine.slow(2)


def test_an_engine_does_not_start_where_another_answers(engine: Engine, model: Path) -> None:
    port = int(engine.address.rpartition(":")[2])
    second = Engine(model, model.with_name("second.log"), port=port)
    with pytest.raises(DependencyLost, match="is in use"):
        second.start()
    assert not second.is_alive()


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: PR_SET_PDEATHSIG")
def test_an_engine_dies_with_its_parent_even_while_it_is_slowed(
    model: Path, tmp_path: Path
) -> None:
    ours, theirs = SPAWN.Pipe()
    parent = SPAWN.Process(target=hold_a_slowed_engine, args=(theirs, model, tmp_path / "log"))
    parent.start()
    assert ours.poll(30)
    child = os.pidfd_open(ours.recv())
    try:
        parent.kill()
        parent.join()
        ended, _, _ = select.select([child], [], [], 10)
        assert ended
    finally:
        os.close(child)


def hold_a_slowed_engine(pipe: Connection, model: Path, log: Path) -> None:
    with Engine(model, log) as engine:
        engine.slow(1000)
        pipe.send(engine.pid)
        pipe.recv()  # nothing comes: this process is killed


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: /proc")
def test_a_slowdown_that_ends_leaves_the_process_running(engine: Engine) -> None:
    for factor in (1000, 2, 1000):
        engine.slow(factor)
    engine.unslow()
    engine.unslow()
    status = Path(f"/proc/{engine.pid}/status").read_text()
    assert "State:\tT" not in status
    pending = next(line for line in status.splitlines() if line.startswith("ShdPnd:"))
    assert int(pending.split()[1], 16) & (1 << (signal.SIGSTOP - 1)) == 0
    assert exchange(engine, "/health")[0] == 200
