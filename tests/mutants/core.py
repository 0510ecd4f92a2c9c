"""Mutants of the record, the guard, the pure core and the recovery table."""

from __future__ import annotations

from tests.mutants.kit import Mutant, mutant

CORE: tuple[Mutant, ...] = (
    # -- dispatch
    mutant(
        "dispatch-after-the-effect",
        "G1 T11",
        "contract/test_guard.py::test_g1_the_row_is_committed_before_the_effect",
        ("guard.py", "        attempt = self.dispatch(handle)\n", "        attempt = 1\n"),
        (
            "guard.py",
            "                yield context\n",
            "                yield context\n                self.dispatch(handle)\n",
        ),
    ),
    mutant(
        "a-second-start-gets-a-handle",
        "G1",
        "contract/test_guard.py::test_g1_a_second_start_finds_the_record_and_gets_no_handle",
        (
            "guard.py",
            "if intent.execution_id in self._started or (latest is not None and not retry):",
            "if intent.execution_id in self._started:",
        ),
    ),
    mutant(
        "a-claim-is-not-noted",
        "G1 C06",
        "contract/test_guard.py::test_g1_a_second_start_finds_the_claim_before_any_row_is_there",
        (
            "guard.py",
            "            self._started[intent.execution_id] = Future()\n",
            "            pass\n",
        ),
    ),
    mutant(
        "a-handle-works-twice",
        "G1",
        "contract/test_guard.py::test_a_handle_is_used_once",
        ("guard.py", "        if self._used:\n", "        if False:\n"),
    ),
    mutant(
        "a-row-does-not-stop-dispatch",
        "G1",
        "contract/test_moves.py::test_g1_dispatch_of_an_existing_row_is_refused_whoever_asks",
        (
            "verbs.py",
            "    if there is not None:\n        raise AlreadyRecorded",
            "    if False:\n        raise AlreadyRecorded",
        ),
        (
            "sql/queries.sql",
            "-- name: insert_execution\nINSERT INTO",
            "-- name: insert_execution\nINSERT OR REPLACE INTO",
        ),
    ),
    mutant(
        "approval-item-reused",
        "G5 T11",
        "contract/test_moves.py::test_g5_the_same_approval_item_cannot_authorise_twice",
        (
            "sql/schema.sql",
            "CREATE UNIQUE INDEX IF NOT EXISTS tool_executions_item",
            "CREATE INDEX IF NOT EXISTS tool_executions_item",
        ),
    ),
    mutant(
        "intent-ignores-arguments",
        "G5 C07",
        "unit/test_identity.py::test_g5_intent_digest_sees_every_difference",
        (
            "identity.py",
            '_digest("intent", name, canonical_json(arguments))',
            '_digest("intent", name)',
        ),
    ),
    mutant(
        "execution-id-without-incarnation",
        "G6 T10 C30",
        "unit/test_identity.py::test_g6_execution_ids_differ_when_any_part_does",
        (
            "identity.py",
            '_digest("execution", session_id, incarnation, call_id)',
            '_digest("execution", session_id, call_id)',
        ),
    ),
    # -- owners, outcomes, evidence
    mutant(
        "no-owner-fence",
        "G9 T8",
        "contract/test_moves.py::test_g9_only_the_owner_finishes",
        ("verbs.py", "    if row.owner != owner:\n", "    if False:\n"),
        (
            "sql/queries.sql",
            "AND attempt = :attempt AND owner = :owner\n  AND superseded = 0",
            "AND attempt = :attempt\n  AND superseded = 0",
        ),
    ),
    mutant(
        "a-live-owner-seems-dead",
        "G9 C14",
        "contract/test_owner.py::test_g9_two_lives_of_one_folder_know_each_other",
        ("owner.py", "        if not _try(probe):\n            return True\n", ""),
    ),
    mutant(
        "session-lock-not-taken",
        "R C06",
        "contract/test_owner.py::test_two_owners_of_one_process_exclude_each_other",
        (
            "owner.py",
            "            if not _try(lock):\n",
            "            if not _try(lock) and False:\n",
        ),
    ),
    mutant(
        "evidence-not-kept",
        "G7 C16",
        "contract/test_evidence.py::test_g7_c16_the_result_is_given_and_the_outcome_kept",
        (
            "guard.py",
            "            self._keep(key, outcome)\n            return",
            "            return",
        ),
    ),
    mutant(
        "kept-evidence-not-written",
        "G7 R6",
        "unit/test_recovery_rules.py::test_rule",
        ("recovery.py", "    if f.evidence:\n", "    if False:\n"),
    ),
    mutant(
        "an-odd-error-is-a-failure",
        "G3 T12",
        "unit/test_outcomes.py::test_c29_c04_what_an_exception_proves",
        (
            "outcomes.py",
            "return State.UNKNOWN if external else State.FAILED",
            "return State.FAILED",
        ),
    ),
    mutant(
        "a-decision-overwrites-the-first",
        "G3 C20",
        "contract/test_verbs.py::test_c20_the_first_decision_wins_and_there_is_one_audit_row",
        ("verbs.py", "    if not row.undecided or row.superseded:\n", "    if row.superseded:\n"),
        (
            "sql/queries.sql",
            "acknowledged_at = NULL, probe_at = NULL\n"
            "WHERE execution_id = :execution_id AND attempt = :attempt AND state = 'unknown'\n"
            "  AND decision IS NULL AND superseded",
            "acknowledged_at = NULL, probe_at = NULL\n"
            "WHERE execution_id = :execution_id AND attempt = :attempt\n  AND superseded",
        ),
    ),
    mutant(
        "late-evidence-overwrites",
        "G10 C20",
        "contract/test_verbs.py::test_g10_a_late_outcome_of_a_decided_row_is_evidence_once",
        (
            "sql/queries.sql",
            "OR (state = 'unknown' AND decision IS NULL AND :state <> 'unknown')",
            "OR :state <> 'unknown'",
        ),
    ),
    mutant(
        "retry-does-not-supersede",
        "G5 R10",
        "contract/test_verbs.py::test_g3_g5_retry_supersedes_once_with_an_authority_of_its_own",
        ("sql/queries.sql", "SET superseded = 1", "SET superseded = 0"),
    ),
    mutant(
        "retry-without-a-decision",
        "G3",
        "contract/test_guard.py::test_g3_retry_without_a_decision_makes_no_call",
        (
            "verbs.py",
            "or there.newer or not _may_retry(made, intent, at, by_policy):",
            "or there.newer:",
        ),
        (
            "sql/queries.sql",
            "AND state = 'unknown' AND decision IS :decision AND superseded = 0;",
            "AND superseded = 0;",
        ),
    ),
    # -- the file
    mutant(
        "group-commit-without-savepoints",
        "G8",
        "contract/test_writer.py::test_a_refused_move_in_a_batch_does_not_undo_the_others",
        (
            "_db.py",
            'conn.execute("ROLLBACK TO one")\n        conn.execute("RELEASE one")\n',
            'conn.execute("ROLLBACK")\n        conn.execute("BEGIN IMMEDIATE")\n',
        ),
    ),
    mutant(
        "newer-schema-not-refused",
        "G4 C26",
        "migration/test_migration.py::test_c26_a_newer_file_is_refused_before_anything_is_made",
        ("_db.py", "    if version > SCHEMA_VERSION:\n", "    if False:\n"),
    ),
    mutant(
        "version-stamped-apart",
        "C26",
        "migration/test_migration.py::test_c26_a_fault_at_any_statement_leaves_the_old_schema",
        (
            "_db.py",
            '    conn.execute("BEGIN IMMEDIATE")\n    try:\n        _check',
            "    try:\n        _check",
        ),
        (
            "_db.py",
            '        conn.execute("COMMIT")\n    except BaseException:',
            "        pass\n    except BaseException:",
        ),
    ),
    mutant(
        "unsynced-commits",
        "G1",
        "contract/test_writer.py::test_pragmas_read_back",
        (
            "_db.py",
            'conn.execute("PRAGMA synchronous = FULL")',
            'conn.execute("PRAGMA synchronous = NORMAL")',
        ),
        ("_db.py", ".fetchone()[0] != 2:", ".fetchone()[0] != 1:"),
    ),
    mutant(
        "snapshot-dropped-unacknowledged",
        "G2 T10",
        "contract/test_lifetime.py::test_expire_never_drops_what_is_open",
        (
            "sql/queries.sql",
            "WHERE acknowledged_at IS NOT NULL AND acknowledged_at < :before",
            "WHERE COALESCE(acknowledged_at, ended_at) < :before",
        ),
    ),
    mutant(
        "open-rows-age-out",
        "T10",
        "contract/test_lifetime.py::test_trap_10_expire_keeps_a_superseded_row_while_its_successor_is_open",
        ("sql/queries.sql", "HAVING SUM(acknowledged_at IS NULL) = 0 AND", "HAVING"),
    ),
    mutant(
        "a-tombstone-frees-ids",
        "T10 C30",
        "contract/test_lifetime.py::test_c30_tombstone_keeps_what_is_to_settle_and_its_ids",
        (
            "sql/queries.sql",
            "SELECT DISTINCT tool_call_id FROM tool_executions WHERE session_id = :session_id;",
            "SELECT DISTINCT tool_call_id FROM tool_executions WHERE session_id = :session_id\n"
            "    AND acknowledged_at IS NULL;",
        ),
    ),
    # -- the table
    mutant(
        "rebuilt-for-a-changed-intent",
        "G5 R4",
        "host/test_cases_calls.py::test_c07_a_known_result_of_another_intent_is_not_rebuilt",
        ("recovery.py", "f.known and f.unanswered and not f.changed", "f.known and f.unanswered"),
    ),
    mutant(
        "a-dead-owners-call-is-left",
        "G9 R8",
        "host/test_session_first.py::test_killed_at_each_place[inside, after the effect-prompt]",
        (
            "recovery.py",
            "    if f.state is not State.DISPATCHED or f.holder is not Holder.DEAD:\n",
            "    if f.answer is not Answer.RESULT:\n",
        ),
    ),
    mutant(
        "one-provisional-text-omitted",
        "G14 R9",
        "host/test_mutant_gaps.py::test_g14_all_unknown_calls_of_a_reply_are_answered_at_once",
        (
            "recovery.py",
            "        return None\n    if f.unanswered:\n        return Action.ANSWER_PROVISIONAL\n"
            "    if f.item or f.changed",
            "        return None\n    if f.unanswered and not f.waits:\n"
            "        return Action.ANSWER_PROVISIONAL\n    if f.item or f.changed",
        ),
    ),
    mutant(
        "a-new-message-runs-an-old-call",
        "R11 C32",
        "host/test_cases_calls.py::test_c32_or_is_answered_not_started_by_a_new_message",
        ("recovery.py", "    if t is Trigger.MESSAGE or f.user_line:\n", "    if False:\n"),
    ),
    mutant(
        "a-changed-call-may-be-retried",
        "R4 C07",
        "contract/test_verbs.py::test_c07_a_changed_call_cannot_be_decided_retry",
        (
            "verbs.py",
            "    if decision is Decision.RETRY and row.reason",
            "    if False and row.reason",
        ),
    ),
    mutant(
        "a-newer-row-is-judged",
        "R1",
        "unit/test_recovery_rules.py::test_rule",
        (
            "recovery.py",
            "    if not f.newer:\n        return None\n    if f.unanswered",
            "    return None\n    if f.unanswered",
        ),
    ),
    mutant(
        "the-turn-ends-after-a-rebuild",
        "R14",
        "host/test_session_first.py::test_killed_at_each_place[returned-prompt]",
        ("recovery.py", "return answered and nothing_open and not model_called", "return False"),
    ),
    # -- words
    mutant(
        "a-dismissal-decides",
        "C19",
        "host/test_session_turns.py::test_c19_what_is_no_decision_leaves_the_item_open[seen]",
        (
            "review.py",
            "    for decision in Decision:\n        if resolution in",
            '    if resolution == "seen":\n        return Word(Decision.DROP)\n'
            "    for decision in Decision:\n        if resolution in",
        ),
    ),
    mutant(
        "redaction-off",
        "G10 C24",
        "host/test_cases_recovery.py::test_c24_no_secret_in_anything_we_write",
        (
            "redact.py",
            "if _SECRET_VALUE.search(text) or _ASSIGNED.search(text) or _LONG_BLOB.search(text):",
            "if False:",
        ),
    ),
    mutant(
        "read-only-tools-are-recorded",
        "G11 T4",
        "host/test_no_ledger_io.py::test_g11_a_read_only_call_does_no_ledger_io",
        (
            "protection.py",
            'return Protection(False, external, "read-only")',
            'return Protection(True, external, "read-only")',
        ),
    ),
    mutant(
        "a-reader-is-closed-under-another-thread",
        "R",
        "contract/test_lifetime.py::test_closing_the_ledger_waits_for_reads_of_other_threads",
        (
            "ledger.py",
            "        with self._lock:\n            conn, self._conn = self._conn, None\n",
            "        if True:\n            conn, self._conn = self._conn, None\n",
        ),
    ),
)
