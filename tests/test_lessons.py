"""What other OTLP pipelines got wrong in public, and the tests that hold it off here.

Each row has the tests that prove the right behaviour, or one sentence why it cannot happen here.
"""

import ast
import re
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[1]
CONTRIB: Final = "open-telemetry/opentelemetry-collector-contrib"
CORE: Final = "open-telemetry/opentelemetry-collector"


class Lesson(NamedTuple):
    """A public failure: what it looked like, what is right instead, how that is known here."""

    symptom: str
    right: str
    issues: tuple[str, ...]
    """"owner/repository#number", or ":path" of a published measurement."""
    tests: tuple[str, ...] = ()
    """"file::function", relative to the repository."""
    why_not: str = ""
    """Why it cannot happen here."""


LESSONS: Final[dict[int, Lesson]] = {
    # state that grows
    1: Lesson(
        "what is kept of each resource grows as pods come and go",
        "bounded state that expires in every mode, a start time for each series",
        (f"{CONTRIB}#27654",),
        (
            "tests/normalise/test_plans.py::test_churn_does_not_make_what_is_kept_grow",
            "tests/fold/test_endpoints.py::test_churn_of_endpoints_does_not_grow_the_fold",
            "tests/fold/test_endpoints.py::"
            "test_a_new_start_before_the_point_counts_the_whole_value_although_it_did_not_fall",
        ),
    ),
    2: Lesson(
        "exemplars pile up from window to window until memory is gone",
        "what belongs to a window ends with it",
        (f"{CONTRIB}#31683",),
        (
            "tests/decode/test_large_items.py::test_exemplars_leave_nothing_in_what_is_decoded",
            "tests/fold/test_requests.py::"
            "test_the_open_bucket_counts_and_a_bucket_leaves_when_it_is_too_old",
        ),
    ),
    3: Lesson(
        "20,000 spans a second take all memory",
        "a budget in bytes for what is under way, strings kept once and within a bound",
        (f"{CONTRIB}#21290",),
        (
            "tests/receive/test_admission.py::"
            "test_any_interleaving_keeps_the_budget_and_ends_at_zero",
            "tests/decode/test_hygiene.py::"
            "test_values_that_never_repeat_leave_the_caches_bounded_and_results_exact",
            "tests/fold/test_requests.py::"
            "test_a_thousand_endpoints_with_two_observers_fit_into_150_megabytes",
        ),
    ),
    4: Lesson(
        "spans that wait for the other half of their edge take all memory",
        "a hard bound on what waits, and a count of what it drops",
        (f"{CONTRIB}#30634",),
        why_not="No span waits for another one: a call inside a call is found within its own"
        " request, and what joins no known endpoint is counted and gone.",
    ),
    5: Lesson(
        "memory grows over weeks, on some instances only",
        "everything expires without being told to",
        ("grafana/alloy#3407", "grafana/alloy#4047"),
        (
            "tests/fold/test_endpoints.py::test_idle_series_are_forgotten_and_make_room",
            "tests/normalise/test_plans.py::"
            "test_series_that_fell_silent_are_forgotten_and_others_are_not",
            "tests/normalise/test_identity.py::"
            "test_a_silent_endpoint_that_is_no_member_is_forgotten_and_its_slot_given_again",
            "tests/test_symbols.py::test_unused_strings_expire_and_their_ids_are_given_again",
        ),
    ),
    6: Lesson(
        "one trace of 20,000 spans drives memory",
        "nothing that a trace can make grow",
        (f"{CONTRIB}#29762", f"{CORE}#9061"),
        (
            "tests/test_cardinality.py::"
            "test_a_trace_of_twenty_thousand_spans_is_twenty_thousand_requests_and_nothing_more",
            "tests/test_cardinality.py::test_traces_that_never_end_or_repeat_leave_nothing_behind",
        ),
    ),
    # cardinality
    7: Lesson(
        "random ids in span names make endless series",
        "bounds with an explicit overflow that is counted, and totals that stay exact",
        (f"{CONTRIB}#38990",),
        (
            "tests/test_cardinality.py::"
            "test_a_trace_of_twenty_thousand_spans_is_twenty_thousand_requests_and_nothing_more",
            "tests/normalise/test_attributes.py::"
            "test_a_hundred_thousand_unknown_hosts_are_counted_and_leave_nothing_behind",
            "tests/normalise/test_identity.py::"
            "test_pools_beyond_the_bound_are_counted_and_their_endpoints_have_none",
        ),
    ),
    8: Lesson(
        "raw ids in span names and paths have to be templated by hand",
        "templates found automatically and shown",
        (
            f"{CONTRIB}#43124",
            "SigNoz/signoz#4654",
            "SigNoz/signoz-otel-collector#653",
            "grafana/tempo#6098",
        ),
        why_not="No series and no window is kept for a span name or a path, so that there is"
        " nothing to template: requests are counted for the endpoint that they went to.",
    ),
    9: Lesson(
        "at the limit live series are thrown out in rotation and nothing works any more",
        "new series are refused and counted, those that exist go on",
        (f"{CONTRIB}#33014",),
        (
            "tests/fold/test_endpoints.py::"
            "test_a_full_table_refuses_new_series_and_goes_on_with_the_old",
            "tests/test_series.py::"
            "test_a_full_index_refuses_new_keys_and_counts_each_of_them_but_keeps_the_old",
            "tests/test_symbols.py::"
            "test_a_full_table_refuses_new_strings_counts_them_and_keeps_the_old",
            "tests/fold/test_requests.py::"
            "test_sources_beyond_the_bound_are_taken_at_their_word_and_counted",
        ),
    ),
    # counters
    10: Lesson(
        "a series that is born at N hides its first increments",
        "counted from its start, where the start is known",
        (f"{CONTRIB}#38537", "grafana/tempo#2006", "grafana/alloy#2888"),
        (
            "tests/fold/test_endpoints.py::"
            "test_a_series_that_starts_while_its_source_is_watched_counts_from_its_start",
            "tests/fold/test_endpoints.py::"
            "test_a_series_older_than_our_first_sight_of_its_source_adds_nothing_at_first",
            "tests/fold/test_endpoints.py::"
            "test_deltas_are_added_and_the_first_counts_from_its_start",
        ),
    ),
    11: Lesson(
        "a restart or a backlog that is sent late looks like a spike",
        "counted by event time; data that catches up moves no decision",
        (f"{CONTRIB}#36613",),
        (
            "tests/fold/test_endpoints.py::"
            "test_a_source_that_replays_its_queue_is_catching_up_until_it_has_caught_up",
            "tests/decide/test_weights.py::test_data_that_catches_up_moves_no_decision",
            "tests/fold/test_requests.py::"
            "test_late_rows_inside_the_ring_are_added_and_older_ones_counted",
        ),
    ),
    12: Lesson(
        "a process id or container id in the key forks counters or lowers them",
        "keys that outlive a process",
        (f"{CONTRIB}#29711", f"{CONTRIB}#38864", f"{CONTRIB}#21101"),
        (
            "tests/test_cardinality.py::"
            "test_processes_that_come_and_go_under_one_name_are_one_source",
            "tests/normalise/test_identity.py::"
            "test_a_pod_that_restarts_under_its_name_stays_the_same_endpoint",
            "tests/normalise/test_identity.py::"
            "test_a_random_instance_id_is_an_alias_and_never_an_identity",
        ),
    ),
    13: Lesson(
        "own counters grow beyond what was received and nobody notices",
        "own counters that have to add up, and are added up",
        (f"{CONTRIB}#33136",),
        (
            "tests/e2e/test_conservation.py::test_overload_refuses_and_loses_nothing",
            "tests/e2e/test_real_senders.py::"
            "test_what_the_service_says_of_that_minute_is_what_its_senders_say",
        ),
    ),
    14: Lesson(
        "replicas write into one series, up to fifteen times too much",
        "one writer a series; a second one is noticed and left out",
        (f"{CONTRIB}#23663", f"{CONTRIB}#38663", "PostHog/posthog#68077"),
        (
            "tests/fold/test_endpoints.py::"
            "test_a_delta_that_begins_before_the_last_one_ended_is_of_a_second_writer_and_dropped",
            "tests/fold/test_requests.py::"
            "test_a_request_seen_by_client_and_proxy_is_kept_for_each_and_counted_once",
            "tests/normalise/test_identity.py::"
            "test_counters_seen_to_interleave_refuse_the_identity",
        ),
    ),
    15: Lesson(
        "sampled spans are counted as if they were all",
        "each counts for as many as it stands for",
        (f"{CONTRIB}#45539",),
        (
            "tests/normalise/test_attributes.py::test_sampling_thresholds_give_weights",
            "tests/fold/test_requests.py::test_a_sampled_row_stands_for_several_requests",
        ),
    ),
    16: Lesson(
        "an end before the start becomes a duration of 584 years",
        "no duration, and a count",
        ("openobserve/openobserve#14367",),
        (
            "tests/e2e/test_bad_input.py::test_a_bad_span_costs_only_itself",
            "tests/normalise/test_attributes.py::test_bad_times_and_values_cost_only_themselves",
        ),
    ),
    17: Lesson(
        "an own metric of failures counts what went well too",
        "own metrics by outcome, every item under exactly one",
        ("grafana/tempo#5319",),
        (
            "tests/e2e/test_real_senders.py::"
            "test_what_the_service_says_of_that_minute_is_what_its_senders_say",
            "tests/e2e/test_conservation.py::"
            "test_late_and_unknown_spans_are_acknowledged_and_counted_as_left_out",
            "tests/normalise/test_metrics.py::test_every_point_is_a_sample_or_counted",
        ),
    ),
    # backpressure and memory
    18: Lesson(
        "memory pressure is answered with 500, and the sender drops its batch",
        "UNAVAILABLE and 503 with the time to wait",
        (f"{CORE}#9636",),
        (
            "tests/receive/test_otlp_grpc.py::"
            "test_every_other_failure_is_unavailable_with_both_retry_trailers",
            "tests/receive/test_otlp_http.py::test_what_a_retry_can_cure_says_when",
        ),
    ),
    19: Lesson(
        "memory is limited after it was taken, by figures of the last collection",
        "admission by the bytes of the request, inflated, before anything is decoded",
        (f"{CORE}#1084", f"{CORE}#8217", f"{CORE}#8632"),
        (
            "tests/receive/test_admission.py::"
            "test_beyond_the_waiting_bytes_a_request_is_refused_at_once",
            "tests/receive/test_charge.py::test_any_bytes_are_charged_within_bounds_or_refused",
            "tests/receive/test_encodings.py::"
            "test_a_bomb_is_refused_or_capped_at_its_own_lie_and_never_inflated_here",
        ),
    ),
    20: Lesson(
        "queues bounded in items, and retries without end, take all memory",
        "every queue bounded in bytes",
        (f"{CORE}#1121",),
        (
            "tests/test_ingest.py::test_what_is_decoded_ahead_of_the_fold_is_bounded_by_its_size",
            "tests/test_ingest.py::"
            "test_on_enqueue_answers_at_once_within_its_bound_and_after_the_fold_beyond",
            "tests/publish/test_watch.py::"
            "test_a_slow_watcher_is_sent_the_newest_state_not_the_ticks_it_missed",
        ),
    ),
    21: Lesson(
        "nobody can choose between refusing and dropping",
        "a policy that can be set",
        (f"{CORE}#11726", f"{CORE}#7699", "odigos-io/odigos#3514"),
        why_not="Nothing that was admitted is dropped for load and everything else is refused, for"
        " the sender to repeat; whom that meets first is set by the limits of each client.",
    ),
    22: Lesson(
        "at overload a receiver takes 5 to 13 GB",
        "an overload test with a ceiling",
        ("open-telemetry/otel-arrow:docs/comparison_data/suite",),
        ("tests/bench/test_runs.py::test_overload_loses_nothing_and_every_refusal_may_be_retried",),
    ),
    # delivery
    23: Lesson(
        "a batch over 4 MiB is lost as a whole and nobody is told",
        "64 MiB; what is larger is counted, and its sender named in the log",
        (f"{CORE}#6046", f"{CORE}#12219", f"{CORE}#14298"),
        (
            "tests/receive/test_encodings.py::"
            "test_4_mib_and_more_is_accepted_and_more_than_64_mib_refused_for_good",
            "tests/receive/test_encodings.py::"
            "test_what_grpc_cannot_read_is_counted_and_its_sender_named_with_advice",
            "tests/e2e/test_bad_input.py::"
            "test_a_65_mib_message_is_refused_and_the_next_one_arrives",
        ),
    ),
    24: Lesson(
        "one oversize record takes 4,553 others with it",
        "the one item is set aside, and the sender told how many",
        (f"{CORE}#14264",),
        (
            "tests/decode/test_large_items.py::"
            "test_one_span_with_a_large_attribute_costs_no_other_span_anything",
            "tests/e2e/test_bad_input.py::test_points_without_time_are_told_to_the_sender_exactly",
        ),
    ),
    25: Lesson(
        "one string that is not UTF-8 loses the batch",
        "replaced and counted",
        (
            f"{CONTRIB}#35723",
            "open-telemetry/opentelemetry-ebpf-instrumentation#3003",
            "open-telemetry/opentelemetry-specification#3421",
        ),
        (
            "tests/decode/test_hygiene.py::"
            "test_invalid_utf8_is_replaced_and_counted_and_every_other_span_stays",
            "tests/decode/test_otlp_json.py::"
            "test_one_string_that_is_not_utf8_does_not_lose_the_batch",
        ),
    ),
    26: Lesson(
        "what is sent again after a lost answer counts twice",
        "a bounded memory of what came, or a plain word that it counts twice",
        (f"{CORE}#11056", f"{CONTRIB}#47600"),
        (
            "tests/test_duplicates.py::test_points_that_come_again_are_counted_and_change_nothing",
            "tests/test_duplicates.py::test_requests_that_come_again_count_again_and_move_no_share",
        ),
    ),
    27: Lesson(
        "data is lost at SIGTERM",
        "what was admitted is folded, and state is kept",
        (f"{CORE}#12647", f"{CORE}#13853", f"{CONTRIB}#26490", f"{CONTRIB}#33441"),
        (
            "tests/e2e/test_conservation.py::"
            "test_sigterm_under_load_loses_nothing_that_was_acknowledged",
            "tests/receive/test_otlp_grpc.py::"
            "test_stopping_completes_what_runs_and_refuses_what_comes_late",
            "tests/e2e/test_service.py::test_a_restart_keeps_weights_overrides_and_the_epoch",
        ),
    ),
    28: Lesson(
        "gaps in the log on disk, a deadlock on a full one, no start with a corrupt file",
        "checksums, a full disk that ends only the recording, bad files set aside, always a start",
        (
            f"{CORE}#12711",
            f"{CORE}#15324",
            f"{CORE}#7198",
            f"{CORE}#9451",
            f"{CONTRIB}#35899",
        ),
        (
            "tests/test_journal.py::test_a_flipped_bit_is_an_error_that_says_where",
            "tests/test_journal.py::test_a_full_disk_ends_the_recording_and_nothing_else",
            "tests/test_state.py::test_a_bad_file_is_set_aside_and_the_older_generation_is_used",
            "tests/test_state.py::test_two_bad_generations_start_afresh",
            "tests/test_state.py::test_a_failed_write_leaves_the_old_file_in_place",
        ),
    ),
    # connections, as far as a receiver is concerned
    29: Lesson(
        "long-lived connections stay with old replicas",
        "connections are asked to come back anew, and lose nothing by it",
        (f"{CORE}#4274", f"{CORE}#9211", "jaegertracing/jaeger#1678", "vectordotdev/vector#19457"),
        (
            "tests/receive/test_connections.py::"
            "test_a_busy_sender_is_asked_to_reconnect_and_loses_nothing",
            "tests/e2e/test_real_senders.py::"
            "test_senders_came_back_on_new_connections_all_the_time",
        ),
    ),
    33: Lesson(
        "the default policy on pings disconnects clients that keep alive",
        "pings of idle connections are allowed as often as senders are known to ping",
        ("llm-d/llm-d-kv-cache#359",),
        ("tests/receive/test_otlp_grpc.py::test_an_idle_sender_may_ping_as_often_as_configured",),
    ),
}


def test_every_lesson_of_state_counters_memory_and_delivery_has_its_row() -> None:
    assert set(range(1, 29)) <= LESSONS.keys()


@pytest.mark.parametrize("number", LESSONS)
def test_a_lesson_has_tests_that_exist_or_a_sentence_why_it_cannot_happen(number: int) -> None:
    lesson = LESSONS[number]
    assert bool(lesson.tests) != bool(lesson.why_not)
    assert lesson.symptom
    assert lesson.right
    assert lesson.issues
    for issue in lesson.issues:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+(#[1-9]\d*|:[\w/.-]+)", issue), issue
    assert not lesson.why_not or lesson.why_not.endswith(".")
    for test in lesson.tests:
        file, _, name = test.partition("::")
        assert name in named_in(ROOT / file), test


def named_in(file: Path) -> set[str]:
    """The names of the test functions of a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {each.name for each in tree.body if isinstance(each, functions)}
