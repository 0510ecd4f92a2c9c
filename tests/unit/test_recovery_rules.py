"""The recovery table, line by line: each rule, each of its branches, and which wins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from openworker_durable.policy import Standing
from openworker_durable.recovery import (
    RULES,
    Action,
    Answer,
    Approval,
    Facts,
    Holder,
    Intact,
    Step,
    Trigger,
    decide,
    goes_on,
    rules_table,
)
from openworker_durable.states import Decision, State

A, T = Action, Trigger
ALL = tuple(Trigger)
NONE = Facts()
DISPATCHED = Facts(state=State.DISPATCHED, attempt=1, snapshot=False)
UNKNOWN = Facts(state=State.UNKNOWN, attempt=1, snapshot=False)
DONE = Facts(state=State.SUCCEEDED, attempt=1)
FAILED = Facts(state=State.FAILED, attempt=1)
HAPPENED = replace(DONE, decision=Decision.HAPPENED, snapshot=False)
DROPPED = replace(FAILED, decision=Decision.DROP, snapshot=False)
RETRY = replace(UNKNOWN, decision=Decision.RETRY)
NEWER = Facts(newer=True, attempt=1)
OTHERS = (T.BETWEEN, T.TURN_END, T.SWEEP)

Example = tuple[Facts, tuple[Trigger, ...], int, Action]


def each(facts: Facts, triggers: tuple[Trigger, ...], rule: int, action: Action) -> Example:
    return (facts, triggers, rule, action)


EXAMPLES: dict[str, Example] = {
    # 1: a newer protocol's row is never run
    "1 newer, unanswered": each(NEWER, ALL, 1, A.ANSWER_PROVISIONAL),
    "1 newer, answered": each(replace(NEWER, answer=Answer.PROVISIONAL), ALL, 1, A.ASK_PERSON),
    "1 newer, gone": each(replace(NEWER, answer=Answer.ABSENT), ALL, 1, A.ASK_PERSON),
    "1 newer, asked": each(
        replace(NEWER, answer=Answer.PROVISIONAL, item=True), ALL, 1, A.NOTHING),
    # 2: decided, or its outcome came after the provisional text
    "2 happened, unanswered": each(HAPPENED, ALL, 2, A.ANSWER_PROVISIONAL),
    "2 drop, unanswered": each(DROPPED, ALL, 2, A.ANSWER_PROVISIONAL),
    "2 retry, unanswered": each(RETRY, ALL, 2, A.ANSWER_PROVISIONAL),
    "2 second attempt, unanswered": each(replace(DONE, attempt=2), ALL, 2, A.ANSWER_PROVISIONAL),
    "2 result lost, unanswered": each(replace(DONE, snapshot=False), ALL, 2, A.ANSWER_PROVISIONAL),
    "2 follow-up due": each(
        replace(HAPPENED, answer=Answer.PROVISIONAL, follow_up_due=True), ALL, 2, A.FOLLOW_UP),
    "2 late outcome, follow-up due": each(
        replace(DONE, answer=Answer.OTHER, follow_up_due=True), ALL, 2, A.FOLLOW_UP),
    "2 gone from the thread, follow-up due": each(
        replace(HAPPENED, answer=Answer.ABSENT, follow_up_due=True), ALL, 2, A.FOLLOW_UP),
    "2 follow-up waits for the answer": each(
        replace(HAPPENED, follow_up_due=True), ALL, 2, A.ANSWER_PROVISIONAL),
    "2 follow-up there": each(replace(HAPPENED, answer=Answer.PROVISIONAL), ALL, 0, A.NOTHING),
    # 3: known by itself
    "3 succeeded": each(DONE, ALL, 3, A.REBUILD),
    "3 failed": each(FAILED, ALL, 3, A.REBUILD),
    "3 even uncovered": each(replace(DONE, covered=False), ALL, 3, A.REBUILD),
    "3 answered": each(replace(DONE, answer=Answer.RESULT), ALL, 0, A.NOTHING),
    # 4: changed or torn
    "4 differs, no row": each(replace(NONE, intact=Intact.DIFFERS), ALL, 4, A.VOUCH_CHANGED),
    "4 torn, no row": each(replace(NONE, intact=Intact.TORN), ALL, 4, A.VOUCH_CHANGED),
    "4 torn, uncovered": each(
        replace(NONE, intact=Intact.TORN, covered=False), ALL, 4, A.VOUCH_CHANGED),
    "4 differs, approval pending": each(
        replace(NONE, intact=Intact.DIFFERS, approval=Approval.PENDING), ALL, 4, A.VOUCH_CHANGED),
    "4 differs, no row, answered": each(
        replace(NONE, intact=Intact.DIFFERS, answer=Answer.OTHER), ALL, 11, A.NOTHING),
    "4 differs, succeeded": each(replace(DONE, intact=Intact.DIFFERS), ALL, 4, A.ANSWER_CHANGED),
    "4 differs, unknown": each(replace(UNKNOWN, intact=Intact.DIFFERS), ALL, 4, A.ANSWER_CHANGED),
    "4 differs, unknown, answered": each(
        replace(UNKNOWN, intact=Intact.DIFFERS, answer=Answer.OTHER), ALL, 4, A.ASK_PERSON),
    "4 differs, unknown, asked": each(
        replace(UNKNOWN, intact=Intact.DIFFERS, answer=Answer.OTHER, item=True), ALL, 4, A.HALT),
    "4 differs, retry decided, answered": each(
        replace(RETRY, intact=Intact.DIFFERS, answer=Answer.OTHER), ALL, 4, A.NOTHING),
    "4 differs, succeeded, answered": each(
        replace(DONE, intact=Intact.DIFFERS, answer=Answer.OTHER), ALL, 4, A.NOTHING),
    # 5: runs in this process
    "5 message": each(
        replace(DISPATCHED, holder=Holder.HERE_RUNNING), (T.MESSAGE,), 5, A.ANSWER_PROVISIONAL),
    "5 message, answered": each(
        replace(DISPATCHED, holder=Holder.HERE_RUNNING, answer=Answer.PROVISIONAL),
        (T.MESSAGE,), 5, A.NOTHING),
    "5 resume": each(
        replace(DISPATCHED, holder=Holder.HERE_RUNNING), (T.RESUME, T.RETRY_BUTTON), 5, A.JOIN),
    "5 resume, answered": each(
        replace(DISPATCHED, holder=Holder.HERE_RUNNING, answer=Answer.PROVISIONAL),
        (T.RESUME, T.RETRY_BUTTON), 5, A.NOTHING),
    "5 otherwise": each(
        replace(DISPATCHED, holder=Holder.HERE_RUNNING), OTHERS, 5, A.NOTHING),
    # 6: ran in this process
    "6 evidence": each(
        replace(DISPATCHED, holder=Holder.HERE_IDLE, evidence=True), ALL, 6, A.COMMIT_EVIDENCE),
    "6 evidence before the thread": each(
        replace(DISPATCHED, holder=Holder.HERE_IDLE, evidence=True, answer=Answer.RESULT),
        ALL, 6, A.COMMIT_EVIDENCE),
    "6 in the thread": each(
        replace(DISPATCHED, holder=Holder.HERE_IDLE, answer=Answer.RESULT),
        ALL, 6, A.SETTLE_FROM_THREAD),
    "6 neither": each(replace(DISPATCHED, holder=Holder.HERE_IDLE), ALL, 6, A.LOSE),
    "6 a placeholder is no result": each(
        replace(DISPATCHED, holder=Holder.HERE_IDLE, answer=Answer.OTHER), ALL, 6, A.LOSE),
    # 7: runs in another live process
    "7": each(replace(DISPATCHED, holder=Holder.ELSEWHERE), ALL, 7, A.LEAVE_ALONE),
    "7 whatever the thread says": each(
        replace(DISPATCHED, holder=Holder.ELSEWHERE, answer=Answer.OTHER), ALL, 7, A.LEAVE_ALONE),
    "7 changed": each(
        replace(DISPATCHED, holder=Holder.ELSEWHERE, intact=Intact.DIFFERS),
        ALL, 7, A.LEAVE_ALONE),
    # 8: its owner is dead
    "8 in the thread": each(
        replace(DISPATCHED, holder=Holder.DEAD, answer=Answer.RESULT),
        ALL, 8, A.SETTLE_FROM_THREAD),
    "8 not there": each(replace(DISPATCHED, holder=Holder.DEAD), ALL, 8, A.LOSE),
    "8 a placeholder is no result (C09)": each(
        replace(DISPATCHED, holder=Holder.DEAD, answer=Answer.OTHER), ALL, 8, A.LOSE),
    "8 changed": each(
        replace(DISPATCHED, holder=Holder.DEAD, intact=Intact.TORN), ALL, 8, A.LOSE),
    # 9: unknown, undecided
    "9 unanswered": each(UNKNOWN, ALL, 9, A.ANSWER_PROVISIONAL),
    "9 answered": each(replace(UNKNOWN, answer=Answer.PROVISIONAL), ALL, 9, A.ASK_PERSON),
    "9 a placeholder hides nothing (C09)": each(
        replace(UNKNOWN, answer=Answer.OTHER), ALL, 9, A.ASK_PERSON),
    "9 gone from the thread": each(
        replace(UNKNOWN, answer=Answer.ABSENT), ALL, 9, A.ASK_PERSON),
    "9 asked": each(
        replace(UNKNOWN, answer=Answer.PROVISIONAL, item=True), ALL, 9, A.HALT),
    "9 to be looked up": each(
        replace(UNKNOWN, answer=Answer.PROVISIONAL, standing=Standing.PROBE),
        ALL, 9, A.SCHEDULE_PROBE),
    "9 being looked up": each(
        replace(UNKNOWN, answer=Answer.PROVISIONAL, standing=Standing.PROBING), ALL, 9, A.HALT),
    "9 by policy, between": each(
        replace(UNKNOWN, answer=Answer.PROVISIONAL, standing=Standing.AGAIN),
        (T.BETWEEN,), 9, A.RETRY),
    "9 by policy, otherwise": each(
        replace(UNKNOWN, answer=Answer.PROVISIONAL, standing=Standing.AGAIN),
        tuple(t for t in ALL if t is not T.BETWEEN), 9, A.NOTHING),
    "9 by policy, its tool not seen yet": each(
        replace(UNKNOWN, answer=Answer.PROVISIONAL, standing=Standing.LATER), ALL, 9, A.NOTHING),
    "9 by policy, a person is asked already": each(
        replace(UNKNOWN, answer=Answer.PROVISIONAL, standing=Standing.AGAIN, item=True),
        ALL, 9, A.HALT),
    "9 by policy, gone from the thread": each(
        replace(UNKNOWN, answer=Answer.ABSENT, standing=Standing.AGAIN), ALL, 9, A.ASK_PERSON),
    # 10: decided retry
    "10 between": each(
        replace(RETRY, answer=Answer.PROVISIONAL), (T.BETWEEN,), 10, A.RETRY),
    "10 also after a new message": each(
        replace(RETRY, answer=Answer.PROVISIONAL, user_line=True), (T.BETWEEN,), 10, A.RETRY),
    "10 waits for its point": each(
        replace(RETRY, answer=Answer.PROVISIONAL),
        tuple(t for t in ALL if t is not T.BETWEEN), 10, A.NOTHING),
    # 11: never started
    "11 resume": each(NONE, (T.RESUME, T.RETRY_BUTTON), 11, A.PROCEED),
    "11 resume, allowed": each(
        replace(NONE, approval=Approval.ALLOWED), (T.RESUME, T.RETRY_BUTTON), 11, A.PROCEED),
    "11 no prompt, otherwise": each(NONE, OTHERS, 11, A.NOTHING),
    "11 pending, otherwise": each(
        replace(NONE, approval=Approval.PENDING), OTHERS, 11, A.NOTHING),
    "11 waits (C32)": each(
        replace(NONE, waits=True), tuple(t for t in ALL if t is not T.MESSAGE), 11, A.HALT),
    "11 message": each(NONE, (T.MESSAGE,), 11, A.ANSWER_NOT_STARTED),
    "11 message, refused": each(
        replace(NONE, approval=Approval.REFUSED), (T.MESSAGE,), 11, A.ANSWER_NOT_STARTED),
    "11 message while another waits (C32)": each(
        replace(NONE, waits=True), (T.MESSAGE,), 11, A.ANSWER_NOT_STARTED),
    "11 user line": each(replace(NONE, user_line=True), ALL, 11, A.ANSWER_NOT_STARTED),
    "11 message, pending": each(
        replace(NONE, approval=Approval.PENDING), (T.MESSAGE,), 11, A.VOID_PROMPT),
    "11 user line, allowed": each(
        replace(NONE, approval=Approval.ALLOWED, user_line=True), ALL, 11, A.VOID_PROMPT),
    "11 message, unwitnessed": each(
        replace(NONE, approval=Approval.UNWITNESSED), (T.MESSAGE,), 11, A.VOID_PROMPT),
    "11 answered, pending": each(
        replace(NONE, answer=Answer.OTHER, approval=Approval.PENDING), ALL, 11, A.VOID_PROMPT),
    "11 answered, allowed (C21)": each(
        replace(NONE, answer=Answer.OTHER, approval=Approval.ALLOWED), ALL, 11, A.VOID_PROMPT),
    "11 answered": each(replace(NONE, answer=Answer.OTHER), ALL, 11, A.NOTHING),
    "11 sweep, allowed (C17)": each(
        replace(NONE, approval=Approval.ALLOWED), (T.SWEEP,), 11, A.ASK_AGAIN),
    "11 sweep, unwitnessed": each(
        replace(NONE, approval=Approval.UNWITNESSED), (T.SWEEP,), 11, A.ASK_AGAIN),
    "11 sweep, refused (C18)": each(
        replace(NONE, approval=Approval.REFUSED), (T.SWEEP,), 11, A.NOTHING),
    "11 turn ends, allowed meanwhile": each(
        replace(NONE, approval=Approval.ALLOWED), (T.TURN_END,), 11, A.PROCEED),
    "11 turn ends, refused meanwhile": each(
        replace(NONE, approval=Approval.REFUSED), (T.TURN_END,), 11, A.PROCEED),
    "11 between, allowed": each(
        replace(NONE, approval=Approval.ALLOWED), (T.BETWEEN,), 11, A.NOTHING),
    # 12: from before the ledger, and still asked about
    "12": each(
        replace(NONE, covered=False, approval=Approval.PENDING), ALL, 12, A.ADMIT),
    "12 also with a user line": each(
        replace(NONE, covered=False, approval=Approval.PENDING, user_line=True),
        ALL, 12, A.ADMIT),
    # 13: from before the ledger
    "13": each(replace(NONE, covered=False), ALL, 13, A.VOUCH_LEGACY),
    "13 allowed then (G4)": each(
        replace(NONE, covered=False, approval=Approval.ALLOWED), ALL, 13, A.VOUCH_LEGACY),
    "13 unwitnessed (G4)": each(
        replace(NONE, covered=False, approval=Approval.UNWITNESSED), ALL, 13, A.VOUCH_LEGACY),
    "13 refused": each(
        replace(NONE, covered=False, approval=Approval.REFUSED), ALL, 13, A.VOUCH_LEGACY),
    "13 answered": each(
        replace(NONE, covered=False, answer=Answer.OTHER), ALL, 11, A.NOTHING),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_rule(name: str) -> None:
    facts, triggers, rule, action = EXAMPLES[name]
    assert {t: decide(facts, t) for t in triggers} == {t: Step(rule, action) for t in triggers}


@pytest.mark.parametrize(
    ("first", "facts"),
    [
        (1, replace(HAPPENED, newer=True, follow_up_due=True)),
        (1, replace(DISPATCHED, newer=True, holder=Holder.DEAD)),
        (1, replace(DONE, newer=True)),
        (1, replace(RETRY, newer=True, answer=Answer.PROVISIONAL)),
        (1, replace(DONE, newer=True, intact=Intact.DIFFERS)),
        (2, replace(HAPPENED, intact=Intact.DIFFERS)),
        (2, replace(RETRY, answer=Answer.PROVISIONAL, follow_up_due=True)),
        (2, replace(DONE, attempt=2, intact=Intact.DIFFERS)),
        (4, replace(DONE, intact=Intact.DIFFERS)),
        (4, replace(NONE, intact=Intact.DIFFERS, covered=False, approval=Approval.PENDING)),
        (4, replace(UNKNOWN, intact=Intact.TORN)),
        (11, replace(NONE, approval=Approval.PENDING)),
        (12, replace(NONE, covered=False, approval=Approval.PENDING)),
    ],
)
def test_the_first_rule_that_matches_wins(first: int, facts: Facts) -> None:
    for trigger in Trigger:
        assert decide(facts, trigger).rule == first
        later = [r.number for r in RULES if r.pick(facts, trigger) is not None]
        assert later[0] == first


def test_precedence_is_really_asked_for() -> None:
    """Several of the facts above match more than one line, so that order matters."""
    both = replace(NONE, approval=Approval.PENDING)
    assert [r.number for r in RULES if r.pick(both, T.RESUME)] == [11, 12, 13]
    newer = replace(HAPPENED, newer=True)
    assert [r.number for r in RULES if r.pick(newer, T.RESUME)] == [1, 2]


def test_triage_voids_prompts_of_answered_calls_also_of_changed_ones() -> None:
    """Design, section 5: any triage voids prompts of answered calls."""
    facts = replace(NONE, intact=Intact.DIFFERS, answer=Answer.OTHER, approval=Approval.PENDING)
    assert {decide(facts, t).action for t in Trigger} == {A.VOID_PROMPT}


def test_rule_14_goes_on_only_when_nothing_is_left() -> None:
    cases = [(a, n, m) for a in (True, False) for n in (True, False) for m in (True, False)]
    said = {c: goes_on(answered=c[0], nothing_open=c[1], model_called=c[2]) for c in cases}
    assert [c for c, yes in said.items() if yes] == [(True, True, False)]


def test_every_rule_and_every_action_has_an_example() -> None:
    assert [r.number for r in RULES] == list(range(1, 15))
    rules = {rule for _, _, rule, _ in EXAMPLES.values()}
    assert rules == {0, *range(1, 14)}
    assert {action for _, _, _, action in EXAMPLES.values()} == set(Action)


def test_rules_table_has_a_line_for_each_rule() -> None:
    lines = rules_table().splitlines()[2:]
    assert [line.split("|")[1].strip() for line in lines] == [str(r.number) for r in RULES]
    assert all(line.count("|") == 6 for line in lines)
