"""Settings of the decide stage: how scores become weights, when circuits open, how data ages."""

from typing import Annotated, TypeAlias

import msgspec

from pipeline.model import Config

Positive: TypeAlias = Annotated[float, msgspec.Meta(gt=0.0)]
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class WeightsConfig(Config, frozen=True, kw_only=True):
    """From score to weight. Factors are relative to the pool's neutral weight of 1000."""

    smoothing_s: Positive = 0.5
    """Time constant of the average over scores."""
    dead_band: Share = 0.05
    """A weight moves only when it would move by more than this share."""
    max_fall_per_s: Positive = 2.0
    """Steepest fall, in natural logarithms a second: 2 is from 1000 to 135 within one second."""
    max_rise_per_s: Positive = 0.3
    """Steepest rise, likewise; slower, so that what has recovered is not trusted at once."""
    reference_s: Positive = 60.0
    """Time constant of the pool's reference, so that one endpoint's change moves no other's."""
    slow_start_s: Annotated[float, msgspec.Meta(ge=0.0)] = 10.0
    """A new or recovered endpoint grows to its full weight over this long; 0 = at once."""
    slow_start_from: Share = 0.1
    """The share of its weight that it starts with."""
    probe_share: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.02
    """The least share of neutral: the floor of closed circuits and the start of half-open ones."""


class LatencyConfig(Config, frozen=True, kw_only=True):
    """How an endpoint's latency is compared with its peers'."""

    window_s: Annotated[int, msgspec.Meta(ge=1, le=120)] = 10
    """The request window whose quantiles are compared."""
    tolerance: Annotated[float, msgspec.Meta(ge=0.0)] = 0.25
    """Excess over the peers' median that counts as noise."""
    exponent: Annotated[float, msgspec.Meta(ge=0.0, le=4.0)] = 2.0
    """Weight falls with this power of the excess: more than in proportion, since requests that
    wait behind a slow endpoint cost more than the same requests spread over its peers."""
    min_samples: Annotated[int, msgspec.Meta(ge=1)] = 5
    """Requests in the window below which its quantiles say nothing."""
    settle_s: Annotated[float, msgspec.Meta(ge=0.0)] = 3.0
    """An endpoint has traffic for this long before its latency counts: first come cold caches."""
    hold_s: Positive = 30.0
    """Without samples the last excess holds for this long, then fades."""
    fade_s: Positive = 30.0
    """Time constant of that fading, so that an endpoint without traffic gets another chance."""


class CapacityConfig(Config, frozen=True, kw_only=True):
    """How the service rate of an endpoint is learned."""

    learn_s: Positive = 300.0
    """Time constant of the learned rate."""
    young_s: Positive = 60.0
    """Busy seconds after which an endpoint's own rate counts as much as its class's median."""
    half_concurrency: Positive = 8.0
    """Concurrency at half of the top rate, until the pool's own curve is known."""
    busy_concurrency: Positive = 4.0
    """Requests in the batch from which a token rate may lower the learned rate."""
    exponent: Annotated[float, msgspec.Meta(ge=0.0, le=3.0)] = 1.0
    """Weight grows with this power of the capacity."""


class CircuitConfig(Config, frozen=True, kw_only=True):
    """When circuits open, try again and close."""

    refused_limit: Annotated[int, msgspec.Meta(ge=1)] = 2
    """Refused connections within 3 s, with no success beside them, that open at once."""
    down_limit: Annotated[int, msgspec.Meta(ge=1)] = 2
    """Failed scrapes in a row (`up = 0`) that open at once; fewer cut to the probe share."""
    failure_window_s: Annotated[int, msgspec.Meta(ge=1, le=120)] = 10
    """The request window of the failure ratio."""
    failure_ratio: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.3
    """Failed share of the requests that opens."""
    failure_min: Annotated[int, msgspec.Meta(ge=1)] = 6
    """Failures in the window below which the ratio opens nothing."""
    latency_ratio: Annotated[float, msgspec.Meta(gt=1.0)] = 7.0
    """Excess over the peers that opens, if the endpoint's own past does not explain it. At 7 the
    weight has fallen to the probe share already (1000 / 7^2)."""
    latency_hold_s: Positive = 3.0
    """For how long that excess must last."""
    degraded_ratio: Annotated[float, msgspec.Meta(gt=1.0)] = 2.0
    """Excess over the peers that shows as DEGRADED."""
    clear_s: Positive = 5.0
    """DEGRADED ends after this long without cause."""
    cap_share: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 1 / 3
    """The share of a pool that soft evidence may open, counting everyone who is out."""
    backoff_s: Positive = 5.0
    """Time in OPEN before the first try; doubled at each reopening."""
    backoff_max_s: Positive = 300.0
    """The longest time in OPEN before a try."""
    returned_s: Positive = 1.0
    """The same first time when a scrape sees the endpoint up again after a hard opening."""
    close_successes: Annotated[int, msgspec.Meta(ge=1)] = 3
    """Successes without a failure that close a half-open circuit."""
    forgive_s: Positive = 60.0
    """HEALTHY for this long forgets earlier openings (and for as long as the last back-off)."""
    probe_double_s: Positive = 10.0
    """A half-open endpoint without a sample for this long gets twice the weight."""
    probe_early_s: Positive = 2.0
    """The same up to a tenth of neutral, once two scrapes have seen a dead endpoint up again."""


class FreshnessConfig(Config, frozen=True, kw_only=True):
    """How trust falls as data ages, in multiples of each endpoint's own report interval."""

    default_interval_s: Positive = 5.0
    """The interval of an endpoint that has not shown one yet."""
    min_interval_s: Positive = 1.0
    """Shortest interval believed: requests arrive by the millisecond, scrapes do not."""
    trusted: Positive = 3.0
    """Up to this many intervals the data counts in full."""
    drifted: Positive = 6.0
    """From here the weight stands at the pool's prior."""
    capped: Positive = 9.0
    """From here at half of it at most; the endpoint shows as DEGRADED."""
    silent: Positive = 12.0
    """From here silence is (soft) evidence to open."""


class FaultConfig(Config, frozen=True, kw_only=True):
    """Which GPU faults (XID codes) cost weight. A code acts when it changes, not when it stays."""

    device_lost: tuple[int, ...] = (48, 64, 74, 79, 95, 119, 120)
    """The device is lost or has an uncorrectable error."""
    application: tuple[int, ...] = (13, 31, 43, 45)
    """The application's own faults: no reason to send less. Other codes are in between."""
    device_lost_cost: Annotated[float, msgspec.Meta(ge=0.0)] = 3.0
    """Added to the cost of a lost device; 1 is the cost of a healthy endpoint."""
    other_cost: Annotated[float, msgspec.Meta(ge=0.0)] = 1.0
    """Added for a contained or unknown fault."""
    memory_s: Positive = 600.0
    """For how long a fault counts."""


class DecideConfig(Config, frozen=True, kw_only=True):
    """The decide stage."""

    weights: WeightsConfig = WeightsConfig()
    """From score to weight."""
    latency: LatencyConfig = LatencyConfig()
    """Comparison of latencies with the peers'."""
    capacity: CapacityConfig = CapacityConfig()
    """Learned service rates."""
    circuit: CircuitConfig = CircuitConfig()
    """Circuit states."""
    freshness: FreshnessConfig = FreshnessConfig()
    """Ageing of data."""
    faults: FaultConfig = FaultConfig()
    """GPU faults."""
    max_overrides: Annotated[int, msgspec.Meta(ge=1)] = 1000
    """Overrides in force at once; more are refused."""
