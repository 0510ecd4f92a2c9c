"""Mutants of what the adapter does for a host's stores: files, saves, and a locked database."""

from __future__ import annotations

from tests.mutants.kit import Mutant, mutant

LATE = "hosts/late.py"
FILES = "host/test_stores_files.py::"
SAVING = "host/test_stores_saving.py::"

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
        ("hosts/threads.py", "if found is None or found[0] !=", "if found is None or 0 and 0 !="),
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
)
