"""Mutants of the ways into the host: deliveries, MCP, automations, gates, inbox, chat."""

from __future__ import annotations

from tests.mutants.kit import Mutant, mutant

SLOTS = "host/test_automation_slots.py::"
TOOLS = "host/test_tools_first.py::"
SURFACES = "host/test_surfaces.py::"
GATES = "host/test_gates.py::"
WITNESS = "host/test_http_witness.py::"

WAYS: tuple[Mutant, ...] = (
    # -- automations
    mutant(
        "a-slot-run-again-does-not-ask",
        "R",
        f"{SLOTS}test_a_slot_run_again_after_a_known_effect_asks_naming_it",
        ("hosts/binding.py", "        if self.occurrence:\n", "        if False:\n"),
    ),
    mutant(
        "a-slot-is-asked-about-in-its-own-run",
        "R",
        f"{SLOTS}test_a_fresh_slot_of_the_same_automation_does_not_ask",
        (
            "hosts/slots.py",
            "{due if due is not None else ''}",
            "",
        ),
    ),
    mutant(
        "a-rebuilt-run-forgets-its-slot",
        "R",
        f"{SLOTS}test_the_cut_off_run_asks_as_well_when_it_goes_on_after_its_slot_was_run_again",
        ("hosts/manager_hooks.py", "if not session_id.startswith(RUN):", "if session_id:"),
    ),
    mutant(
        "a-halted-run-is-reported-done",
        "G12",
        f"{SLOTS}test_a_run_that_halted_is_not_reported_as_done",
        ("hosts/driving_hooks.py", "if binding is not None and binding.halted", "if False"),
    ),
    mutant(
        "a-run-does-not-claim-its-session",
        "6.4",
        f"{SLOTS}test_a_runs_session_is_claimed_while_it_runs",
        ("hosts/driving_hooks.py", "                manager.mark_running(session_id)\n", ""),
    ),
    # -- MCP
    mutant(
        "an-engine-is-built-without-its-tools",
        "C31",
        f"{TOOLS}test_c31_an_approved_call_is_run_with_its_server_connected_first[reference]",
        ("hosts/opening.py", "extra_tools=tools or None", "extra_tools=None"),
        (
            "hosts/engine_hooks.py",
            "return sorted(await binding.runtime.opening.connect(binding.session_id, waiting))",
            "return []",
        ),
    ),
    mutant(
        "an-absent-tool-is-called-unknown",
        "C31",
        f"{TOOLS}test_c31_a_call_whose_server_is_down_stays_open_and_says_why[reference]",
        ("hosts/engine_hooks.py", "            if absent:\n", "            if False:\n"),
    ),
    mutant(
        "a-cached-engine-stays-without-tools",
        "C31",
        f"{TOOLS}test_c31_once_its_server_is_back_the_call_runs_once[reference]",
        ("hosts/opening.py", "        if lacking(engine, names):\n", "        if False:\n"),
    ),
    mutant(
        "deliveries-do-not-wait-for-tools",
        "C31",
        f"{TOOLS}test_a_second_delivery_waits_for_the_tools_of_the_first[reference]",
        (
            "hosts/opening.py",
            "        while session_id in self._opening:\n",
            "        while False:\n",
        ),
    ),
    mutant(
        "a-parked-engine-is-built-again",
        "C31",
        f"{TOOLS}test_whoever_opens_a_session_while_its_tools_are_fetched_gets_the_same_engine"
        "[reference]",
        ("hosts/manager_hooks.py", "session_id in runtime.opening.parked", "False"),
    ),
    mutant(
        "one-identity-for-two-servers",
        "G5",
        "unit/test_protection.py::test_two_servers_whose_tools_share_a_name_are_two_identities",
        ("protection.py", "        return str(declared[0])\n", "        pass\n"),
    ),
    # -- the inbox and the chat
    mutant(
        "the-item-is-served-raw",
        "6.5",
        f"{SURFACES}test_the_listing_serves_the_item_as_a_question_with_its_decisions[reference]",
        ("hosts/listing_hooks.py", "return [served(i) for i in items]", "return items"),
    ),
    mutant(
        "one-bad-thread-hides-the-inbox",
        "C22",
        f"{SURFACES}test_c22_a_listing_goes_on_past_a_conversation_that_cannot_be_read[reference]",
        ("hosts/listing_hooks.py", "if for_recovery is None:", "if True:"),
    ),
    mutant(
        "an-item-of-a-deleted-session-is-hidden",
        "C30",
        f"{SURFACES}test_c30_an_item_of_a_deleted_session_is_listed_and_can_be_decided[reference]",
        (
            "hosts/listing_hooks.py",
            'return Shown("(deleted)") if record is None and for_recovery else record',
            "return record",
        ),
    ),
    mutant(
        "anybody-may-click",
        "6.5",
        f"{SURFACES}test_only_the_owner_in_the_bound_channel_may_click[reference-click0]",
        (
            "hosts/chat_hooks.py",
            "            if not _may(manager, item, event):\n",
            "            if False:\n",
        ),
    ),
    mutant(
        "anybody-may-reply",
        "6.5",
        f"{SURFACES}test_a_reply_of_somebody_else_does_not_count[reference]",
        (
            "hosts/chat_hooks.py",
            "            if _may(manager, item, source):\n",
            "            if True:\n",
        ),
    ),
    mutant(
        "a-bare-yes-decides",
        "C19",
        f"{SURFACES}test_c19_a_bare_word_in_a_reply_leaves_it_open_with_a_hint[reference-approve]",
        ("hosts/chat_hooks.py", 'word = _TOKEN.sub("", text).strip()', 'word = "happened"'),
    ),
    mutant(
        "what-the-sweep-raised-is-never-mirrored",
        "6.5",
        f"{SURFACES}test_what_the_sweep_raised_is_mirrored_once_the_gateway_is_up[reference]",
        ("hosts/runtime.py", "            self._unmirrored.append(item)\n", "            pass\n"),
    ),
    # -- gates
    mutant(
        "a-gates-effect-is-not-guarded",
        "G1",
        f"{GATES}test_killed_around_its_effect_a_person_is_asked_and_nothing_is_done_again"
        "[propose_team-effect.after]",
        (
            "hosts/gate_hooks.py",
            "if gate is None or gate.name != name or gate.dispatched:",
            "if True:",
        ),
    ),
    mutant(
        "a-rebuilt-engine-cannot-finish-a-gate",
        "6.4",
        f"{GATES}test_c17_agreed_and_killed_before_dispatch_it_is_asked_again_and_done_once"
        "[propose_team]",
        ("hosts/gate_hooks.py", "approver = before or rebuilt_approver(gate)", "approver = before"),
    ),
    mutant(
        "a-stopped-gate-says-interrupted",
        "C10",
        f"{GATES}test_c10_stopped_while_it_runs_its_outcome_comes_as_a_follow_up",
        (
            "hosts/gate_hooks.py",
            '        message["content"] = texts.still_running(gate.name)\n',
            "",
        ),
    ),
    mutant(
        "a-gate-needs-a-registered-tool-for-its-retry",
        "R10",
        f"{GATES}test_decided_retry_it_is_done_once_more_by_an_engine_without_a_window"
        "[propose_work_items]",
        ("hosts/again.py", "{row.tool_name} - GATES)", "{row.tool_name})"),
    ),
    mutant(
        "a-gate-goes-on-with-the-ledger-down",
        "G7",
        f"{GATES}test_g7_with_the_ledger_down_the_effect_is_not_begun[propose_team]",
        (
            "hosts/gates.py",
            "            raise NotMade(texts.refused(str(exc))) from exc\n",
            "            return effect()\n",
        ),
    ),
    mutant(
        "an-agreement-is-good-for-another-gate",
        "G5",
        f"{GATES}test_g5_an_agreement_to_another_call_does_not_count[propose_team]",
        (
            "hosts/binding.py",
            "            lambda i: i in in_history or i in ledger_ids or i in in_inbox,\n",
            "            lambda i: False,\n",
        ),
        (
            "hosts/store_hooks.py",
            "if there is not None and not _counts(there, intent.intent_digest):",
            "if False:",
        ),
    ),
    # -- one engine of a session
    mutant(
        "a-closed-turn-keeps-its-session",
        "G9",
        "host/test_session_edges.py::"
        "test_g9_a_turn_whose_window_goes_away_gives_its_session_back_at_once",
        ("hosts/binding.py", "            await inner.aclose()\n", "            pass\n"),
    ),
    mutant(
        "two-engines-of-one-session",
        "G2",
        "host/test_one_engine.py"
        "::test_g2_a_window_whose_engine_was_replaced_and_the_new_one_share_one_thread",
        ("hosts/engine_hooks.py", "            binding.lead()\n", ""),
    ),
    mutant(
        "a-refused-deletion-kills-the-session",
        "G13",
        "host/test_one_engine.py::test_a_session_the_host_will_not_delete_goes_on",
        ("hosts/manager_hooks.py", "runtime.let_live(session_id)", "pass"),
    ),
    mutant(
        "a-deleted-session-comes-back",
        "C30",
        "host/test_one_engine.py"
        "::test_c30_a_session_deleted_while_its_tools_are_fetched_stays_deleted",
        (
            "hosts/opening.py",
            "            if self.parked.pop(session_id, None) is not None:",
            "            if True:",
        ),
    ),
    # -- what a call sent
    mutant(
        "a-swallowed-error-is-an-answer",
        "C04",
        f"{WITNESS}test_c04_a_swallowed_error_is_no_answer[dropped]",
        (
            "witness.py",
            "            if noted.doubt and noted.counts and not self",
            "            if False and not self",
        ),
    ),
    mutant(
        "a-refusal-settles-an-earlier-try",
        "C04",
        f"{WITNESS}test_c04_a_swallowed_error_is_no_answer[dropped-then-409]",
        ("witness.py", "t.what == what and t.accepted for t", "t.what == what for t"),
    ),
    mutant(
        "a-reply-that-breaks-off-is-a-reply",
        "C04",
        f"{WITNESS}test_c04_a_swallowed_error_is_no_answer[cut]",
        ("hosts/http_hooks.py", "if counting and not counting[-1].doubt:", "if False:"),
    ),
    mutant(
        "an-accepted-request-was-never-sent",
        "C04 C29",
        f"{WITNESS}test_c04_a_swallowed_error_is_no_answer[accepted-then-wrong]",
        ("witness.py", "self.tries[-1].accepted:", "False:"),
    ),
    mutant(
        "another-accounts-request-is-the-same",
        "C04",
        f"{WITNESS}test_c04_a_swallowed_error_is_no_answer[of-two-accounts]",
        (
            "hosts/http_hooks.py",
            "for name, value in request.headers.raw:",
            "for name, value in ():",
        ),
    ),
    mutant(
        "renewing-access-is-an-effect",
        "C29",
        f"{WITNESS}test_c04_a_swallowed_error_is_no_answer[token-then-no-scope]",
        (
            "hosts/http_hooks.py",
            "return isinstance(fields, dict) and not",
            "return not True and not",
        ),
    ),
)
