"""Three pages of a real vLLM 0.32, ten seconds apart -> canonical values worked out by hand.

The pages themselves are not part of the project.
"""

from pathlib import Path

import numpy as np
import pytest

from pipeline.clock import HandClock
from pipeline.decode.columns import decode_points
from pipeline.fold.endpoints import EndpointFold, FoldConfig
from pipeline.model import Rights, Sender
from pipeline.normalise.identity import Identity, IdentityConfig
from pipeline.normalise.metrics import PointNormaliser
from pipeline.signals import SIGNALS
from tests.exposition import scrape

PAGES = Path(__file__).parents[3] / "shared" / "data" / "captures" / "vllm-0.32"

STATIC = {
    "engine_up": 1.0,
    "queue_depth": 0.0,
    "running": 0.0,
    "kv_util": 0.0,
    "kv_capacity_tokens": 1_048_576.0,  # 128 tokens a block x 8,192 blocks
    "engine_sleep": 0.0,  # sleep_state awake = 1
}

# Page 2 less page 1, on which everything is 0. 37 requests in 10 s.
SECOND = STATIC | {
    "prompt_tokens_per_s": 125.5,  # 1,255 / 10
    "output_tokens_per_s": 122.8,  # 1,228 / 10
    "requests_per_s": 3.7,  # 37 / 10, all of them "length"
    "errors_per_s": 0.0,
    "preemptions_per_s": 0.0,
    "prefix_hit_ratio": 0.0,  # 0 of 1,255 prompt tokens from the cache
    "ttft_p50_s": 0.0188095,  # 18.5 of 37: 0.01 + 0.01 * 18.5 / 21
    "ttft_p99_s": 0.0395375,  # 36.63 of 37: 0.02 + 0.02 * (36.63 - 21) / 16
    "ttft_mean_s": 0.0197207,  # 0.729668 / 37
    "itl_p50_s": 0.00549861,  # 595.5 of 1,191: 0.01 * 595.5 / 1,083
    "itl_mean_s": 0.00683226,  # 8.137218 / 1,191
    "e2e_p50_s": 0.264286,  # 18.5: 0.3 * 18.5 / 21
    "e2e_p99_s": 0.77225,  # 36.63: 0.5 + 0.3 * (36.63 - 33) / 4
    "e2e_mean_s": 0.239306,  # 8.854310 / 37
    "queue_wait_mean_s": 1.63540e-5,  # 0.000605098 / 37
    "prefill_mean_s": 0.0115251,  # 0.426428 / 37
    "decode_mean_s": 0.219925,  # 8.137218 / 37
    "prefill_token_s": 0.000339784,  # 0.426428 / 1,255 computed tokens
    "request_tokens_in": 33.9189,  # 1,255 / 37
    "request_tokens_out": 33.1892,  # 1,228 / 37
}

# Page 3 adds 38 requests in the next 10 s. With intervals of 10 s the time constant is 20 s, so the
# first increase has the weight w = exp(-10 / 20) = 0.606531 beside the second.
THIRD = STATIC | {
    "prompt_tokens_per_s": 122.512,  # (125.5 w + 120.7) / (w + 1)
    "output_tokens_per_s": 114.086,  # (122.8 w + 108.8) / (w + 1)
    "requests_per_s": 3.76225,  # (3.7 w + 3.8) / (w + 1)
    "errors_per_s": 0.0,
    "preemptions_per_s": 0.0,
    "prefix_hit_ratio": 0.0,
    # Buckets 0.01, 0.02, 0.04: (0, 21, 16) w + (8, 24, 6); page 3 has (8, 45, 22).
    # Faded sum (8, 36.73715, 15.70449), in all 60.44164.
    "ttft_p50_s": 0.0160486,  # 30.22082: 0.01 + 0.01 * (30.22082 - 8) / 36.73715
    "ttft_p99_s": 0.0392303,  # 59.83723: 0.02 + 0.02 * (59.83723 - 44.73715) / 15.70449
    "ttft_mean_s": 0.0168054,  # (0.729668 w + 0.573183) / (37 w + 38)
    # Buckets 0.01, 0.025, 0.05: (1083, 108, 0) w + (1031, 17, 2) = (1687.873, 82.5053, 2).
    "itl_p50_s": 0.00525033,  # 886.189 of 1,772.378: 0.01 * 886.189 / 1,687.873
    "itl_mean_s": 0.00539100,  # (8.137218 w + 4.619419) / (1,191 w + 1,050)
    # Buckets 0.3, 0.5, 0.8: (21, 12, 4) w + (33, 5, 0) = (45.73715, 12.27837, 2.42612).
    "e2e_p50_s": 0.198225,  # 30.22082: 0.3 * 30.22082 / 45.73715
    "e2e_p99_s": 0.725261,  # 59.83723: 0.5 + 0.3 * (59.83723 - 58.01552) / 2.42612
    "e2e_mean_s": 0.174575,  # (8.854310 w + 5.181188) / (37 w + 38)
    "queue_wait_mean_s": 1.50510e-5,  # (0.000605098 w + 0.000542694) / (37 w + 38)
    "prefill_mean_s": 0.0102352,  # (0.426428 w + 0.359989) / (37 w + 38)
    "decode_mean_s": 0.158085,  # (8.137218 w + 4.619419) / (37 w + 38)
    "prefill_token_s": 0.000314314,  # (0.426428 w + 0.359989) / (1,255 w + 1,207)
    "request_tokens_in": 32.5636,  # (1,255 w + 1,207) / (37 w + 38)
    "request_tokens_out": 30.3238,  # (1,228 w + 1,088) / (37 w + 38)
}


@pytest.mark.skipif(not PAGES.is_dir(), reason="needs shared/data/captures/vllm-0.32")
def test_three_pages_of_a_real_engine_become_the_values_worked_out_by_hand() -> None:
    clock, normaliser, fold = HandClock(), PointNormaliser(), EndpointFold(FoldConfig())
    identity = Identity(IdentityConfig(), ())
    for number, expected in ((1, STATIC), (2, SECOND), (3, THIRD)):
        now = clock.advance(10.0)
        page = (PAGES / f"metrics-{number}.txt").read_text()
        body = scrape(page, job="vllm", instance="10.1.2.3:8000", time_ns=now.wall_ns)
        canonical = normaliser.normalise_points(
            decode_points(body), identity, Sender("10.0.0.9", Rights.METRICS), now
        )
        assert set(canonical.dropped) == {"foreign_metric", "unused_metric"}
        assert canonical.samples is not None
        fold.resize(identity.directory().n)
        assert fold.fold(canonical.samples, now) == {}
        (slot,) = identity.directory().slots()
        value = fold.signals(now, identity.directory()).value[:, slot]
        seen = {n: v for n, v in zip(SIGNALS, value.tolist(), strict=True) if not np.isnan(v)}
        assert seen == pytest.approx(expected, rel=1e-5)
