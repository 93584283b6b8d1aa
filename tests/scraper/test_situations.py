# SPDX-License-Identifier: GPL-2.0-or-later
"""What other readers of sockets and senders of logs have got wrong, by its number in our research, and the tests that
show it here. 9, 10, 13, 18, 19, 23 and 26 have no number of their own there; 3 and 5 are the producer's to survive.
"""

import importlib

import pytest

SITUATIONS = {
    (1, "a datagram longer than the buffer"): [
        "test_receive.test_a_datagram_longer_than_the_slot_is_seen_and_the_next_of_its_size_is_taken",
        "test_receiver.test_a_truncated_datagram_is_kept_as_its_head_and_marks_what_its_sender_has_open",
    ],
    (2, "one message too long for a datagram of ours"): [
        "test_sink_syslog.test_udp_sends_a_message_a_datagram_and_sets_aside_what_is_too_long",
        "test_sink_journald.test_journald_keeps_every_field_and_a_line_that_no_datagram_holds",
    ],
    (4, "a short kernel queue"): ["test_main.test_a_low_kernel_queue_is_warned_of"],
    (6, "a stale socket file"): [
        "test_bind.test_a_dead_socket_is_replaced",
        "test_bind.test_what_is_no_socket_is_never_removed",
    ],
    (7, "a second scraper"): [
        "test_bind.test_a_live_socket_of_another_program_is_left_alone",
        "test_bind.test_only_our_own_file_is_removed_at_the_end",
        "test_main.test_a_second_scraper_says_that_the_socket_is_taken",
    ],
    (8, "mode and owner of the socket"): [
        "test_bind.test_the_socket_is_a_datagram_socket_that_only_its_owner_may_use",
        "test_bind.test_a_folder_that_others_can_write_to_is_refused_as_slurm_refuses_it",
    ],
    (11, "streams that interleave"): ["test_rejoin.test_chains"],
    (12, "a last piece that nothing ends"): [
        "test_rejoin.test_chains",
        "test_rejoin.test_a_quiet_chain_ends_by_age_and_a_busy_one_does_not",
    ],
    (14, "one huge line"): ["test_rejoin.test_a_line_longer_than_the_bound_is_given_in_parts_and_loses_nothing"],
    (15, "bytes that are no UTF-8"): ["test_receiver.test_one_bad_record_costs_no_other"],
    (16, "NUL"): ["test_receiver.test_a_nul_stays_the_text_that_relay_io_made_of_it"],
    (17, "64-bit time"): [
        "test_decode.test_nanoseconds_past_2_to_53_stay_exact",
        "test_sinks_http.test_times_are_never_floats",
    ],
    (20, "a sink that is away for hours"): [
        "test_pump.test_a_driven_hour_of_silence_loses_only_what_the_spool_could_not_hold_and_counts_it",
        "test_sink_file.test_open_files_are_bounded_and_none_is_lost_for_it",
    ],
    (21, "one dead sink"): ["test_main.test_one_dead_sink_stops_no_other_and_its_lines_wait"],
    (22, "a batch that fails in part"): [
        "test_sinks_http.test_bulk_sends_again_only_what_passes_and_sets_aside_only_what_is_refused",
        "test_pump.test_of_a_batch_that_is_refused_as_a_whole_only_the_guilty_line_is_lost",
        "test_pump.test_a_sink_that_refuses_every_line_is_set_up_wrongly_and_loses_none",
    ],
    (24, "SIGTERM"): [
        "test_main.test_sigterm_takes_what_is_queued_and_keeps_what_is_open",
        "test_pump.test_without_patience_a_sink_that_is_down_is_tried_once_and_its_place_is_kept",
    ],
    (25, "rotation"): [
        "test_sink_file.test_a_full_file_is_renamed_and_the_next_one_begun",
        "test_sink_file.test_a_reader_of_a_renamed_file_sees_no_byte_change",
        "test_sink_file.test_a_file_that_somebody_moved_away_is_begun_anew",
    ],
    (27, "a drop that only a log tells of"): [
        "test_main.test_a_drop_report_in_slurmds_log_becomes_a_line_and_marks_the_step"
    ],
    (28, "a loss that nobody sees"): [
        "test_counters.test_a_row_for_each_reason_and_sink_from_the_start",
        "test_receiver.test_any_bytes_in_any_order_are_lines_or_counted_refusals",
    ],
}


@pytest.mark.parametrize("situation", SITUATIONS, ids=[f"{number}" for number, _ in SITUATIONS])
def test_the_situation_has_its_tests(situation: "tuple[int, str]") -> None:
    for name in SITUATIONS[situation]:
        module, _, test = name.partition(".")
        assert callable(getattr(importlib.import_module(f"tests.scraper.{module}"), test))
