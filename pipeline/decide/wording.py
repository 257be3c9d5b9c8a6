"""Changes of state in plain English, from the evidence that made them."""

from pipeline.decide.config import CircuitConfig
from pipeline.decide.evidence import Cause, Evidence
from pipeline.model import State


def cause_of(slot: int, evidence: Evidence, before: Cause) -> Cause:
    """The strongest evidence against a slot now; `before` without any."""
    masks = (
        (Cause.REFUSED, evidence.refused),
        (Cause.DOWN, evidence.down),
        (Cause.REMAP, evidence.remap),
        (Cause.FAILURE, evidence.failing),
        (Cause.LATENCY, evidence.slow),
        (Cause.SILENCE, evidence.silent),
    )
    return next((cause for cause, mask in masks if mask[slot]), before)


def wording(
    slot: int, was: State, state: State, cause: Cause, evidence: Evidence, waited_s: float
) -> str:
    """What to say of a slot that went from `was` to `state` after `waited_s` there."""
    if state is State.OPEN:
        again = "opened again" if was is State.HALF_OPEN else "opened"
        return f"{again}: {_why(slot, cause, evidence)}"
    if state is State.HALF_OPEN:
        return f"half-open after {waited_s:.1f} s: a small share of requests tries it"
    if state is State.DRAINING:
        return "draining: its membership source takes it out"
    return {
        State.HALF_OPEN: "closed: it serves again",
        State.DRAINING: "no longer draining",
        State.UNKNOWN: "heard for the first time",
    }.get(was, "healthy again")


def ailment(slot: int, evidence: Evidence, config: CircuitConfig, *, capped: bool) -> str:
    """Why a slot is degraded."""
    if capped:
        why = _why(slot, cause_of(slot, evidence, Cause.NONE), evidence)
        return f"degraded: {why}; not opened, since enough of its pool is out"
    if evidence.suspect[slot]:
        return "degraded: one scrape failed (up = 0)"
    if evidence.excess[slot] >= config.degraded_ratio:
        return f"degraded: {_why(slot, Cause.LATENCY, evidence)}"
    if evidence.failure_ratio[slot] >= config.failure_ratio / 2:
        return f"degraded: {_why(slot, Cause.FAILURE, evidence)}"
    return f"degraded: {_why(slot, Cause.SILENCE, evidence)}"


def _why(slot: int, cause: Cause, evidence: Evidence) -> str:
    return {
        Cause.REFUSED: f"{evidence.refused_count[slot]:.0f} connections refused within 3 s, "
        "none accepted",
        Cause.DOWN: f"{evidence.down_samples[slot]} scrapes in a row failed (up = 0)",
        Cause.REMAP: "a GPU reports that a row could not be remapped",
        Cause.FAILURE: f"{evidence.failure_ratio[slot]:.0%} of "
        f"{evidence.failure_calls[slot]:.0f} requests failed",
        Cause.LATENCY: f"latency is {evidence.excess[slot]:.1f} times its peers'",
        Cause.SILENCE: "nothing heard from it while its peers report",
        Cause.NONE: "a request of its trial failed",
    }[cause]
