"""Mutants of what the adapter does for a host's stores: files, saves, and a locked database."""

from __future__ import annotations

from tests.mutants.kit import Mutant, mutant

LATE = "hosts/late.py"
FILES = "host/test_stores_files.py::"
SAVING = "host/test_stores_saving.py::"
STALE = "host/test_stale_engines.py::"

STORES: tuple[Mutant, ...] = (
    mutant(
        "a-save-counts-the-whole-thread",
        "R",
        SAVING + "test_a_save_does_not_read_the_thread",
        ("hosts/store_hooks.py", "if known is None else known", "if True else known"),
    ),
    mutant(
        "a-count-is-trusted-whoever-wrote",
        "T2",
        SAVING + "test_what_another_process_wrote_is_counted",
        (
            "hosts/threads.py",
            "found and found.look == look(store._file(session_id))",
            "found",
        ),
    ),
    mutant(
        "a-lock-kills-the-turn",
        "C15",
        SAVING + "test_c15_a_turn_goes_on_while_the_database_is_locked",
        (LATE, "if not any(word in str(exc) for word in _LOCK_WORDS):", "if True:"),
    ),
    mutant(
        "late-rows-are-overtaken",
        "G10",
        SAVING + "test_c15_audit_rows_come_late_in_order_with_their_columns",
        (LATE, "reversed(self._taken)", "self._taken"),
    ),
    mutant(
        "late-rows-lose-their-ids",
        "G10",
        SAVING + "test_c15_audit_rows_come_late_in_order_with_their_columns",
        (LATE, "with telling(write.facts):", "with telling({}):"),
    ),
    mutant(
        "the-event-loop-waits-for-the-ledger",
        "C15",
        SAVING + "test_c15_a_refused_call_of_a_new_session_keeps_the_event_loop_free",
        ("hosts/binding.py", "if coverage is None and self.blocked:", "if False:"),
    ),
    mutant(
        "no-sync-although-not-in-wal",
        "R",
        SAVING + "test_commits_of_the_stores_ride_on_the_ledgers_sync_in_wal_mode_only",
        (LATE, '"journal_mode") == "wal"', '"journal_mode") != ""'),
    ),
    mutant(
        "a-torn-inbox-is-an-empty-one",
        "C22",
        FILES + "test_c22_an_inbox_torn_at_every_byte_keeps_its_whole_items",
        ("hosts/files.py", "            items.append(item)\n", ""),
    ),
    mutant(
        "bad-bytes-are-kept-at-every-start",
        "C22",
        FILES + "test_c22_bad_bytes_are_kept_once_not_at_every_start",
        ("hosts/files.py", ".unreadable-{digest}", ".unreadable-{os.urandom(8).hex()}"),
    ),
    mutant(
        "bad-bytes-are-dropped",
        "C22",
        FILES + "test_a_kill_around_the_mending_loses_nothing",
        ("hosts/files.py", "        write_atomic(aside, content)\n", "        pass\n"),
    ),
    mutant(
        "only-the-last-line-is-mended",
        "C22",
        FILES + "test_c22_a_damaged_thread_loads_and_its_bytes_are_kept_once",
        (
            "hosts/files.py",
            "    if not bad:\n",
            '    if not bad or content.endswith(b"\\n"):\n',
        ),
    ),
    # -- whose thread is saved
    mutant(
        "any-list-continues-the-thread",
        "G14",
        "host/test_terminal.py::test_g14_after_clear_the_thread_on_disk_is_the_new_one",
        ("hosts/threads.py", "bool(messages[found.count - 1] == found.last)", "True"),
    ),
    mutant(
        "a-replaced-engines-thread-is-saved",
        "G2",
        f"{STALE}test_g2_the_thread_of_a_replaced_engine_is_not_saved_over_the_new_ones",
        (
            "hosts/store_hooks.py",
            "if engine is not None and engine.messages is record.messages:",
            "if record.messages:",
        ),
    ),
    mutant(
        "a-record-without-messages-empties-the-thread",
        "G2",
        f"{STALE}test_g2_a_record_without_messages_does_not_empty_a_thread",
        ("hosts/store_hooks.py", "record.messages = saved", "write_thread(path, [])"),
    ),
    mutant(
        "an-empty-file-is-a-thread",
        "G2",
        f"{STALE}test_g2_a_file_without_a_message_is_no_thread",
        (
            "hosts/binding.py",
            "        if saved:\n",
            "        if not saved:\n            self.engine.messages.clear()\n        else:\n",
        ),
    ),
    mutant(
        "a-first-line-that-is-gone-stays-gone",
        "G2",
        f"{STALE}test_g2_a_thread_whose_first_line_is_gone_keeps_the_engines",
        ("hosts/threads.py", "return all(json.dumps(a) == json.dumps(b)", "return all(True"),
    ),
    mutant(
        "an-unreadable-thread-is-the-engines",
        "G13",
        f"{STALE}test_g13_an_unreadable_thread_blocks_no_settling_where_an_engine_is_cached",
        ("hosts/binding.py", "            self.unreadable = True\n", "            raise\n"),
    ),
    mutant(
        "last-words-come-after-the-lock",
        "G2",
        f"{STALE}test_g2_a_turns_last_words_are_saved_before_the_session_is_given_back",
        ("hosts/engine_hooks.py", "                    binding.save_rest()\n", ""),
    ),
    mutant(
        "taking-over-keeps-the-lock-without-the-inbox",
        "C22",
        f"{STALE}test_c22_taking_over_an_inbox_that_cannot_be_read_now_loses_nothing[reference-_load]",
        (
            "hosts/watching.py",
            "            self.server.close()\n            raise",
            "            raise",
        ),
    ),
    mutant(
        "an-answer-to-a-copy-counts",
        "C21",
        f"{STALE}test_c21_an_answer_to_a_copy_does_not_count_where_the_prompt_was_closed",
        ("hosts/watching.py", '(k not in left or left[k].state == "pending")', "True"),
    ),
    mutant(
        "a-slot-is-taken-twice",
        "G5",
        "contract/test_verbs.py::test_g5_a_slot_that_another_run_has_taken_needs_a_persons_word",
        ("verbs.py", 'return one(conn, "same_occurrence", **slot) is not None', "return False"),
    ),
    mutant(
        "the-dead-are-not-told-of-in-a-terminal",
        "G12",
        "host/test_terminal.py::test_a_call_whose_process_died_is_told_at_the_next_start",
        ("hosts/terminal.py", "and (r.undecided or _lost(runtime, r))", "and r.undecided"),
    ),
)
