"""The demo from beginning to end: start, perform, sum up.

Enters: how long, and how to show it. Leaves: an exit code, and on standard output either the live
screen and a summary, or exactly one line of JSON.
"""

import asyncio
import json
import signal
import sys
import time
from importlib.util import find_spec
from typing import Final

from rich.console import Console

from pipeline.demo.story import schedule
from pipeline.errors import DependencyLost, TailraceError

NEEDED: Final = ("gguf", "opentelemetry.sdk", "opentelemetry.exporter", "xllamacpp")
INTERRUPTED: Final = 130  # what a shell expects after Ctrl-C


def run(seconds: float, *, headless: bool, as_json: bool) -> int:
    """Show the demo; 0, or 1 when something could not be shown, with a sentence that says what.

    It may last longer than `seconds`, on a busy machine, so that what happens is seen to its end.
    """
    console = Console(stderr=as_json, highlight=False)
    is_live = console.is_terminal and not headless and not as_json
    try:
        _check_parts()
        return asyncio.run(_run(seconds, console, is_live=is_live, as_json=as_json))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("stopped")
        return INTERRUPTED
    except TailraceError as error:
        console.print(f"tailrace demo: {error}", markup=False, soft_wrap=True)
        return 1


def _check_parts() -> None:
    missing = [name for name in NEEDED if not _is_installed(name)]
    if missing:
        raise DependencyLost(
            f"needs {', '.join(missing)}: make demo, or pip install '.[demo]' in a checkout"
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # nor is its package
        return False


async def _run(seconds: float, console: Console, *, is_live: bool, as_json: bool) -> int:
    # These import what `_check_parts` looks for.
    from pipeline.demo import start, view  # noqa: PLC0415
    from pipeline.demo.show import AGENT_ID, NAMES, TARGET, Show  # noqa: PLC0415
    from pipeline.demo.spans import SpanSender  # noqa: PLC0415

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    begin_s = time.monotonic()

    def say(text: str) -> None:
        view.print_line(console, f"{time.monotonic() - begin_s:5.1f} s  {text}")

    async with start.scene(say) as scene:
        with SpanSender(scene.otlp, AGENT_ID) as spans:
            show = Show(scene, schedule(seconds), spans)
            outcome = await show.run(console, say, is_live=is_live)
    if as_json:
        sys.stdout.write(json.dumps(outcome._asdict()) + "\n")
        for sentence in outcome.shortfalls():
            view.print_line(console, sentence)
    else:
        rows, happenings = show.measure.rows(), show.happenings()
        console.print(view.summary(outcome, rows, happenings, NAMES[TARGET]))
    return 1 if outcome.shortfalls() else 0
