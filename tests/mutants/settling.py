"""Mutants of what settles an unknown outcome without a person: policies, probes, evidence."""

from __future__ import annotations

from tests.mutants.kit import Mutant, mutant

POLICY = "unit/test_policy.py::"
STORIES = "host/test_policies.py::"

SETTLING: tuple[Mutant, ...] = (
    mutant(
        "the-policy-now-does-not-count",
        "G3",
        f"{STORIES}test_g3_a_policy_taken_back_meanwhile_counts",
        ("policy.py", "stricter(recorded, now.policy)", "recorded"),
    ),
    mutant(
        "the-policy-at-dispatch-does-not-count",
        "G3",
        "contract/test_policy_retry.py::test_g3_c16_the_stricter_of_the_policy_then_and_now_counts",
        ("policy.py", "stricter(recorded, now.policy)", "now.policy"),
    ),
    mutant(
        "attempts-are-not-counted",
        "G3",
        f"{POLICY}test_g3_attempts_are_counted_in_the_record",
        ("policy.py", "left = row.attempt < policy.attempts", "left = True"),
    ),
    mutant(
        "another-tool-is-the-same",
        "G3",
        f"{STORIES}test_g3_another_tool_of_the_name_is_not_the_one_that_was_called",
        ("policy.py", "now.identity != identity_of(row)", "False"),
        ("hosts/toolbox.py", "tool_identity(spec) == built[1]", "True"),
    ),
    mutant(
        "a-key-lasts-to-its-last-second",
        "G3",
        f"{POLICY}test_g3_a_key_is_usable_up_to_its_margin_and_not_a_tick_longer",
        ("policy.py", "policy.key_valid - key_margin(policy)", "policy.key_valid"),
    ),
    mutant(
        "a-key-from-the-future",
        "G3 C27",
        f"{POLICY}test_g3_a_key_is_usable_up_to_its_margin_and_not_a_tick_longer",
        ("policy.py", "0 <= age <", "age <"),
    ),
    mutant(
        "not-there-is-believed",
        "G3",
        f"{STORIES}test_absence_that_proves_nothing_asks_a_person",
        ("reconciler.py", "not reconciler.proves_absence(probe, at)", "False"),
    ),
    mutant(
        "a-probes-result-is-not-checked",
        "G12",
        f"{STORIES}test_a_result_that_the_tools_output_does_not_allow_is_not_written",
        ("hosts/probing.py", "outcome_of(found, due.output)", "outcome_of(found)"),
    ),
    mutant(
        "a-probe-settles-over-a-decision",
        "G3 C20",
        "contract/test_probe_verbs.py::"
        "test_c20_what_is_found_out_after_a_decision_is_kept_as_evidence",
        (
            "sql/queries.sql",
            "probe_at = NULL, found = :found\n"
            "WHERE execution_id = :execution_id AND attempt = :attempt AND state = 'unknown'\n"
            "  AND decision IS NULL",
            "probe_at = NULL, found = :found\n"
            "WHERE execution_id = :execution_id AND attempt = :attempt\n  AND 1",
        ),
    ),
    mutant(
        "a-late-conflict-is-not-shown",
        "C20",
        "host/test_late_results.py::test_c20_a_result_after_the_decision_is_shown_as_a_conflict",
        (
            "hosts/watching.py",
            "if row is None or self.manager",
            "if row is not None or self.manager",
        ),
    ),
    mutant(
        "anybody-may-give-evidence",
        "G3",
        "host/test_settling.py::"
        "test_evidence_by_hand_settles_the_attempt_and_reaches_the_conversation",
        ("evidence.py", "or source not in settings.sources", ""),
        ("evidence.py", "if not settings.may_give(source, key):", "if False:"),
    ),
    mutant(
        "every-tool-is-repeatable",
        "G3",
        "host/test_late_results.py::test_the_repeat_guard_shows_both_calls_side_by_side",
        ("hosts/binding.py", "return stricter(parse(row.policy), now).repeatable", "return True"),
    ),
    mutant(
        "a-contradiction-is-started-with",
        "G3",
        "host/test_settling.py::test_a_start_with_a_contradiction_is_refused_with_a_message",
        ("hosts/runtime.py", "        if problem.fatal:\n", "        if False:\n"),
    ),
    mutant(
        "evidence-of-an-owner-that-ended-is-lost",
        "G7 C15",
        "contract/test_retained.py::test_g7_c15_the_next_owner_writes_what_was_left",
        ("guard.py", "RETAINED.leave(self.ledger.path, owners, left)", "pass"),
    ),
    mutant(
        "each-attempt-has-its-own-key",
        "G3",
        "crash/test_kit_policies.py::test_a_story_without_a_kill",
        (
            "guard.py",
            "        return self.execution_id\n",
            "        return f'{self.execution_id}:{self.attempt}'\n",
        ),
    ),
    mutant(
        "a-probe-that-died-is-not-made-again",
        "G3 C23",
        "host/test_policies_kills.py::test_c23_killed_at_any_step_of_a_probe_the_end_is_the_same",
        (
            "hosts/probing.py",
            "again = life.clock() + due.reconciler.timeout + self.grace",
            "again = life.clock() + 86400.0",
        ),
    ),
    mutant(
        "a-probe-is-claimed-by-everybody",
        "G9",
        "contract/test_probe_verbs.py::test_g9_a_probe_is_claimed_by_exactly_one_of_two",
        (
            "sql/queries.sql",
            "SET probes = probes + 1, probe_at = :next_at\nWHERE",
            "SET probes = probes + 1, probe_at = :next_at\nWHERE 1 OR",
        ),
    ),
    mutant(
        "absence-is-made-again-without-a-budget",
        "G3",
        f"{POLICY}test_g3_what_was_proved_absent_is_made_again_only_where_attempts_are_left",
        ("policy.py", "left = row.attempt < policy.attempts", "left = row.attempt < 99"),
    ),
)
