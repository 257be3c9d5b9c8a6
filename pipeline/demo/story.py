"""What happens to the fleet, and when: one engine is made slow, later killed, later restarted.

Enters: how long the demo runs. Leaves: acts in order, each with its moment, and their execution.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

SLOW_FACTOR: Final = 5.0
# Shares of the whole. The end is the longest part: whoever comes back is given traffic step by
# step, and that is to be seen.
STEADY_AT: Final = 0.1
SLOW_AT: Final = 0.2
UNSLOW_AT: Final = 0.4
KILL_AT: Final = 0.5
DOWN_FOR: Final = 0.1
MIN_DOWN_S: Final = 3.0
MAX_DOWN_S: Final = 12.0
SHORTEST_S: Final = 20.0
PATIENCE_S: Final = 15.0
"""How long an act waits for what it builds on, on a machine that is busy with other things."""
POLL_S: Final = 0.05


class Act(StrEnum):
    """One turn of the story."""

    STEADY = "steady"
    SLOW = "slow"
    UNSLOW = "unslow"
    KILL = "kill"
    RESTART = "restart"
    END = "end"


class Phase(StrEnum):
    """Where the story stands; requests belong to the phase in which they began."""

    WARM_UP = "warming up"
    BEFORE = "all well"
    UNNOTICED = "slow, not noticed yet"
    NOTICED = "slow, noticed"
    BETWEEN = "full speed again"
    DOWN = "killed"
    AFTER = "restarted"


PHASE_OF: Final = {
    Act.STEADY: Phase.BEFORE,
    Act.SLOW: Phase.UNNOTICED,
    Act.UNSLOW: Phase.BETWEEN,
    Act.KILL: Phase.DOWN,
    Act.RESTART: Phase.AFTER,
}
TROUBLE: Final = (Phase.UNNOTICED, Phase.NOTICED, Phase.DOWN)
"""Phases in which something is wrong."""


class Cue(NamedTuple):
    """When an act is due, in seconds after the start of the traffic."""

    at_s: float
    act: Act


def schedule(seconds: float) -> tuple[Cue, ...]:
    """The acts of a demo of `seconds` (at least `SHORTEST_S`), in order, the last one at its end.

    >>> [(cue.at_s, str(cue.act)) for cue in schedule(40)][1:4]
    [(8.0, 'slow'), (16.0, 'unslow'), (20.0, 'kill')]
    """
    if seconds < SHORTEST_S:
        raise ValueError(f"{seconds:g} s are too short for the story: {SHORTEST_S:g} at least")
    kill_s = KILL_AT * seconds
    return (
        Cue(STEADY_AT * seconds, Act.STEADY),
        Cue(SLOW_AT * seconds, Act.SLOW),
        Cue(UNSLOW_AT * seconds, Act.UNSLOW),
        Cue(kill_s, Act.KILL),
        Cue(kill_s + min(max(DOWN_FOR * seconds, MIN_DOWN_S), MAX_DOWN_S), Act.RESTART),
        Cue(seconds, Act.END),
    )


async def play(
    cues: tuple[Cue, ...],
    *,
    actions: Mapping[Act, Callable[[], None]],
    waits_for: Mapping[Act, Callable[[], bool]],
    acted: Callable[[Act], None],
) -> None:
    """Tell `acted` of each act at its moment from now on, then carry it out, if it has an action.

    An act waits, at most `PATIENCE_S`, until what it `waits_for` holds; the later ones move with
    it. Returns after the last.
    """
    start_s = time.monotonic()
    for cue in cues:
        due_s = start_s + cue.at_s
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        holds = waits_for.get(cue.act, lambda: True)
        while not holds() and time.monotonic() < due_s + PATIENCE_S:
            await asyncio.sleep(POLL_S)
            start_s = time.monotonic() - cue.at_s
        acted(cue.act)
        if cue.act in actions:
            actions[cue.act]()
