"""What requests came to since a circuit closed, and what is new since the last tick.

Enters: the window of the failure ratio and the raw signals. Leaves: calls and failures without
those from before the last closing, what the window gained, and the age of the last proof of work.
"""

from typing import ClassVar, NamedTuple

import numpy as np

from pipeline.decide.columns import Blanks, Columns
from pipeline.decide.groups import known_or
from pipeline.model import Bools, Floats, Int32s, Int64s, RequestWindow, SignalMatrix
from pipeline.signals import SIGNAL_INDEX

TOKENS = SIGNAL_INDEX["output_tokens_per_s"]
REQUESTS = SIGNAL_INDEX["requests_per_s"]


class Outcome(NamedTuple):
    """One tick's counts per slot, float64[n]."""

    calls: Floats
    """Calls in the window, less those from before the last closing"""
    failures: Floats
    new_calls: Floats
    """Calls by which the window grew; never more than there were"""
    new_failures: Floats
    progress_age_s: Floats
    """Since a token or request rate rose; inf = never"""


class Outcomes(Columns):
    """Remembers the last tick's counts and how much of them is from before a closing."""

    BLANK: ClassVar[Blanks] = {
        "calls": ("float64", np.nan),
        "failures": ("float64", np.nan),
        "old_calls": ("float64", 0.0),
        "old_failures": ("float64", 0.0),
        "settled_s": ("float64", np.inf),
        "token_rate": ("float64", np.nan),
        "request_rate": ("float64", np.nan),
        "progress_age_s": ("float64", np.inf),
    }
    calls: Floats
    failures: Floats
    old_calls: Floats
    old_failures: Floats
    settled_s: Floats
    """Since the last closing"""
    token_rate: Floats
    request_rate: Floats
    progress_age_s: Floats

    def update(self, window: RequestWindow | None, signals: SignalMatrix, dt_s: float) -> Outcome:
        """Take one tick's counts. `dt_s` is the time since the last tick."""
        calls = np.zeros(self.n) if window is None else window.failure_calls
        failures = np.zeros(self.n) if window is None else window.failures
        new_calls = known_or(np.maximum(calls - self.calls, 0.0), 0.0)
        new_failures = known_or(np.maximum(failures - self.failures, 0.0), 0.0)
        self.settled_s = self.settled_s + dt_s
        # Nothing old comes in any more, so what is left of it is at most the least seen since.
        left = window is not None and self.settled_s < window.seconds
        self.old_calls = np.where(left, np.minimum(self.old_calls, calls), 0.0)
        self.old_failures = np.where(left, np.minimum(self.old_failures, failures), 0.0)
        self.calls, self.failures = calls.copy(), failures.copy()
        self._progress(signals, dt_s)
        return Outcome(
            calls - self.old_calls,
            failures - self.old_failures,
            new_calls,
            new_failures,
            self.progress_age_s,
        )

    def _progress(self, signals: SignalMatrix, dt_s: float) -> None:
        """Rates are averages that decay slowly: only one that rises proves that work goes on."""
        tokens, requests = signals.value[TOKENS], signals.value[REQUESTS]
        age = np.where(_rose(tokens, self.token_rate), signals.age_s[TOKENS], np.inf)
        age = np.where(_rose(requests, self.request_rate), signals.age_s[REQUESTS], age)
        self.progress_age_s = np.minimum(self.progress_age_s + dt_s, age)
        self.token_rate, self.request_rate = tokens.copy(), requests.copy()

    def settle(self, slots: Int64s | Int32s) -> None:
        """The circuits of these slots closed: all calls and failures so far are of the past."""
        self.settled_s[slots] = 0.0
        self.old_calls[slots] = known_or(self.calls[slots], 0.0)
        self.old_failures[slots] = known_or(self.failures[slots], 0.0)


def _rose(now: Floats, before: Floats) -> Bools:
    """Where a rate is higher than before; a series that begins anew begins at nothing."""
    rose: Bools = now > known_or(before, 0.0)
    return rose
