"""The last step to a snapshot: overrides, "never all excluded", and what was published before."""

from typing import ClassVar, NamedTuple

import numpy as np

from pipeline.decide.columns import Blanks, Columns
from pipeline.decide.groups import Groups
from pipeline.decide.overrides import Governing
from pipeline.decide.weights import MAX_WEIGHT, NEUTRAL
from pipeline.model import Bools, Bytes, Floats, State


class Published(NamedTuple):
    """Weights and states as they leave, per slot."""

    weight: Floats
    state: Bytes
    all_out: Bools
    """Per group: everyone is out, so the last weights stay"""


class Publication(Columns):
    """What was decided and published last, and what `hold` overrides keep."""

    BLANK: ClassVar[Blanks] = {
        "weight": ("float64", np.nan),
        "state": ("uint8", State.UNKNOWN),
        "decided": ("float64", np.nan),
        "held": ("bool", False),
        "held_weight": ("float64", np.nan),
        "held_state": ("uint8", State.UNKNOWN),
    }
    weight: Floats
    state: Bytes
    decided: Floats
    held: Bools
    held_weight: Floats
    held_state: Bytes

    def decide(self, weight: Floats, hold: Bools, groups: Groups) -> tuple[Floats, Bools]:
        """Whole weights of what was decided, and which groups are all out.

        Where on `hold` the last weight stays.
        """
        weight = np.where(hold & ~np.isnan(self.decided), self.decided, np.rint(weight))
        self.decided, all_out = never_all_out(weight, self.decided, groups)
        return self.decided, all_out

    def publish(
        self, weight: Floats, state: Bytes, governing: Governing, groups: Groups
    ) -> Published:
        """Apply overrides to what receivers would be told, then keep each group from emptying."""
        weight, state = self._override(np.rint(weight), state, governing)
        weight, all_out = never_all_out(weight, self.weight, groups)
        self.weight, self.state = weight, state
        return Published(weight, state, all_out)

    def _override(self, weight: Floats, state: Bytes, governing: Governing) -> tuple[Floats, Bytes]:
        if not governing.overrides:
            self.held = np.zeros(self.n, np.bool_)
            return weight, state
        values = np.array([*(o.value for o in governing.overrides), 0], np.float64)
        value = np.clip(values[governing.governor], 1, MAX_WEIGHT)
        holding = governing.mask("hold")
        begins = holding & ~self.held
        seen = ~np.isnan(self.weight)
        self.held_weight = np.where(begins, np.where(seen, self.weight, weight), self.held_weight)
        self.held_state = np.where(begins, np.where(seen, self.state, state), self.held_state)
        self.held = holding
        neutral = governing.mask("neutral", "off")
        drain, exclude = governing.mask("drain"), governing.mask("exclude")
        pin = governing.mask("pin")
        weight = np.where(governing.mask("cap"), np.minimum(weight, value), weight)
        weight = np.where(pin, value, weight)
        weight = np.where(neutral, NEUTRAL, weight)
        weight = np.where(drain | exclude, 0, weight)
        weight = np.where(holding, self.held_weight, weight)
        state = np.where(pin | neutral, np.uint8(State.HEALTHY), state)
        state = np.where(drain, np.uint8(State.DRAINING), state)
        state = np.where(exclude, np.uint8(State.OPEN), state)
        state = np.where(holding, self.held_state, state).astype(np.uint8)
        return weight, state


def never_all_out(weight: Floats, last: Floats, groups: Groups) -> tuple[Floats, Bools]:
    """Where a group has no weight left, its last weights, else neutral; and which groups those are.

    `weight` and `last` are float64[n], `last` NaN where nothing was published yet.
    """
    all_out = groups.total(weight) <= 0
    if not all_out.any():
        return weight, all_out
    empty = groups.spread(all_out.astype(np.float64), 0.0) > 0
    before = np.where(np.isnan(last), 0.0, last)
    nothing = groups.spread((groups.total(before) <= 0).astype(np.float64), 0.0) > 0
    return np.where(empty, np.where(nothing, NEUTRAL, before), weight), all_out


def shares(weight: Floats, groups: Groups) -> Floats:
    """Each slot's share of its group's requests, float64[n]; equal before the first publication."""
    weight = np.where(np.isnan(weight), NEUTRAL, weight)
    total = groups.spread(groups.total(weight))
    return np.where(total > 0, weight / total, 0.0)
