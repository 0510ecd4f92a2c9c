"""Mutants of the adapter: what a host is wrapped in, and what recovery sees of its sessions."""

from __future__ import annotations

from tests.mutants.kit import Mutant, mutant

CALLS = "hosts/call_hooks.py"
TURNS = "hosts/engine_hooks.py"

HOST: tuple[Mutant, ...] = (
    # -- a reply, before its calls run
    mutant(
        "call-ids-not-made-unique",
        "G5 C02",
        "host/test_cases_calls.py::test_c02_across_a_restart_while_the_second_prompt_waits",
        ("hosts/binding.py", "        if old != new:\n", "        if False:\n"),
    ),
    mutant(
        "coverage-after-the-history",
        "G4",
        "host/test_mutant_gaps.py::test_g4_a_reply_is_covered_before_it_can_be_saved",
        (
            "hosts/binding.py",
            "coverage = await self.runtime.ledger.ask(",
            "self.runtime.ledger.defer(",
        ),
        (
            "hosts/binding.py",
            "            self.incarnation = coverage.incarnation\n        except LedgerError",
            "        except LedgerError",
        ),
    ),
    mutant(
        "thread-not-saved-before-dispatch",
        "G14",
        "host/test_session_first.py::test_killed_at_each_place[inside, after the effect-grant]",
        (
            CALLS,
            "            if protected and binding.save():\n",
            "            if protected:\n",
        ),
    ),
    mutant(
        "an-unsaved-thread-does-not-block",
        "G7 C12",
        "host/test_cases_recovery.py::test_c12_saving_the_thread_fails_again_and_again",
        (CALLS, 'binding.blocked = "the conversation cannot be saved"', "pass"),
    ),
    # -- consent
    mutant(
        "an-unwitnessed-approval-counts",
        "G4",
        "host/test_mutant_gaps.py::test_g4_an_approval_we_did_not_witness_runs_nothing_on_resume",
        (
            "hosts/items.py",
            'return Approval.ALLOWED if stamp_of(item).get("witnessed") else Approval.UNWITNESSED',
            "return Approval.ALLOWED",
        ),
    ),
    mutant(
        "an-approval-for-another-intent",
        "G5",
        "host/test_mutant_gaps.py::test_g5_an_approval_about_another_call_is_void",
        ("hosts/store_hooks.py", 'or stamp_of(item).get("intent") != intent_digest:', "or False:"),
    ),
    mutant(
        "a-changed-call-keeps-its-approval",
        "G5 C07",
        "host/test_cases_calls.py::test_c07_a_changed_call_never_runs[amount]",
        ("facts.py", "if prompt.intent_digest and prompt.intent_digest != digest:", "if False:"),
        (
            "facts.py",
            "if trailing and not prompt.intent_digest and self._covered_otherwise():",
            "if False:",
        ),
    ),
    mutant(
        "repeat-guard-off",
        "C32",
        "host/test_walks.py::test_walk_unsure_then_the_tool_is_proposed_again",
        (
            CALLS,
            "        return bool(binding.warning())\n",
            "        binding.repeat = None\n        return False\n",
        ),
    ),
    # -- the call
    mutant(
        "a-refused-dispatch-runs-anyway",
        "G7 C16",
        "host/test_cases_recovery.py::test_c16_ledger_down_before_dispatch",
        (
            CALLS,
            "                ticket.refusal = refusal\n                raise\n",
            "                return host(registry, name, arguments)\n",
        ),
    ),
    mutant(
        "a-misfit-is-an-attempt",
        "T3 C29",
        "host/test_cases_calls.py::test_c29_unknown_tool_and_bad_arguments_have_no_row",
        (CALLS, "            _bind(spec.func, arguments or {})\n", ""),
    ),
    mutant(
        "a-timeout-is-an-ordinary-error",
        "T12 C04",
        "host/test_cases_calls.py::test_c04_a_timeout_after_the_effect_halts_the_live_turn",
        (
            CALLS,
            '            binding.halted = True\n            return HELD, "unknown"\n        reason',
            "            return result, status\n        reason",
        ),
    ),
    mutant(
        "stop-leaves-prompts",
        "R C21",
        "host/test_session_turns.py::test_stop_voids_the_prompts_of_the_reply",
        (CALLS, "                if engine._cancel.is_set():\n", "                if False:\n"),
    ),
    mutant(
        "retry-without-the-guard",
        "G1 R10",
        "host/test_session_turns.py::test_retry_keeps_the_execution_id_and_counts_attempts",
        (
            "hosts/again.py",
            "await asyncio.to_thread(engine._execute_sync, call)",
            'engine.registry.execute(call.name, call.arguments), "ok"',
        ),
    ),
    # -- the turn
    mutant(
        "guard-skipped-on-resume",
        "G1 T11",
        "host/test_cases_calls.py::test_c02_across_a_restart_while_the_second_prompt_waits",
        (
            TURNS,
            "        if reply is not None and not reply.answered and not reply.user_line:\n",
            "        if reply is not None and not reply.answered and not reply.user_line:\n"
            "            engine._durable = None\n",
        ),
    ),
    mutant(
        "no-triage-on-a-message",
        "R C08",
        "host/test_mutant_gaps.py::test_c08_a_message_before_any_call_was_dispatched",
        (
            TURNS,
            "            return await binding.runtime.settler.triage(binding.port, trigger)",
            "            if trigger is Trigger.MESSAGE:\n"
            "                return Report()\n"
            "            return await binding.runtime.settler.triage(binding.port, trigger)",
        ),
    ),
    mutant(
        "a-turn-without-the-session-lock",
        "R C06",
        "host/test_mutant_gaps.py::test_r_no_turn_runs_without_the_session_lock",
        (TURNS, "hold_for_turn(binding.session_id)", 'hold_for_turn(binding.session_id + "?")'),
    ),
    mutant(
        "a-stale-engine-is-used",
        "R",
        "host/test_mutant_gaps.py::test_r_the_saved_thread_is_read_again_after_the_lock_was_taken",
        (TURNS, "                binding.reload_if_stale()\n", "                pass\n"),
    ),
    mutant(
        "who-takes-over-trusts-its-engine",
        "G2 R",
        "crash/test_kit_processes.py::test_g2_who_takes_over_reads_what_the_dead_process_saved",
        (
            "hosts/runtime.py",
            "                    binding.look_again()\n                yield",
            "                    pass\n                yield",
        ),
    ),
    mutant(
        "a-thread-is-only-what-the-index-names",
        "G2 R",
        "host/test_stale_engines.py::test_g2_a_thread_that_began_elsewhere_is_not_written_over",
        (
            "hosts/binding.py",
            "record.messages if record else store._read_jsonl(self.session_id) or []",
            "record.messages if record else self.engine.messages",
        ),
    ),
    mutant(
        "what-came-while-loading-counts-as-seen",
        "G2 R",
        "host/test_stale_engines.py::test_g2_what_is_saved_while_the_engine_is_loaded_is_read_again",
        ("hosts/manager_hooks.py", "                binding.seen = seen", "                pass"),
    ),
    mutant(
        "another-process-counts-as-dead",
        "G9 R7",
        "host/test_mutant_gaps.py::test_r7_a_call_of_another_live_process_is_left_alone",
        (
            "facts.py",
            "return Holder.ELSEWHERE if self._alive[row.owner] else Holder.DEAD",
            "return Holder.DEAD",
        ),
    ),
    mutant(
        "a-running-call-is-given-up",
        "R5 C10",
        "host/test_cases_recovery.py::test_c10_cancelled_while_the_tool_is_in_its_thread",
        (
            "facts.py",
            "return Holder.HERE_RUNNING if running else Holder.HERE_IDLE",
            "return Holder.HERE_IDLE",
        ),
    ),
    # -- the thread
    mutant(
        "follow-up-without-its-key",
        "R",
        "host/test_mutant_gaps.py::test_r_a_follow_up_is_looked_for_in_the_whole_thread",
        ("facts.py", "thread.follow_up_keys(messages)", "thread.follow_up_keys(messages[-1:])"),
    ),
    mutant(
        "a-follow-up-between-calls",
        "G14",
        "host/test_cases_calls.py::test_c32_the_second_send_waits_for_the_decision",
        ("settle.py", "if step.action is Action.FOLLOW_UP and not view.all_answered:", "if False:"),
    ),
    mutant(
        "a-placeholder-hides-a-row",
        "T1 C09",
        "host/test_cases_recovery.py::test_c09_a_placeholder_never_hides_a_row",
        (
            "facts.py",
            "if is_open or not answered or prompt.state is not Approval.NONE:",
            "if not answered:",
        ),
        ("facts.py", "        if row.execution_id not in seen:\n", "        if False:\n"),
    ),
    mutant(
        "the-hosts-own-start-is-ignored",
        "G4",
        "host/test_walks_detached.py::test_walk_detached_while_the_prompt_waits_then_resolved_alone",
        ("facts.py", "        return ref.name in self._alone\n", "        return False\n"),
    ),
    mutant(
        "a-withdrawn-call-starts",
        "R11 G12",
        "host/test_session_edges.py::test_a_call_of_a_turn_that_has_ended_can_not_start_any_more",
        ("guard.py", "            if not still():\n", "            if False:\n"),
    ),
    mutant(
        "a-deleted-session-runs-again",
        "C30",
        "host/test_session_edges.py::test_c30_retry_is_refused_where_the_session_was_deleted",
        ("verbs.py", "is Decision.RETRY and _is_deleted(conn, row)", "is Decision.RETRY and False"),
    ),
    mutant(
        "a-torn-save-is-appended-to",
        "C12",
        "host/test_session_edges.py::test_c12_a_save_that_failed_half_way_is_written_whole",
        ("hosts/store_hooks.py", "    if session_id in runtime.torn:\n", "    if False:\n"),
    ),
    mutant(
        "the-boundary-does-not-move",
        "R",
        "host/test_walks.py::test_walk_a_repair_before_the_boundary_moves_it",
        (
            "hosts/session.py",
            "                state.boundary_index += count\n",
            "                pass\n",
        ),
        (
            "hosts/session.py",
            'state["boundary_index"] = int(state["boundary_index"]) + count\n',
            "pass\n",
        ),
    ),
    # -- items
    mutant(
        "recovery-items-are-prompts",
        "R",
        "host/test_mutant_gaps.py::test_r_a_recovery_item_is_no_prompt_of_its_session",
        (
            "hosts/store_hooks.py",
            'return [i for i in items if i.kind != review.KIND and not stamp_of(i).get("notice")]',
            "return items",
        ),
    ),
    mutant(
        "no-tombstone",
        "C30",
        "host/test_mutant_gaps.py::test_c30_a_new_life_of_a_session_hears_nothing_of_the_old_one",
        (
            "hosts/manager_hooks.py",
            "runtime.ledger.run(verbs.tombstone, session_id, runtime.clock())",
            "pass",
        ),
    ),
    mutant(
        "acknowledged-before-it-is-saved",
        "G2 C12",
        "host/test_mutant_gaps.py::test_g2_a_result_that_is_not_on_disk_is_not_acknowledged",
        (
            CALLS,
            "                        binding.save(sync=False)\n",
            "                        binding.save(sync=False)\n"
            "                        binding.acknowledge_appended()\n",
        ),
    ),
)
