"""What holds for every case that recovery can meet, and that recovery comes to rest."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from openworker_durable.recovery import (
    GOING_ON,
    IN_TURN,
    Action,
    Answer,
    Approval,
    Facts,
    Holder,
    Intact,
    Trigger,
    decide,
)
from openworker_durable.states import Decision, State

RESTING = {
    Action.NOTHING, Action.LEAVE_ALONE, Action.HALT, Action.PROCEED, Action.RETRY,
}  # fmt: skip
KNOWN = (State.SUCCEEDED, State.FAILED)
LIVE = {Approval.PENDING, Approval.ALLOWED, Approval.UNWITNESSED}
MOST_STEPS = 12

ANY_FACTS = st.builds(
    Facts,
    state=st.none() | st.sampled_from(State),
    decision=st.none() | st.sampled_from(Decision),
    attempt=st.integers(0, 3),
    newer=st.booleans(),
    answer=st.sampled_from(Answer),
    intact=st.sampled_from(Intact),
    covered=st.booleans(),
    approval=st.sampled_from(Approval),
    holder=st.sampled_from(Holder),
    evidence=st.booleans(),
    item=st.booleans(),
    follow_up_due=st.booleans(),
    user_line=st.booleans(),
    waits=st.booleans(),
    snapshot=st.booleans(),
)


@settings(max_examples=3000)
@given(ANY_FACTS, st.sampled_from(Trigger))
def test_g3_g4_g5_g9_what_no_facts_may_lead_to(f: Facts, trigger: Trigger) -> None:
    action = decide(f, trigger).action
    if action is Action.RETRY:
        assert f.decision is Decision.RETRY
        assert f.state is State.UNKNOWN
        assert trigger in IN_TURN
        assert not f.newer
        assert not f.changed
    if action is Action.PROCEED:
        assert f.state is None
        assert f.covered
        assert not f.changed
        assert f.unanswered
        assert not f.user_line
        assert not f.waits
        assert not f.newer
        assert trigger in GOING_ON | {Trigger.TURN_END}
    if action is Action.REBUILD:
        assert f.state in KNOWN
        assert f.intact is Intact.SAME
        assert f.decision is None
        assert f.unanswered
        assert not f.newer
    if action is Action.LOSE:
        assert f.state is State.DISPATCHED
        assert f.holder not in (Holder.HERE_RUNNING, Holder.ELSEWHERE)
        assert not (f.holder is Holder.HERE_IDLE and f.evidence)
        assert f.answer is not Answer.RESULT
    if action is Action.JOIN:
        assert f.holder is Holder.HERE_RUNNING
    if action in (Action.VOUCH_CHANGED, Action.VOUCH_LEGACY, Action.ADMIT):
        assert f.state is None
        assert f.unanswered
    if action.value.startswith("answer_") or action is Action.REBUILD:
        assert f.unanswered, "one answer per call"
    if action is Action.FOLLOW_UP:
        assert f.follow_up_due
        assert not f.unanswered
    if action is Action.ASK_PERSON:
        assert not f.item
        assert f.newer or f.undecided
    if action is Action.VOID_PROMPT:
        assert f.approval in LIVE
    if f.holder is Holder.ELSEWHERE and f.state is State.DISPATCHED and not f.newer:
        assert action in (Action.LEAVE_ALONE, Action.FOLLOW_UP) or f.decision is not None


# -- coming to rest
def _row_facts() -> Iterator[Facts]:
    """Yield the rows there can be: state, decision, holder, evidence, snapshot in accord."""
    for attempt in (1, 2):
        for holder in (Holder.HERE_RUNNING, Holder.HERE_IDLE, Holder.ELSEWHERE, Holder.DEAD):
            for evidence in (False, True) if holder is Holder.HERE_IDLE else (False,):
                yield Facts(
                    state=State.DISPATCHED, attempt=attempt, holder=holder, evidence=evidence,
                    snapshot=False,
                )  # fmt: skip
        for decision in (None, Decision.RETRY):
            yield Facts(state=State.UNKNOWN, decision=decision, attempt=attempt, snapshot=False)
        for state, made in zip(KNOWN, (Decision.HAPPENED, Decision.DROP), strict=True):
            yield Facts(state=state, decision=made, attempt=attempt, snapshot=False)
            for shot in (True, False):
                yield Facts(state=state, attempt=attempt, snapshot=shot)
        yield Facts(newer=True, attempt=attempt)


def starts() -> Iterator[Facts]:
    """Yield every case that a look at a session can show."""
    places = list(itertools.product(Intact, (True, False), (True, False), (True, False)))
    for row, answer, (intact, covered, line, waits) in itertools.product(
        [Facts(snapshot=False), *_row_facts()], Answer, places
    ):
        if answer is Answer.ABSENT and intact is not Intact.SAME:
            continue
        base = replace(
            row, answer=answer, intact=intact, covered=covered, user_line=line, waits=waits
        )
        if row.state is None and not row.newer:
            for approval in Approval:
                yield replace(base, approval=approval)
            continue
        for item, due in itertools.product((True, False), (True, False)):
            if due and not may_be_due(base):
                continue
            yield replace(base, item=item, follow_up_due=due)


def may_be_due(f: Facts) -> bool:
    """Say whether a follow-up can be missing: of this attempt, or of a retry before it."""
    own = f.decision in (Decision.HAPPENED, Decision.DROP) or (
        f.known and f.answer not in (Answer.NONE, Answer.RESULT)
    )
    return own or (f.attempt > 1 and f.state is not State.DISPATCHED and not f.newer)


def after(f: Facts, action: Action) -> list[Facts]:
    """Return every case that the step can leave behind, as the host and the ledger make it."""
    known = [replace(f, state=s, holder=Holder.NOBODY, evidence=False) for s in KNOWN]
    unknown = replace(f, state=State.UNKNOWN, holder=Holder.NOBODY, evidence=False)
    ended = [replace(k, snapshot=shot) for k in known for shot in (True, False)]
    late = [replace(k, follow_up_due=may_be_due(k)) for k in ended]
    told = replace(f, answer=Answer.PROVISIONAL)
    other = replace(f, answer=Answer.OTHER)
    vouched = replace(f, state=State.UNKNOWN, attempt=1)
    changed = replace(vouched, approval=Approval.REFUSED)
    return {
        Action.ANSWER_PROVISIONAL: [replace(told, follow_up_due=f.follow_up_due or f.known)],
        Action.ANSWER_CHANGED: [replace(other, follow_up_due=f.follow_up_due or f.known)],
        Action.ANSWER_NOT_STARTED: [other],
        Action.VOID_PROMPT: [replace(f, approval=a) for a in (Approval.NONE, Approval.REFUSED)],
        Action.FOLLOW_UP: [replace(f, follow_up_due=False)],
        Action.REBUILD: [replace(f, answer=Answer.RESULT), replace(told, follow_up_due=True)],
        Action.VOUCH_CHANGED: [changed, replace(changed, intact=Intact.SAME)],
        Action.VOUCH_LEGACY: [vouched],
        Action.ASK_PERSON: [replace(f, item=True)],
        Action.ASK_AGAIN: [replace(f, approval=Approval.PENDING)],
        Action.ADMIT: [replace(f, covered=True)],
        Action.LOSE: [unknown],
        Action.SETTLE_FROM_THREAD: [replace(k, snapshot=True) for k in known],
        Action.COMMIT_EVIDENCE: [*late, unknown],
        Action.JOIN: [*late, unknown],
    }[action]


def rests(f: Facts, trigger: Trigger, seen: dict[Facts, int]) -> int:
    """Return how many steps recovery takes from here at most; each is taken, none twice."""
    if f in seen:
        assert seen[f] >= 0, f"recovery goes in a circle at {f} on {trigger}"
        return seen[f]
    seen[f] = -1
    action = decide(f, trigger).action
    steps = 0
    if action not in RESTING:
        nexts = after(f, action)
        assert f not in nexts, f"{action} changes nothing at {f}"
        steps = 1 + max(rests(n, trigger, seen) for n in nexts)
    seen[f] = steps
    return steps


def test_trap_1_recovery_comes_to_rest_from_everywhere() -> None:
    found = list(starts())
    assert len(found) > 5_000
    longest = 0
    for trigger in Trigger:
        seen: dict[Facts, int] = {}
        longest = max(longest, *(rests(f, trigger, seen) for f in found))
    assert 3 <= longest <= MOST_STEPS


def at_rest(f: Facts, trigger: Trigger) -> list[Facts]:
    action = decide(f, trigger).action
    if action in RESTING:
        return [f]
    return [end for n in after(f, action) for end in at_rest(n, trigger)]


def test_g14_c08_after_a_new_message_every_call_is_answered_or_held_elsewhere() -> None:
    for f in starts():
        for end in at_rest(f, Trigger.MESSAGE):
            held = end.state is State.DISPATCHED and end.holder is Holder.ELSEWHERE
            assert held or not end.unanswered, (f, end)
            assert end.approval not in LIVE or end.state is not None or end.changed


def test_g3_c19_what_is_unknown_is_asked_about_wherever_recovery_rests() -> None:
    for f in starts():
        for trigger in Trigger:
            for end in at_rest(f, trigger):
                if end.undecided or end.newer:
                    assert end.item
                    assert not end.unanswered
                dead = end.state is State.DISPATCHED and end.holder in (
                    Holder.DEAD, Holder.HERE_IDLE)  # fmt: skip
                assert not dead, "a dead owner's attempt never stays dispatched (G9)"
