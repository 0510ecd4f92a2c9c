"""What each verb of the record promises beyond its move."""

from __future__ import annotations

from typing import Any

import pytest

from openworker_durable import rows, verbs
from openworker_durable.errors import AlreadyDecided, AlreadyRecorded, Refused
from openworker_durable.ledger import Ledger
from openworker_durable.models import Authority, Outcome
from openworker_durable.snapshot import encode
from openworker_durable.states import AuthorityKind, Decision, Reason, State
from tests.contract.kit import (
    ME,
    OTHER,
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
    table,
    unknown,
)

S, F, U = State.SUCCEEDED, State.FAILED, State.UNKNOWN


def told(ledger: Ledger, stage: str) -> list[dict[str, Any]]:
    return [row for row in audits(ledger.path) if row["stage"] == stage]


# -- two runs of one automation's slot
@pytest.mark.parametrize("kind", list(AuthorityKind))
def test_g5_a_slot_that_another_run_has_taken_needs_a_persons_word(
    ledger: Ledger, kind: AuthorityKind
) -> None:
    """Both looked before either had made a call: who dispatches first has the slot."""
    first = intent(session="one", occurrence="rent@9")
    ledger.run(verbs.dispatch, first, Authority(kind=AuthorityKind.RULE), ME, 1.0)
    second = intent(session="two", occurrence="rent@9")
    authority = Authority(kind=kind, ref="i" if kind is AuthorityKind.ITEM else "")
    if kind in (AuthorityKind.ITEM, AuthorityKind.PROMPT):
        assert ledger.run(verbs.dispatch, second, authority, OTHER, 2.0) == 1
        return
    with pytest.raises(Refused, match="another run of the same slot"):
        ledger.run(verbs.dispatch, second, authority, OTHER, 2.0)
    assert ledger.known(rows.attempts(second.execution_id)) == []
    other_slot = intent(session="two", occurrence="rent@10")
    assert ledger.run(verbs.dispatch, other_slot, authority, OTHER, 3.0) == 1
    more = intent("call_2", session="one", occurrence="rent@9")
    assert ledger.run(verbs.dispatch, more, authority, ME, 4.0) == 1, "the run that has it goes on"


# -- dispatch keeps what is known of the call
def test_dispatch_keeps_the_call_its_authority_and_its_owner(ledger: Ledger) -> None:
    what = intent(occurrence="task:9", linked="x-old", policy="manual")
    ledger.run(verbs.dispatch, what, item("i1"), ME, 7.0)
    row = row_of(ledger, what)
    assert (row.session_id, row.incarnation, row.tool_call_id) == ("s", "life", "call_1")
    assert (row.tool_source, row.tool_name, row.intent_digest) == (
        "host",
        "pay",
        what.intent_digest,
    )
    assert (row.authority_kind, row.authority_ref) == (AuthorityKind.ITEM, "i1")
    assert (row.owner, row.occurrence, row.linked, row.preview) == (
        ME, "task:9", "x-old", "amount: 10")  # fmt: skip
    assert (row.dispatched_at, row.ended_at, row.acknowledged_at) == (7.0, None, None)
    assert (row.reason, row.superseded, row.decision) == ("started", False, None)
    assert "x-old" in told(ledger, "dispatched")[0]["reason"]


def test_finish_keeps_the_result_and_its_flags(ledger: Ledger) -> None:
    what = started(ledger)
    shot = encode({"ok": (1, 2), "_display": {"k": 1}})
    outcome = Outcome(state=S, reason=Reason.RETURNED, snapshot=shot, detail="d" * 500)
    ledger.run(verbs.finish, what.execution_id, 1, ME, outcome, 2.0)
    row = row_of(ledger, what)
    assert (row.state, row.reason, row.ended_at) == (S, "returned", 2.0)
    assert (row.snapshot_digest, row.lossy, len(row.detail)) == (shot.digest, False, 200)
    stored = ledger.first(rows.stored_snapshot(what.execution_id, 1))
    assert stored is not None
    assert (stored.text, stored.display) == (shot.text, shot.display)


# -- late outcomes
@pytest.mark.parametrize("outcome", [succeeded(), failed()])
def test_c10_a_late_outcome_settles_an_undecided_row(ledger: Ledger, outcome: Outcome) -> None:
    what = started(ledger)
    ledger.run(verbs.lose, what.execution_id, 1, ME, Reason.OWNER_DIED, 2.0)
    assert ledger.run(verbs.finish, what.execution_id, 1, ME, outcome, 3.0) is outcome.state
    row = row_of(ledger, what)
    assert (row.state, row.reason, row.decision) == (outcome.state, "late", None)
    assert table(ledger.path, "execution_evidence") == []


@pytest.mark.parametrize(
    ("decision", "outcome", "word"),
    [
        (Decision.HAPPENED, succeeded(), "agrees"),
        (Decision.HAPPENED, failed(), "contradicts"),
        (Decision.DROP, succeeded(), "contradicts"),
        (Decision.DROP, failed(), "agrees"),
        (Decision.RETRY, succeeded(), "contradicts"),
    ],
)
def test_g10_a_late_outcome_of_a_decided_row_is_evidence_once(
    ledger: Ledger, decision: Decision, outcome: Outcome, word: str
) -> None:
    what = decided(ledger, decision)
    stood = row_of(ledger, what)
    for at in (4.0, 5.0):
        found = ledger.run(verbs.finish, what.execution_id, 1, ME, outcome, at)
        assert found is stood.state
    assert row_of(ledger, what) == stood
    (evidence,) = ledger.fetch(rows.evidence(what.execution_id))
    assert (evidence["attempt"], evidence["state"], evidence["at"]) == (1, outcome.state.value, 4.0)
    (line,) = told(ledger, "late_evidence")
    assert word in line["reason"]
    assert (line["execution_id"], line["attempt"]) == (what.execution_id, 1)


def test_g10_other_evidence_is_kept_beside_the_first(ledger: Ledger) -> None:
    what = decided(ledger, Decision.DROP)
    for outcome in (succeeded("one"), succeeded("two"), failed("one")):
        ledger.run(verbs.finish, what.execution_id, 1, ME, outcome, 4.0)
    assert len(ledger.fetch(rows.evidence(what.execution_id))) == 3
    assert len(told(ledger, "late_evidence")) == 3


def test_a_superseded_attempt_that_ends_late_is_evidence(ledger: Ledger) -> None:
    what = decided(ledger, Decision.RETRY)
    ledger.run(verbs.retry, what, ME, 4.0)
    first, second = row_of(ledger, what), row_of(ledger, what, 2)
    ledger.run(verbs.finish, what.execution_id, 1, ME, succeeded(), 5.0)
    assert (row_of(ledger, what), row_of(ledger, what, 2)) == (first, second)
    assert len(ledger.fetch(rows.evidence(what.execution_id))) == 1


def test_the_same_outcome_written_again_is_nothing_new(ledger: Ledger) -> None:
    what = started(ledger)
    for at in (2.0, 3.0):
        assert ledger.run(verbs.finish, what.execution_id, 1, ME, succeeded(), at) is S
    assert len(told(ledger, "outcome")) == 1
    assert table(ledger.path, "execution_evidence") == []
    ledger.run(verbs.finish, what.execution_id, 1, ME, unknown(), 4.0)
    assert row_of(ledger, what).ended_at == 2.0


def test_an_unknown_row_that_ends_unknown_again_stays_as_it_is(ledger: Ledger) -> None:
    what = in_state(ledger, U)
    stood = row_of(ledger, what)
    assert ledger.run(verbs.finish, what.execution_id, 1, ME, unknown(), 9.0) is U
    assert row_of(ledger, what) == stood


# -- decisions
def test_c20_the_first_decision_wins_and_there_is_one_audit_row(ledger: Ledger) -> None:
    what = in_state(ledger, U)
    won = ledger.run(verbs.decide, what.execution_id, 1, Decision.DROP, "inbox", "no", 3.0)
    for decision in (Decision.RETRY, Decision.DROP, Decision.HAPPENED, Decision.UNSURE):
        with pytest.raises(AlreadyDecided, match="drop"):
            ledger.run(verbs.decide, what.execution_id, 1, decision, "cli", "", 4.0)
    row = row_of(ledger, what)
    assert row == won
    assert (row.decision, row.decided_by, row.decided_at) == (Decision.DROP, "inbox", 3.0)
    assert (row.state, row.reason, row.decision_note) == (F, "decided", "no")
    assert row.snapshot_digest is None
    (line,) = told(ledger, "decision")
    assert (line["recovery_decision"], line["status"]) == ("drop", "failed")
    assert "inbox" in line["reason"]


def test_unsure_moves_nothing_but_is_audited(ledger: Ledger) -> None:
    what = in_state(ledger, U)
    stood = row_of(ledger, what)
    for _ in range(2):
        ledger.run(verbs.decide, what.execution_id, 1, Decision.UNSURE, "me", "hm", 3.0)
    assert row_of(ledger, what) == stood
    assert [x["recovery_decision"] for x in told(ledger, "decision")] == ["unsure", "unsure"]
    ledger.run(verbs.decide, what.execution_id, 1, Decision.HAPPENED, "me", "", 4.0)
    assert row_of(ledger, what).state is S


def test_g3_retry_decided_leaves_the_row_unknown(ledger: Ledger) -> None:
    row = row_of(ledger, decided(ledger, Decision.RETRY))
    assert (row.state, row.decision, row.reason) == (U, Decision.RETRY, "ambiguous")
    assert row.superseded is False


def test_c07_a_changed_call_cannot_be_decided_retry(ledger: Ledger) -> None:
    what = intent()
    ledger.run(verbs.vouch, what, Reason.CHANGED, "its arguments changed", ME, 1.0)
    with pytest.raises(Refused, match="changed"):
        ledger.run(verbs.decide, what.execution_id, 1, Decision.RETRY, "me", "", 2.0)
    assert row_of(ledger, what).undecided
    ledger.run(verbs.decide, what.execution_id, 1, Decision.DROP, "me", "", 3.0)


def test_c19_a_call_that_the_thread_lost_cannot_be_decided_retry(ledger: Ledger) -> None:
    """Its item offers no retry (review.decisions_offered); another surface must not either."""
    what = intent()
    ledger.run(verbs.vouch, what, Reason.LOST_THREAD, "", ME, 1.0)
    with pytest.raises(Refused):
        ledger.run(verbs.decide, what.execution_id, 1, Decision.RETRY, "me", "", 2.0)


def test_c24_notes_and_reasons_are_cut(ledger: Ledger) -> None:
    what = in_state(ledger, U)
    ledger.run(verbs.decide, what.execution_id, 1, Decision.DROP, "b" * 900, "n" * 5000, 3.0)
    assert len(row_of(ledger, what).decision_note) == 2000
    assert all(len(line["reason"]) <= 500 for line in audits(ledger.path))


def test_g10_a_decisions_note_is_not_in_the_audit(ledger: Ledger) -> None:
    what = in_state(ledger, U)
    ledger.run(verbs.decide, what.execution_id, 1, Decision.DROP, "me", "canary", 3.0)
    assert "canary" not in str(audits(ledger.path))


# -- retries
def test_g3_g5_retry_supersedes_once_with_an_authority_of_its_own(ledger: Ledger) -> None:
    what = decided(ledger, Decision.RETRY)
    assert ledger.run(verbs.retry, what, OTHER, 4.0) == 2
    first, second = row_of(ledger, what), row_of(ledger, what, 2)
    assert (first.state, first.superseded) == (U, True)
    assert (second.state, second.owner, second.superseded) == (State.DISPATCHED, OTHER, False)
    assert second.authority_kind is AuthorityKind.DECISION
    assert second.authority_ref == f"{what.execution_id}:1:retry"
    with pytest.raises(Refused):
        ledger.run(verbs.retry, what, ME, 5.0)
    assert len(ledger.fetch(rows.attempts(what.execution_id))) == 2
    assert len(told(ledger, "dispatched")) == 2


def test_g1_a_second_retry_says_that_a_later_attempt_is_recorded(ledger: Ledger) -> None:
    """As the docstring has it: a caller must be able to tell this from 'not decided'."""
    what = decided(ledger, Decision.RETRY)
    ledger.run(verbs.retry, what, ME, 4.0)
    with pytest.raises(AlreadyRecorded):
        ledger.run(verbs.retry, what, ME, 5.0)


def test_g5_retry_of_another_intent_is_refused(ledger: Ledger) -> None:
    what = decided(ledger, Decision.RETRY)
    other = what.model_copy(update={"intent_digest": "another"})
    with pytest.raises(Refused, match="another intent"):
        ledger.run(verbs.retry, other, ME, 4.0)
    assert row_of(ledger, what).superseded is False


def test_g3_each_retry_needs_a_decision_of_its_own(ledger: Ledger) -> None:
    what = decided(ledger, Decision.RETRY)
    ledger.run(verbs.retry, what, ME, 4.0)
    ledger.run(verbs.finish, what.execution_id, 2, ME, unknown(), 5.0)
    with pytest.raises(Refused):
        ledger.run(verbs.retry, what, ME, 6.0)
    ledger.run(verbs.decide, what.execution_id, 2, Decision.RETRY, "me", "", 7.0)
    assert ledger.run(verbs.retry, what, ME, 8.0) == 3


def test_rule_1_the_row_of_a_newer_protocol_is_neither_decided_nor_retried(
    ledger: Ledger,
) -> None:
    what = in_state(ledger, U)
    with plain(ledger.path) as conn:
        conn.execute("UPDATE tool_executions SET protocol_version = 99")
    with pytest.raises(Refused, match="newer"):
        ledger.run(verbs.decide, what.execution_id, 1, Decision.RETRY, "me", "", 3.0)
    with plain(ledger.path) as conn:
        conn.execute("UPDATE tool_executions SET decision = 'retry'")
    with pytest.raises(Refused):
        ledger.run(verbs.retry, what, ME, 4.0)
    assert len(ledger.fetch(rows.attempts(what.execution_id))) == 1


# -- vouching
def test_g4_vouch_is_idempotent(ledger: Ledger) -> None:
    what = intent()
    first = ledger.run(verbs.vouch, what, Reason.LEGACY, "", ME, 1.0)
    again = ledger.run(verbs.vouch, what, Reason.CHANGED, "later", OTHER, 2.0)
    assert first == again == row_of(ledger, what)
    assert (first.state, first.reason, first.authority_kind) == (U, "legacy", None)
    assert len(audits(ledger.path)) == 1


def test_vouch_never_touches_a_row_that_is_there(ledger: Ledger) -> None:
    what = started(ledger)
    stood = row_of(ledger, what)
    assert ledger.run(verbs.vouch, what, Reason.LEGACY, "", ME, 2.0) == stood
    assert row_of(ledger, what) == stood


@pytest.mark.parametrize(("state", "failed_there"), [(S, False), (F, True)])
def test_rule_6_8_a_result_in_the_thread_settles_a_dispatched_row(
    ledger: Ledger, state: State, failed_there: bool
) -> None:
    what = started(ledger)
    shot = encode("text\ud800")
    args = (what.execution_id, 1, ME, state, shot, 2.0)
    assert ledger.run(verbs.found_in_thread, *args) is True
    assert ledger.run(verbs.found_in_thread, *args) is False
    row = row_of(ledger, what)
    assert (row.state, row.reason, row.snapshot_digest) == (state, "thread", shot.digest)
    assert ledger.first(rows.stored_snapshot(what.execution_id, 1)) is not None
    assert len(told(ledger, "recovery")) == 1
    stranger = started(ledger, "call_2")
    moved = ledger.run(verbs.found_in_thread, stranger.execution_id, 1, OTHER, state, shot, 2.0)
    assert moved is False
