"""Peaks over threshold: five residuals of a series, each in the tail that it has here.

Enters: samples. Leaves: how far the rarest residuals lie out. Residuals: first difference, the same
less what the season does, value less season, value less level, short mean less long mean. Each
tracks its own 95 % quantile and the mean of what lies beyond it, as an exponential tail and as a
Pareto tail (Hill 1975; peaks over threshold: Pickands 1975; Siffer et al., KDD 2017), so no scale
is assumed: what is rare in one series is usual in another. A season is the median of the same
half hour on the last seven days (UTC); before there is one, its residuals are not known.
"""

import math
from typing import Final, NamedTuple

import numpy as np

from pipeline.detect.baseline import TINY, keep_time, steps_since
from pipeline.detect.calibrate import BODY_SCORE
from pipeline.detect.protocol import Samples, Scores
from pipeline.detect.rows import Part, RowDetector, Slots
from pipeline.model import Bools, Floats, Int64s

LN_10: Final = math.log(10.0)
TAIL: Final = 0.05
"""The share of residuals that lie in the tail: far enough out to have its shape, often enough to
learn it within hundreds of samples."""
AT_THRESHOLD: Final = -math.log10(TAIL)
MOST_KEPT: Final = 1e37
"""Of values in float32."""
MOST_SCORE: Final = 1e9
"""Keeps scores finite; far beyond any threshold."""
EXCESS_LIMIT: Final = 10.0
"""Mean excesses that one peak teaches at most, after the first ten peaks."""
FIRST_PEAKS: Final = 10.0
LEAST_SHAPE: Final = 0.05
"""Of a Pareto tail: what never exceeded its threshold by more than a hair is not certain yet."""
STEP: Final = 0.1
"""Of the mean residual, how far the threshold moves at most for a sample in the body."""
SLOT_S: Final = 1800.0
SLOTS: Final = 48
DAYS: Final = 7
SHORT: Final = 24
"""Samples of the short mean."""
SECOND: Final = 0.5
"""Of the second rarest residual, in the score: two that agree are worth more than one."""

DIFFERENCE, SEASON_DIFFERENCE, SEASON, LEVEL, DRIFT = range(5)
STREAMS: Final = 5
UNUSUAL_WEIGHTS: Final = np.array([1.0, 0.0, 1.0, 2.0, 0.0])
"""Of the streams, where signals of one endpoint are compared."""
HEAD: Final = {
    "last_s": np.nan,
    "interval_s": np.nan,
    "count": 0.0,
    "floor": TINY,
    "value": 0.0,
    "season": np.nan,
    "level": 0.0,
    "long": 0.0,
    "short_sum": 0.0,
    "slot": np.nan,
    "visit_sum": 0.0,
    "visit_n": 0.0,
}
TAIL_FACTS: Final = ("threshold", "excess", "shape", "seen", "beyond", "mean")


class Measured(NamedTuple):
    """What k samples are like, beside their scores."""

    scores: Scores
    unusual: Floats
    """float64[k]: Pareto scores of difference, season and twice the level, added up; signals of one
    endpoint are compared by it."""
    drifted: Floats
    """float64[k]: exponential score of the short mean against the long one."""


class _Beyond(NamedTuple):
    """Residuals in their tails: stream and place int64[j], and their Pareto scores float64[j]."""

    stream: Int64s
    place: Int64s
    pareto: Floats


class PeaksOverThreshold(RowDetector):
    """float64 state of 42 facts a series; 1,488 bytes of season and short mean."""

    name = "peaks_over_threshold"

    def __init__(
        self,
        *,
        memory: float = 500.0,
        level_memory: float = 50.0,
        long_memory: float = 288.0,
        warm_up: float = 50.0,
        relative_floor: float = 1e-3,
    ) -> None:
        """Thresholds follow over `memory` samples; scores begin after `warm_up` of them.

        No threshold or excess is taken to be below the floor or `relative_floor` of the level.
        """
        self._least_weight = 1.0 / memory
        self._excess_weight = 0.2 / (memory * TAIL)
        self._level_weight, self._long_weight = 1.0 / level_memory, 1.0 / long_memory
        self._warm_up = warm_up
        self._relative_floor = relative_floor
        tails = {f"{fact}_{stream}": 0.0 for fact in TAIL_FACTS for stream in range(STREAMS)}
        slots = {
            "short": Slots(SHORT, np.float32),
            "day_mean": Slots(SLOTS * DAYS, np.float32),
            "day_visits": Slots(SLOTS, np.uint8),
        }
        super().__init__({**HEAD, **tails}, slots)

    def measure(self, samples: Samples, learn: Bools) -> Measured:
        """As `score`, with what `joint` needs to judge an endpoint by all its signals."""
        lines, is_view = self._table.read(samples.row, learn)
        with np.errstate(all="ignore"):
            scores, beyond, score = self._measure(lines, Part(*samples, learn))
            measured = _measured(scores, beyond, score)
        if not is_view:
            self._table.write(samples.row, learn, lines)
        return measured

    def _score(self, lines: Floats, samples: Part) -> Scores:
        return self._measure(lines, samples)[0]

    def _measure(self, lines: Floats, samples: Part) -> tuple[Scores, "_Beyond", Floats]:
        """The scores, the residuals in their tails, and the score of each residual."""
        season = self._seasons(lines, samples)
        oldest = self._oldest(samples.row, lines[2])
        residual = self._residuals(lines, samples, season, oldest)
        tail = lines[len(HEAD) :].reshape(len(TAIL_FACTS), STREAMS, -1)
        level = np.where(lines[2] > 0.0, lines[6], samples.value)
        floor = np.maximum(lines[3], self._relative_floor * np.abs(level))
        size = np.abs(residual)
        score, beyond = self._tail_scores(tail, size, floor)
        scores = _scores(samples.value, residual, score, tail, floor)
        self._learn_tails(tail, size, floor)
        self._learn_short(lines, samples, oldest)
        self._learn_levels(lines, samples, season)
        return scores, beyond, score

    def _seasons(self, lines: Floats, samples: Part) -> Floats:
        """float64[k] what is usual now, NaN = not known; slots that are over keep their mean."""
        season: Floats = lines[5].copy()
        slot, visit_sum, visit_n = lines[9], lines[10], lines[11]
        here = np.floor(samples.time_s * (1.0 / SLOT_S))
        moved = np.flatnonzero(slot != here)
        if len(moved):
            ended = moved[samples.learn[moved] & (visit_n[moved] > 0.0)]
            mean = visit_sum[ended] / visit_n[ended]
            self._keep_visit(samples.row[ended], slot[ended].astype(np.int64) % SLOTS, mean)
            visit_sum[moved], visit_n[moved], slot[moved] = 0.0, 0.0, here[moved]
            season[moved] = self._usual(samples.row[moved], here[moved].astype(np.int64) % SLOTS)
        return season

    def _keep_visit(self, row: Int64s, slot: Int64s, mean: Floats) -> None:
        n = self._table.n
        visits = self._table.slots["day_visits"].reshape(-1)
        seen = visits.take(slot * n + row)
        means = self._table.slots["day_mean"].reshape(-1)
        means[(slot * DAYS + seen % DAYS) * n + row] = mean
        visits[slot * n + row] = np.where(seen < 2 * DAYS - 1, seen + 1, DAYS)  # goes round

    def _usual(self, row: Int64s, slot: Int64s) -> Floats:
        """float64[j]: the median of the last visits; NaN before the first."""
        n = self._table.n
        seen = self._table.slots["day_visits"].reshape(-1).take(slot * n + row).astype(np.int64)
        day = np.arange(DAYS)[:, None]
        means = self._table.slots["day_mean"].reshape(-1).take((slot * DAYS + day) * n + row)
        ordered = np.sort(np.where(day < seen, means, np.inf).astype(np.float64), axis=0)
        count = np.minimum(seen, DAYS)
        column = np.arange(len(row))
        low = ordered[np.maximum(count - 1, 0) // 2, column]
        high = ordered[np.minimum(count // 2, DAYS - 1), column]
        usual: Floats = np.where(seen == 0, np.nan, 0.5 * (low + high))
        return usual

    def _residuals(self, lines: Floats, samples: Part, season: Floats, oldest: Floats) -> Floats:
        """float64[streams, k]; NaN where one is not known."""
        last_s, interval_s, count, _, value, before, level, long = lines[:8]
        now = samples.value
        _, is_gap = steps_since(last_s, interval_s, samples.time_s)
        is_new = count == 0.0
        residual = np.empty((STREAMS, len(now)))
        np.subtract(now, value, out=residual[DIFFERENCE])
        residual[DIFFERENCE][is_gap | is_new] = np.nan
        np.subtract(residual[DIFFERENCE], season - before, out=residual[SEASON_DIFFERENCE])
        np.subtract(now, season, out=residual[SEASON])
        np.subtract(now, level, out=residual[LEVEL])
        short = lines[8] + _kept(now) - oldest
        short /= np.minimum(count + 1.0, SHORT)
        np.subtract(short, long, out=residual[DRIFT])
        residual[LEVEL:, is_new] = np.nan
        return residual

    def _oldest(self, row: Int64s, count: Floats) -> Floats:
        """float64[k]: the value that leaves the short mean; 0 while it fills."""
        place = count.astype(np.int64) % SHORT * self._table.n + row
        oldest = self._table.slots["short"].reshape(-1).take(place).astype(np.float64)
        return np.where(count >= SHORT, oldest, 0.0)

    def _tail_scores(self, tail: Floats, size: Floats, floor: Floats) -> tuple[Floats, "_Beyond"]:
        """float64[streams, k] >= 0, -log10 of the tail, NaN = not known; and what lies in tails."""
        threshold, excess, shape, seen = tail[:4]
        edge = np.maximum(threshold, floor)
        score = size / edge
        score *= BODY_SCORE
        score[seen < self._warm_up] = np.nan
        stream, place = _places(score > BODY_SCORE)
        far, least = size[stream, place], edge[stream, place]
        log_mean = np.maximum(shape[stream, place], LEAST_SHAPE)
        pareto = AT_THRESHOLD + np.log(far / least) / log_mean / LN_10
        mean = np.maximum(excess[stream, place], floor[place])
        exponential = np.minimum((far - least) / mean / LN_10, MOST_SCORE) + AT_THRESHOLD
        score[stream, place] = np.where(stream <= SEASON_DIFFERENCE, pareto, exponential)
        return score, _Beyond(stream, place, pareto)

    def _learn_tails(self, tail: Floats, size: Floats, floor: Floats) -> None:
        threshold, _, _, seen, _, mean = tail
        weight = 1.0 / (seen + 1.0)
        np.maximum(weight, self._least_weight, out=weight)
        is_unknown = np.isnan(size)
        weight[is_unknown] = 0.0
        change = size - mean
        change[is_unknown] = 0.0
        change *= weight
        mean += change
        step = mean * weight
        step *= -STEP
        stream, place = _places(size > threshold)
        self._learn_peaks(tail, size, floor, stream, place)
        step[stream, place] *= (TAIL - 1.0) / TAIL
        threshold += step
        seen += ~is_unknown

    def _learn_peaks(
        self, tail: Floats, size: Floats, floor: Floats, stream: Int64s, place: Int64s
    ) -> None:
        threshold, excess, shape, _, beyond, _ = tail
        far = size[stream, place]
        count = beyond[stream, place] + 1.0
        weight = np.maximum(1.0 / count, self._excess_weight)
        limited = count > FIRST_PEAKS
        least = threshold[stream, place]
        edge = np.maximum(least, floor[place])
        log_excess = np.log(np.maximum(far / edge, 1.0))
        is_past = far > edge
        for mean, found, counts in ((excess, far - least, True), (shape, log_excess, is_past)):
            before = mean[stream, place]
            most = np.where(limited & (before > 0.0), EXCESS_LIMIT * before, np.inf)
            learned = before + weight * (np.minimum(found, most) - before)
            mean[stream, place] = np.where(counts, learned, before)
        beyond[stream, place] = count

    def _learn_levels(self, lines: Floats, samples: Part, season: Floats) -> None:
        last_s, interval_s, count, _, value, before, level, long = lines[:8]
        now = samples.value
        young = 1.0 / (count + 1.0)
        level += np.maximum(young, self._level_weight) * (now - level)
        long += np.maximum(young, self._long_weight) * (now - long)
        lines[10] += _kept(now)
        lines[11] += 1.0
        value[:], before[:] = now, season
        keep_time(last_s, interval_s, samples.time_s)
        count += 1.0

    def _learn_short(self, lines: Floats, samples: Part, oldest: Floats) -> None:
        """Keep the value; once in a while add all up anew: a sum forgets what a huge value hid."""
        short_sum, learn = lines[8], samples.learn
        kept = _kept(samples.value).astype(np.float32)
        short_sum += kept
        short_sum -= oldest
        short = self._table.slots["short"]
        place = lines[2].astype(np.int64) % SHORT
        short[place[learn], samples.row[learn]] = kept[learn]
        is_round = np.flatnonzero(learn & (place == SHORT - 1))
        if len(is_round):
            held = short.take(samples.row[is_round], axis=1).astype(np.float64)
            short_sum[is_round] = np.add.reduce(held, axis=0)


def _kept(value: Floats) -> Floats:
    """What fits into float32."""
    return np.clip(value, -MOST_KEPT, MOST_KEPT)


def _places(where: Bools) -> tuple[Int64s, Int64s]:
    """Streams and places in which `where` [streams, k] holds; `nonzero` is slower for two axes."""
    stream, place = np.divmod(np.flatnonzero(where), where.shape[1])
    return stream, place


def _scores(value: Floats, residual: Floats, score: Floats, tail: Floats, floor: Floats) -> Scores:
    """Of all residuals the rarest two decide; a plain jump only as far as no season makes it.

    Jumps have the fattest tails: an exponential one would call too many of them rare.
    """
    each = score[SEASON_DIFFERENCE:].copy()
    each[np.isnan(each)] = -1.0
    best, at = np.argmax(each, axis=0), np.arange(len(value))
    size = each[best, at]
    each[best, at] = -1.0
    second = np.maximum.reduce(each, axis=0)
    second[second < AT_THRESHOLD] = 0.0
    best += SEASON_DIFFERENCE
    by = residual[best, at]
    total = np.copysign(size + SECOND * second, by)
    total[size < 0.0] = np.nan
    band = np.maximum(tail[0][best, at], floor)
    band += 2.0 * np.maximum(tail[1][best, at], floor)
    return Scores(total, value - by, band)


def _measured(scores: Scores, beyond: _Beyond, score: Floats) -> Measured:
    n = len(scores.score)
    weight = beyond.pareto * UNUSUAL_WEIGHTS[beyond.stream]
    unusual: Floats = np.bincount(beyond.place, weights=weight, minlength=n).astype(np.float64)
    drifted = np.where(score[DRIFT] >= AT_THRESHOLD, score[DRIFT], 0.0)
    return Measured(scores, unusual, drifted)
