"""Every move of the table against the real record, and that there are no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from openworker_durable import finding as found
from openworker_durable import rows, verbs
from openworker_durable.errors import (
    AlreadyDecided,
    AlreadyRecorded,
    ApprovalSpent,
    NotOwner,
    Refused,
)
from openworker_durable.ledger import Ledger
from openworker_durable.models import Evidence, Execution, Intent
from openworker_durable.snapshot import Snapshot
from openworker_durable.states import MOVES, AuthorityKind, Decision, Move, Reason, State
from tests.contract.kit import (
    ME,
    OTHER,
    OUTCOMES,
    audits,
    decided,
    failed,
    in_state,
    intent,
    item,
    plain,
    row_of,
    started,
    succeeded,
    unknown,
)

Try = Callable[[Ledger, Intent], object]
D, S, F, U = State.DISPATCHED, State.SUCCEEDED, State.FAILED, State.UNKNOWN


def finishing(state: State) -> Try:
    return lambda led, what: led.run(verbs.finish, what.execution_id, 1, ME, OUTCOMES[state](), 5.0)


def deciding(decision: Decision) -> Try:
    return lambda led, what: led.run(
        verbs.decide, what.execution_id, 1, decision, "me", "note", 5.0
    )


def finding(state: State) -> Try:
    return lambda led, what: led.run(
        verbs.found_in_thread, what.execution_id, 1, ME, state, Snapshot("text"), 5.0
    )


def found_out(state: State) -> Try:
    return lambda led, what: led.run(
        found.found_out, what.execution_id, 1, 1, OUTCOMES[state](), "happened", 5.0
    )


def given(state: State) -> Try:
    said = Evidence(source="ops", event="e1", outcome=OUTCOMES[state]())
    return lambda led, what: led.run(found.give_evidence, what.execution_id, 1, said, 5.0)


TRIES: dict[tuple[str, State], Try] = {
    ("dispatch", D): lambda led, what: led.run(verbs.dispatch, what, item(), ME, 5.0),
    ("vouch", U): lambda led, what: led.run(verbs.vouch, what, Reason.LEGACY, "", ME, 5.0),
    ("finish", S): finishing(S),
    ("finish", F): finishing(F),
    ("finish", U): finishing(U),
    ("lose", U): lambda led, what: led.run(
        verbs.lose, what.execution_id, 1, ME, Reason.OWNER_DIED, 5.0
    ),
    ("found_in_thread", S): finding(S),
    ("found_in_thread", F): finding(F),
    ("found_out", S): found_out(S),
    ("found_out", F): found_out(F),
    ("give_evidence", S): given(S),
    ("give_evidence", F): given(F),
    ("decide", S): deciding(Decision.HAPPENED),
    ("decide", F): deciding(Decision.DROP),
    ("retry", D): lambda led, what: led.run(verbs.retry, what, ME, 5.0),
}
"""How each (verb, state after) of the table is asked for."""


def before(ledger: Ledger, move: Move) -> Intent:
    """Bring the record to where a move may begin."""
    if move.before is None:
        return intent()
    if move.verb == "retry":
        return decided(ledger, Decision.RETRY)
    return in_state(ledger, move.before)


def name(move: Move) -> str:
    return f"{move.verb}-{move.before.value if move.before else 'none'}-{move.after.value}"


@pytest.mark.parametrize("move", MOVES, ids=name)
def test_g10_every_move_lands_with_exactly_one_audit_row(ledger: Ledger, move: Move) -> None:
    what = before(ledger, move)
    told, commits = len(audits(ledger.path)) if ledger.commits else 0, ledger.commits
    TRIES[move.verb, move.after](ledger, what)
    attempt = 2 if move.next_attempt else 1
    assert row_of(ledger, what, attempt).state is move.after
    assert ledger.commits == commits + 1, "the move and its audit row commit together"
    new = audits(ledger.path)[told:]
    assert len(new) == 1
    assert new[0]["execution_id"] == what.execution_id
    assert new[0]["tool_call_id"] == what.tool_call_id
    assert (new[0]["session_id"], new[0]["tool"]) == ("s", "pay")
    assert new[0]["attempt"] == attempt
    assert new[0]["status"] == move.after.value
    made_by_word = {"decide": {S: "happened", F: "drop"}, "retry": {D: "retry"}}
    assert new[0]["recovery_decision"] == made_by_word.get(move.verb, {}).get(move.after)


def test_moves_are_all_exercised() -> None:
    assert {(m.verb, m.after) for m in MOVES} == set(TRIES)


REFUSALS: list[tuple[str, State, str, type[Refused] | None]] = [
    # verb, state after, how the row stands, what the refusal says (None: it says so otherwise)
    *[("dispatch", D, at, AlreadyRecorded) for at in ("dispatched", "succeeded", "failed",
                                                      "unknown", "retry", "happened", "drop")],
    *[("finish", to, "none", Refused) for to in (S, F, U)],
    *[("decide", to, at, AlreadyDecided) for to in (S, F)
      for at in ("succeeded", "failed", "happened", "drop", "retry")],
    *[("decide", to, at, Refused) for to in (S, F) for at in ("none", "dispatched")],
    *[("retry", D, at, Refused) for at in ("none", "dispatched", "succeeded", "failed",
                                           "unknown", "happened", "drop")],
]  # fmt: skip


def standing(ledger: Ledger, at: str) -> Intent:
    if at == "none":
        return intent()
    if at in {d.value for d in Decision}:
        return decided(ledger, Decision(at))
    return in_state(ledger, State(at))


def snapshot(ledger: Ledger, what: Intent) -> tuple[list[Execution], int]:
    there = ledger.known(rows.attempts(what.execution_id))
    return there, len(audits(ledger.path)) if ledger.commits else 0


@pytest.mark.parametrize(("verb", "after", "at", "error"), REFUSALS)
def test_every_other_move_is_refused_and_changes_nothing(
    ledger: Ledger, verb: str, after: State, at: str, error: type[Refused]
) -> None:
    what = standing(ledger, at)
    ledger.run(verbs.note, "s", "t", "stage", "status", "so that the tables are there")
    stood = snapshot(ledger, what)
    with pytest.raises(Refused) as refused:
        TRIES[verb, after](ledger, what)
    assert type(refused.value) is error
    assert refused.value.execution_id in str(refused.value)
    assert refused.value.found in str(refused.value)
    assert snapshot(ledger, what) == stood


@pytest.mark.parametrize("to", [S, F, U])
@pytest.mark.parametrize("at", [S, F])
def test_terminal_rows_never_change(ledger: Ledger, at: State, to: State) -> None:
    what = in_state(ledger, at)
    stood = row_of(ledger, what)
    assert finishing(to)(ledger, what) is at
    assert ledger.run(verbs.lose, what.execution_id, 1, ME, Reason.OWNER_DIED, 9.0) is False
    assert row_of(ledger, what) == stood


@pytest.mark.parametrize("at", ["succeeded", "failed", "unknown", "retry", "happened"])
def test_lose_moves_only_what_is_dispatched(ledger: Ledger, at: str) -> None:
    what = standing(ledger, at)
    stood = snapshot(ledger, what)
    assert ledger.run(verbs.lose, what.execution_id, 1, ME, Reason.OWNER_DIED, 9.0) is False
    assert finding(S)(ledger, what) is False
    assert snapshot(ledger, what) == stood


def test_g1_dispatch_of_an_existing_row_is_refused_whoever_asks(ledger: Ledger) -> None:
    what = started(ledger)
    for owner in (ME, OTHER):
        with pytest.raises(AlreadyRecorded, match="found dispatched, wanted no row"):
            ledger.run(verbs.dispatch, what, item(), owner, 2.0)
    assert len(ledger.fetch(rows.attempts(what.execution_id))) == 1


def test_g5_the_same_approval_item_cannot_authorise_twice(ledger: Ledger) -> None:
    ledger.run(verbs.dispatch, intent("call_1"), item("i1"), ME, 1.0)
    told = len(audits(ledger.path))
    with pytest.raises(ApprovalSpent, match="i1"):
        ledger.run(verbs.dispatch, intent("call_2", amount=99), item("i1"), ME, 2.0)
    assert ledger.known(rows.attempts(intent("call_2").execution_id)) == []
    assert len(audits(ledger.path)) == told
    assert ledger.run(verbs.dispatch, intent("call_2"), item("i2"), ME, 3.0) == 1


@pytest.mark.parametrize("kind", [k for k in AuthorityKind if k is not AuthorityKind.ITEM])
def test_g5_other_authorities_may_authorise_many(ledger: Ledger, kind: AuthorityKind) -> None:
    word = item().model_copy(update={"kind": kind, "ref": "same"})
    for call in ("call_1", "call_2"):
        assert ledger.run(verbs.dispatch, intent(call), word, ME, 1.0) == 1
        assert row_of(ledger, intent(call)).authority_kind is kind


def test_g5_an_item_that_started_an_attempt_stays_spent_after_it_failed(ledger: Ledger) -> None:
    what = intent()
    ledger.run(verbs.dispatch, what, item("i1"), ME, 1.0)
    ledger.run(verbs.finish, what.execution_id, 1, ME, failed(), 2.0)
    with pytest.raises(ApprovalSpent):
        ledger.run(verbs.dispatch, intent("call_2"), item("i1"), ME, 3.0)


def test_g9_only_the_owner_finishes(ledger: Ledger) -> None:
    what = started(ledger, owner=ME)
    with pytest.raises(NotOwner):
        ledger.run(verbs.finish, what.execution_id, 1, OTHER, succeeded(), 2.0)
    assert ledger.run(verbs.lose, what.execution_id, 1, OTHER, Reason.OWNER_DIED, 2.0) is False
    assert row_of(ledger, what).state is D
    assert ledger.run(verbs.finish, what.execution_id, 1, ME, unknown(), 3.0) is U
    with pytest.raises(NotOwner):
        ledger.run(verbs.finish, what.execution_id, 1, OTHER, succeeded(), 4.0)
    assert row_of(ledger, what).state is U


def test_the_sql_checks_refuse_words_that_no_enum_has(ledger: Ledger) -> None:
    what = started(ledger)
    with plain(ledger.path) as conn:
        for column in ("state", "decision", "authority_kind"):
            with pytest.raises(Exception, match="CHECK constraint failed"):
                conn.execute(
                    f"UPDATE tool_executions SET {column} = 'other' WHERE execution_id = ?",
                    (what.execution_id,),
                )
