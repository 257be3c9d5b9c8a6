"""Mix: whether a pool serves other kinds of requests than it usually does.

Enters: calls per kind in a window of each pool. Leaves: scores and each kind's part. The statistic
is G = 2 sum O ln(O / E) against the slow baseline (Wilks 1938), as a normal deviate (Wilson and
Hilferty 1931), then against its own usual size, since requests come in bursts and conversations.
Windows with few calls are added up until there are enough.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from pipeline.detect.baseline import Deviation, protected, sigma_of, standardised, weights
from pipeline.detect.calibrate import Tail, chi_squared_deviate
from pipeline.detect.ordered import total
from pipeline.detect.rows import Table
from pipeline.model import Bools, Floats, Int64s

LEAST_SHARE: Final = 1e-3
"""A kind that was never seen is expected this often: its first calls are news, not infinite."""
LEAST_SIGMA: Final = 1.0
"""Independent calls give a deviate of variance 1; no pool is steadier than that."""

HEAD: Final = {"count": 0.0, "level": 0.0, "scale": 0.0, "run": 0.0, "run_level": 0.0}


class Window(NamedTuple):
    """Calls by kind of k different pools."""

    row: Int64s
    """int64[k], unique, ascending."""
    calls: Floats
    """float64[k, kinds], >= 0; what has no column of its own is in the last one."""


class MixScores(NamedTuple):
    """How far pools are from their usual mix."""

    score: Floats
    """float64[k], -log10 of the tail probability, >= 0; NaN = too few calls yet, or warm-up."""
    divergence: Floats
    """float64[k], Jensen-Shannon divergence in nats, 0 to ln 2; NaN = too few calls."""
    contributions: Floats
    """float64[k, kinds]: each kind's part of G, adding up to it; > 0 more calls than usual."""
    share: Floats
    """float64[k, kinds]: the usual shares."""


class Mix:
    """State of n pools: 12 facts and three shares a kind, in float64."""

    name = "mix"

    def __init__(
        self,
        *,
        kinds: int = 32,
        least_calls: float = 100.0,
        memory: float = 120.0,
        accept: float = 30.0,
        warm_up: float = 10.0,
    ) -> None:
        """At most `kinds` kinds a pool; a window is judged once it has `least_calls`.

        `memory` of the baseline, `accept` (windows in a row until a new mix is the usual one) and
        `warm_up` are in windows judged.
        """
        self._kinds = kinds
        self._least_calls = least_calls
        self._memory = memory
        self._warm_up = warm_up
        self._tail = Tail(memory=1000.0)
        self._deviation = Deviation(accept=accept, warm_up=warm_up)
        facts = {**HEAD, **self._tail.facts}
        for name in ("share", "waiting", "recent"):
            facts |= {f"{name}_{i}": 0.0 for i in range(kinds)}
        self._table = Table(facts, {})

    @property
    def nbytes(self) -> int:
        """Bytes of state."""
        return self._table.nbytes

    def resize(self, n: int) -> None:
        """Have room for n pools; never shrinks."""
        self._table.resize(n)

    def forget(self, rows: Int64s) -> None:
        """Let `rows` start afresh."""
        self._table.forget(rows)

    def export_state(self) -> dict[str, Any]:
        """The state as numpy arrays and plain values."""
        return self._table.export_state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from an exported state; `ValueError` when it does not fit."""
        self._table.restore(state)

    def score(self, window: Window, learn: Bools) -> MixScores:
        """Score first, then learn where `learn`; no windows give no scores."""
        lines = self._table.lines.take(window.row, axis=1)
        k, first = len(window.row), len(HEAD) + len(self._tail.facts)
        share, waiting, _ = lines[first:].reshape(3, self._kinds, k)
        waiting += window.calls.T
        calls = total(waiting)
        scores = MixScores(
            np.full(k, np.nan), np.full(k, np.nan), np.zeros((k, self._kinds)), share.T.copy()
        )
        enough = np.flatnonzero(calls >= self._least_calls)
        if len(enough):
            of_enough = lines.take(enough, axis=1)
            with np.errstate(all="ignore"):  # 0 ln 0
                self._judge(of_enough, calls[enough], enough, scores)
            lines[:, enough] = of_enough
        self._table.write(window.row, learn, lines)
        return scores

    def _judge(self, lines: Floats, calls: Floats, at: Int64s, scores: MixScores) -> None:
        count, level, scale, run, run_level = lines[: len(HEAD)]
        first = len(HEAD) + len(self._tail.facts)
        tail = lines[len(HEAD) : first]
        share, waiting, recent = lines[first:].reshape(3, self._kinds, len(at))
        now = waiting / calls
        expected = (share + LEAST_SHARE) / (1.0 + self._kinds * LEAST_SHARE)
        parts = np.where(waiting > 0.0, 2.0 * waiting * np.log(now / expected), 0.0)
        is_possible = ((expected * calls > 1.0) | (waiting > 0.0)).astype(np.float64)
        deviate = chi_squared_deviate(total(parts), np.maximum(total(is_possible) - 1.0, 1.0))
        residual = deviate - level
        sigma = sigma_of(scale, level, np.full(len(at), LEAST_SIGMA), 0.0)
        z = standardised(np.maximum(residual, 0.0), sigma)
        z[count < self._warm_up] = np.nan
        scores.score[at] = self._tail.score(z, tail, count)
        scores.divergence[at] = _jensen_shannon(now, expected)
        scores.contributions[at] = parts.T
        self._tail.learn(z, tail, count)
        is_out = self._deviation.outlying(np.maximum(residual, 0.0), sigma, count)
        plain = weights(np.ones(len(at)), count, self._memory)
        weight = protected(plain, is_out)
        is_young = count < 1.0  # no baseline yet: the deviate says nothing
        self._deviation.learn_scale(scale, residual, sigma, count, weight)
        level += np.where(is_young, 0.0, weight * residual)
        recent += (now - recent) / np.maximum(np.minimum(np.abs(run) + 1.0, 20.0), 1.0)
        done = self._deviation.accepted(run, run_level, is_out, residual, deviate)
        share += weight * (now - share)
        share[:, done] = recent[:, done]
        waiting[:] = 0.0
        count += 1.0


def _jensen_shannon(now: Floats, usual: Floats) -> Floats:
    """float64[k] divergence of columns in nats."""
    middle = 0.5 * (now + usual)
    parts = np.where(now > 0.0, now * np.log(now / middle), 0.0)
    parts += np.where(usual > 0.0, usual * np.log(usual / middle), 0.0)
    return 0.5 * total(parts)
