"""G3: the next attempt by policy, asked once more in the transaction that would start it.

Whoever asks says nothing that counts but which tool it has now and under which policy: attempts,
ages and what was found are those of the rows.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from freezegun import freeze_time

from openworker_durable import finding, verbs
from openworker_durable.clock import now
from openworker_durable.errors import AlreadyDecided, AlreadyRecorded, NotOwner, Refused
from openworker_durable.ledger import Ledger
from openworker_durable.models import Evidence, Intent
from openworker_durable.policy import MANUAL, RecoveryPolicy, idempotent, parse, reconcile
from openworker_durable.states import AuthorityKind, Decision, Reason, State
from tests.contract.kit import ME, OTHER, audits, in_state, plain, row_of, succeeded
from tests.contract.policies import (
    DAY,
    KEYED,
    LOOKED_UP,
    TOOL,
    again,
    attempts,
    ended,
    lost,
    probed,
    under,
)

START = datetime(2026, 3, 29, 0, 30, tzinfo=timezone.utc)
TICK = timedelta(microseconds=1)


def refused(ledger: Ledger, what: Intent, at: float = 2.0) -> None:
    """See that the next attempt is refused and nothing changed."""
    before, told = attempts(ledger, what), len(audits(ledger.path))
    with pytest.raises(Refused) as caught:
        again(ledger, what, at)
    assert type(caught.value) is Refused
    assert caught.value.wanted == "a policy for it"
    assert attempts(ledger, what) == before
    assert len(audits(ledger.path)) == told


# -- allowed, once
def test_g3_a_policy_allows_the_next_attempt_with_the_same_key(ledger: Ledger) -> None:
    what = lost(ledger, under(KEYED))
    assert again(ledger, what, owner=OTHER) == 2
    first, second = attempts(ledger, what)
    assert (first.state, first.decision, first.superseded) == (State.UNKNOWN, None, True)
    assert (second.state, second.owner, second.dispatched_at) == (State.DISPATCHED, OTHER, 2.0)
    assert second.authority_kind is AuthorityKind.POLICY
    assert second.authority_ref == f"{what.execution_id}:1:idempotent"
    assert second.execution_id == first.execution_id, "the key of both"
    assert parse(second.policy) == KEYED
    told = audits(ledger.path)[-1]
    assert (told["stage"], told["status"], told["attempt"]) == ("dispatched", "dispatched", 2)
    assert (told["reason"], told["recovery_decision"]) == ("allowed by policy", None)


def test_g3_a_policy_allows_it_once(ledger: Ledger) -> None:
    what = lost(ledger, under(KEYED))
    again(ledger, what)
    with pytest.raises(AlreadyRecorded, match="attempt 2"):
        again(ledger, what)
    ledger.run(verbs.finish, what.execution_id, 2, ME, succeeded(), 3.0)
    refused(ledger, what)
    assert [r.state for r in attempts(ledger, what)] == [State.UNKNOWN, State.SUCCEEDED]


def test_a_person_who_said_retry_needs_no_policy(ledger: Ledger) -> None:
    what = lost(ledger, under(MANUAL))
    ledger.run(verbs.decide, what.execution_id, 1, Decision.RETRY, "me", "", 2.0)
    refused(ledger, what)
    assert ledger.run(verbs.retry, what, ME, 3.0) == 2
    assert row_of(ledger, what, 2).authority_kind is AuthorityKind.DECISION


def test_g3_a_policy_is_no_decision(ledger: Ledger) -> None:
    """Without the word for it, a policy that would allow an attempt starts none."""
    what = lost(ledger, under(KEYED))
    with pytest.raises(Refused, match="decided retry"):
        ledger.run(verbs.retry, what, ME, 2.0)
    assert len(attempts(ledger, what)) == 1


# -- what the rows say
@pytest.mark.parametrize("most", [2, 3, 5])
def test_g3_no_more_attempts_than_the_policy_has(ledger: Ledger, most: int) -> None:
    what = lost(ledger, under(idempotent(key_valid=DAY, attempts=most)))
    for number in range(2, most + 1):
        assert again(ledger, what) == number
        lost(ledger, what, attempt=number)
    refused(ledger, what)


def test_g3_attempts_that_a_person_wanted_count_as_well(ledger: Ledger) -> None:
    what = lost(ledger, under(idempotent(key_valid=DAY, attempts=2)))
    ledger.run(verbs.decide, what.execution_id, 1, Decision.RETRY, "me", "", 2.0)
    ledger.run(verbs.retry, what, ME, 3.0)
    lost(ledger, what, attempt=2)
    refused(ledger, what)


@pytest.mark.parametrize(
    ("age", "usable"),
    [
        (timedelta(seconds=DAY - 60) - TICK, True),
        (timedelta(seconds=DAY - 60), False),
        (timedelta(seconds=DAY - 60) + TICK, False),
        (timedelta(0), True),
        (-TICK, False),
    ],
)
def test_g3_the_age_of_the_key_is_that_of_the_first_dispatch_on_record(
    ledger: Ledger, age: timedelta, usable: bool
) -> None:
    """The second attempt is young; the first one's row says how old the key is."""
    what = under(idempotent(key_valid=DAY, attempts=9))
    with freeze_time(START):
        lost(ledger, what, now())
        again(ledger, what, now())
        lost(ledger, what, now(), attempt=2)
    with plain(ledger.path) as conn:
        conn.execute("UPDATE tool_executions SET dispatched_at = 1 WHERE attempt = 2")
    with freeze_time(START + age):
        if usable:
            assert again(ledger, what, now()) == 3
        else:
            refused(ledger, what, now())


def test_g3_an_expired_key_does_not_become_young_by_a_second_attempt(ledger: Ledger) -> None:
    what = lost(ledger, under(idempotent(key_valid=DAY, attempts=9)), 0.0)
    again(ledger, what, DAY - 61)
    lost(ledger, what, DAY - 61, attempt=2)
    refused(ledger, what, DAY - 60)


# -- the stricter of then and now
@pytest.mark.parametrize(
    ("then", "after"),
    [
        (MANUAL, KEYED),
        (KEYED, MANUAL),
        (reconcile(), KEYED),
        (KEYED, reconcile()),
        (idempotent(key_valid=11.0), KEYED),
        (KEYED, idempotent(key_valid=11.0)),
        (LOOKED_UP, KEYED),
        (KEYED, LOOKED_UP),
    ],
    ids=str,
)
def test_g3_c16_the_stricter_of_the_policy_then_and_now_counts(
    ledger: Ledger, then: RecoveryPolicy, after: RecoveryPolicy
) -> None:
    lost(ledger, under(then))
    refused(ledger, under(after), at=20.0)


@pytest.mark.parametrize("swapped", [False, True])
def test_g3_the_fewer_attempts_count(ledger: Ledger, swapped: bool) -> None:
    two, nine = (idempotent(key_valid=DAY, attempts=n) for n in (2, 9))
    then, after = (nine, two) if swapped else (two, nine)
    lost(ledger, under(then))
    assert again(ledger, under(after)) == 2
    lost(ledger, under(then), attempt=2)
    with plain(ledger.path) as conn:
        conn.execute("UPDATE tool_executions SET policy = ?", (str(then),))
    refused(ledger, under(after))


@pytest.mark.parametrize("text", ["", "later", "idempotent", "idempotent key_valid=nan attempts=9"])
def test_g3_a_policy_that_cannot_be_read_allows_nothing(ledger: Ledger, text: str) -> None:
    lost(ledger, under(KEYED))
    refused(ledger, under(KEYED).model_copy(update={"policy": text}))
    with plain(ledger.path) as conn:
        conn.execute("UPDATE tool_executions SET policy = ?", (text,))
    refused(ledger, under(KEYED))


# -- another tool, another call
@pytest.mark.parametrize("field", ["source", "name", "version", "schema_digest", "account"])
def test_g3_c15_another_tool_is_not_the_one_that_was_called(ledger: Ledger, field: str) -> None:
    lost(ledger, under(KEYED))
    other = TOOL.model_copy(update={field: "other"})
    refused(ledger, under(KEYED, tool=other))
    assert again(ledger, under(KEYED)) == 2


def test_g5_other_arguments_are_another_call(ledger: Ledger) -> None:
    lost(ledger, under(KEYED))
    with pytest.raises(Refused, match="another intent"):
        again(ledger, under(KEYED, amount=11))
    assert len(attempts(ledger, under(KEYED))) == 1


# -- what no policy touches
@pytest.mark.parametrize("state", [State.DISPATCHED, State.SUCCEEDED, State.FAILED])
def test_g2_g9_only_an_unknown_attempt_is_followed_by_another(ledger: Ledger, state: State) -> None:
    what = in_state(ledger, state, policy=str(KEYED))
    refused(ledger, what)


def test_g3_without_any_row_there_is_nothing_to_repeat(ledger: Ledger) -> None:
    ledger.run(verbs.note, "s", "t", "stage", "status", "so that the tables are there")
    refused(ledger, under(KEYED))


@pytest.mark.parametrize("decision", [Decision.HAPPENED, Decision.DROP, Decision.RETRY])
def test_g3_what_a_person_decided_is_no_policys_matter(ledger: Ledger, decision: Decision) -> None:
    what = lost(ledger, under(KEYED))
    ledger.run(verbs.decide, what.execution_id, 1, decision, "me", "", 2.0)
    refused(ledger, what)


@pytest.mark.parametrize("reason", [Reason.LEGACY, Reason.CHANGED, Reason.LOST_THREAD])
def test_g4_a_call_that_recovery_cannot_vouch_for_is_never_repeated_by_policy(
    ledger: Ledger, reason: Reason
) -> None:
    what = under(KEYED)
    ledger.run(verbs.vouch, what, reason, "", ME, 1.0)
    refused(ledger, what)


def test_rule_1_a_newer_protocols_row_is_never_repeated(ledger: Ledger) -> None:
    what = lost(ledger, under(KEYED))
    with plain(ledger.path) as conn:
        conn.execute("UPDATE tool_executions SET protocol_version = 99")
    refused(ledger, what)


# -- lookups first
def test_g3_while_it_is_looked_up_nothing_is_repeated(ledger: Ledger) -> None:
    what = lost(ledger, under(LOOKED_UP))
    refused(ledger, what)
    ledger.run(finding.schedule_probe, what.execution_id, 1, 3.0)
    refused(ledger, what)
    ledger.run(finding.begin_probe, what.execution_id, 1, 0, 9.0)
    refused(ledger, what)
    ledger.run(finding.end_probe, what.execution_id, 1, 1, "cannot_tell", "", None)
    assert again(ledger, what) == 2
    assert row_of(ledger, what, 2).authority_ref.endswith(":1:reconcile")


def test_g3_the_next_attempt_is_looked_up_anew(ledger: Ledger) -> None:
    what = probed(ledger)
    ledger.run(finding.end_probe, what.execution_id, 1, 1, "cannot_tell", "", None)
    again(ledger, what)
    second = row_of(ledger, what, 2)
    assert (second.probes, second.probe_at, second.found) == (0, None, "")
    lost(ledger, what, attempt=2)
    refused(ledger, what)


@pytest.mark.parametrize(("most", "allowed"), [(1, False), (2, True)])
def test_g3_what_was_proved_absent_is_made_again_where_the_policy_has_attempts(
    ledger: Ledger, most: int, allowed: bool
) -> None:
    what = lost(ledger, under(reconcile(attempts=most)))
    ledger.run(finding.schedule_probe, what.execution_id, 1, 3.0)
    ledger.run(finding.begin_probe, what.execution_id, 1, 0, 9.0)
    assert ledger.run(finding.found_absent, what.execution_id, 1, 1)
    if allowed:
        assert again(ledger, what, at=99 * DAY) == 2, "no key has to be valid for that"
    else:
        refused(ledger, what)


# -- the attempt that was left behind
@pytest.mark.parametrize("decision", [Decision.HAPPENED, Decision.DROP, Decision.RETRY])
def test_g3_the_superseded_attempt_cannot_be_decided_any_more(
    ledger: Ledger, decision: Decision
) -> None:
    what = lost(ledger, under(KEYED))
    again(ledger, what)
    before = attempts(ledger, what)
    with pytest.raises(AlreadyDecided):
        ledger.run(verbs.decide, what.execution_id, 1, decision, "me", "", 3.0)
    assert attempts(ledger, what) == before


def test_g3_nothing_else_moves_the_superseded_attempt(ledger: Ledger) -> None:
    what = probed(ledger)
    ledger.run(finding.end_probe, what.execution_id, 1, 1, "cannot_tell", "", None)
    again(ledger, what)
    before = attempts(ledger, what)
    one = (what.execution_id, 1)
    word = Evidence(source="ops", event="e1", outcome=ended())
    with pytest.raises(AlreadyDecided):
        ledger.run(finding.give_evidence, *one, word, 4.0)
    assert ledger.run(verbs.finish, *one, ME, succeeded(), 4.0) is State.UNKNOWN
    assert not ledger.run(finding.found_out, *one, 1, ended(), "happened", 4.0)
    assert not ledger.run(finding.schedule_probe, *one, 4.0)
    assert not ledger.run(finding.begin_probe, *one, 1, 4.0)
    assert not ledger.run(finding.end_probe, *one, 1, "cannot_tell", "", 4.0)
    assert not ledger.run(finding.end_probes, *one, "why")
    assert not ledger.run(finding.rebind, *one, ME, OTHER)
    assert attempts(ledger, what) == before


def test_g9_only_the_owner_of_the_next_attempt_finishes_it(ledger: Ledger) -> None:
    what = lost(ledger, under(KEYED))
    again(ledger, what, owner=OTHER)
    with pytest.raises(NotOwner):
        ledger.run(verbs.finish, what.execution_id, 2, ME, succeeded(), 3.0)
    assert row_of(ledger, what, 2).state is State.DISPATCHED
