"""Receivers are tested on the event loop that serves."""

import asyncio
from collections.abc import Callable, Mapping

from pipeline.process import new_event_loop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": new_event_loop}
