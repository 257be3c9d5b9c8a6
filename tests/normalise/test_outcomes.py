import math
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.model import Outcome
from pipeline.normalise.outcomes import Ends, Verdict, classify


class End(NamedTuple):
    status: float
    grpc: float
    retry_after: float
    error: Verdict
    flags: Verdict
    finish: Verdict
    is_error: bool


def expected(end: End) -> tuple[Outcome, bool]:
    """The rules, one request at a time."""
    status, grpc = end.status, end.grpc
    refused = end.flags == Verdict.REFUSED or (
        end.error == Verdict.REFUSED and not 0 < status < 500
    )
    if refused:
        return Outcome.FAILURE, True
    return _by_status(end) or _by_words(end, grpc), False


def _by_status(end: End) -> Outcome | None:
    """What the status and the proxy's flags say; None = nothing decisive."""
    status = end.status
    if status == 429 or (status == 503 and not math.isnan(end.retry_after)):
        return Outcome.OVERLOAD
    if end.flags == Verdict.OVERLOAD:
        return Outcome.OVERLOAD
    if end.flags == Verdict.FAILURE:
        return Outcome.FAILURE
    if status == 499 or end.flags == Verdict.NEITHER:
        return Outcome.NEITHER
    if status >= 500:
        return Outcome.FAILURE
    return Outcome.NEITHER if status >= 400 or status == 0 else None


def _by_words(end: End, grpc: float) -> Outcome:
    said = {Verdict.OVERLOAD: Outcome.OVERLOAD, Verdict.NEITHER: Outcome.NEITHER}
    if end.error != Verdict.NOTHING:
        return said.get(end.error, Outcome.FAILURE)
    if grpc > 0:
        coded: dict[float, Outcome] = dict.fromkeys((2, 4, 13, 14, 15), Outcome.FAILURE)
        coded[8] = Outcome.OVERLOAD
        return coded.get(grpc, Outcome.NEITHER)
    if end.finish == Verdict.NEITHER:
        return Outcome.NEITHER
    return Outcome.FAILURE if end.is_error or end.finish == Verdict.FAILURE else Outcome.OK


NAN = math.nan
STATUS = st.sampled_from(
    [NAN, -1.0, -0.0, 0.0, 5e-324, 0.5, 200, 399.5, 400, 428.9, 429, 429.5, 498, 499, 499.5, 500,
     502, 503, 503.5, 504, 1e9, math.inf, -math.inf]
)  # fmt: skip
GRPC = st.sampled_from([NAN, -3, 0, 0.5, 1, 2, 2.5, 4, 8, 8.5, 13, 14, 15, 16, 17, 99, math.inf])
VERDICT = st.sampled_from(Verdict)
FINISH = st.sampled_from([Verdict.NOTHING, Verdict.FAILURE, Verdict.NEITHER])
END = st.builds(
    End, STATUS, GRPC, st.sampled_from([NAN, 1.0]), VERDICT, VERDICT, FINISH, st.booleans()
)


def columns(ends: list[End]) -> dict[str, Any]:
    return {
        "status": np.array([end.status for end in ends], np.float64),
        "grpc_status": np.array([end.grpc for end in ends], np.float64),
        "retry_after": np.array([end.retry_after for end in ends], np.float64),
        "error": np.array([end.error for end in ends], np.uint8),
        "flags": np.array([end.flags for end in ends], np.uint8),
        "finish": np.array([end.finish for end in ends], np.uint8),
        "is_error": np.array([end.is_error for end in ends], np.bool_),
    }


def assert_outcomes(ends: list[End], **given_columns: Any) -> None:
    outcome, refused = classify(Ends(**given_columns))
    pairs = zip(outcome.tolist(), refused.tolist(), strict=True)
    assert [(Outcome(o), r) for o, r in pairs] == [expected(end) for end in ends]


@settings(max_examples=300)
@given(st.lists(END, max_size=30))
def test_every_row_is_judged_as_the_rules_judge_it_alone(ends: list[End]) -> None:
    assert_outcomes(ends, **columns(ends))


ABSENT = End(NAN, NAN, NAN, Verdict.NOTHING, Verdict.NOTHING, Verdict.NOTHING, False)


@given(st.lists(END, max_size=10), st.sets(st.sampled_from(sorted(columns([])))))
def test_an_absent_column_says_what_a_column_of_nothing_says(
    ends: list[End], absent: set[str]
) -> None:
    absent -= {"is_error"}
    blank = {"grpc" if name == "grpc_status" else name for name in absent}
    silent = [end._replace(**{name: getattr(ABSENT, name) for name in blank}) for end in ends]
    given_columns = {name: c for name, c in columns(ends).items() if name not in absent}
    assert_outcomes(silent, **given_columns)
