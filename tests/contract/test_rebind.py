"""C15: an attempt whose owner is gone goes to the life that holds its evidence, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from openworker_durable import finding, verbs
from openworker_durable.errors import NotOwner, Refused
from openworker_durable.ledger import Ledger
from openworker_durable.models import Intent
from openworker_durable.states import Decision, State
from tests.contract.kit import (
    ME,
    OTHER,
    audits,
    decided,
    in_state,
    intent,
    row_of,
    started,
    succeeded,
)
from tests.contract.policies import KEYED, again, lost, under

THIRD = "owner-third"


def rebind(ledger: Ledger, what: Intent, before: str = ME, owner: str = OTHER) -> bool:
    return ledger.run(finding.rebind, what.execution_id, 1, before, owner)


@pytest.mark.parametrize("state", [State.DISPATCHED, State.UNKNOWN])
def test_c15_an_open_attempt_gets_its_new_owner_and_nothing_else(
    ledger: Ledger, state: State
) -> None:
    what = in_state(ledger, state)
    before = row_of(ledger, what)
    assert rebind(ledger, what) is True
    assert row_of(ledger, what) == before.model_copy(update={"owner": OTHER})
    told = audits(ledger.path)[-1]
    assert (told["stage"], told["status"], told["attempt"]) == ("recovery", "rebound", 1)
    with pytest.raises(NotOwner):
        ledger.run(verbs.finish, what.execution_id, 1, ME, succeeded(), 5.0)
    ended = ledger.run(verbs.finish, what.execution_id, 1, OTHER, succeeded(), 5.0)
    assert ended is State.SUCCEEDED


def test_g9_of_two_lives_at_once_exactly_one_gets_it(ledger: Ledger, path: Path) -> None:
    other = Ledger(path)
    try:
        for number in range(30):
            what = started(ledger, f"c{number}")
            futures = [
                led.submit(finding.rebind, what.execution_id, 1, ME, who)
                for led, who in ((ledger, OTHER), (other, THIRD))
            ]
            won = [f.result() for f in futures]
            assert sorted(won) == [False, True]
            assert row_of(ledger, what).owner == (OTHER if won[0] else THIRD)
    finally:
        other.close()
    assert [a["status"] for a in audits(path)].count("rebound") == 30


def test_g9_somebody_elses_attempt_is_not_given_away(ledger: Ledger) -> None:
    what = started(ledger, owner=THIRD)
    assert rebind(ledger, what, ME, OTHER) is False
    assert row_of(ledger, what).owner == THIRD


def test_g9_an_owner_takes_nothing_from_itself(ledger: Ledger) -> None:
    what = started(ledger)
    with pytest.raises(NotOwner):
        rebind(ledger, what, ME, ME)
    with pytest.raises(Refused):
        rebind(ledger, intent("none"))
    assert row_of(ledger, what).owner == ME


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED])
def test_what_is_known_keeps_its_owner(ledger: Ledger, state: State) -> None:
    what = in_state(ledger, state)
    assert rebind(ledger, what) is False
    assert row_of(ledger, what).owner == ME


@pytest.mark.parametrize("decision", [Decision.HAPPENED, Decision.DROP, Decision.RETRY])
def test_c20_what_is_decided_keeps_its_owner(ledger: Ledger, decision: Decision) -> None:
    what = decided(ledger, decision)
    count = len(audits(ledger.path))
    assert rebind(ledger, what) is False
    assert row_of(ledger, what).owner == ME
    assert len(audits(ledger.path)) == count


def test_a_superseded_attempt_keeps_its_owner(ledger: Ledger) -> None:
    what = lost(ledger, under(KEYED))
    again(ledger, what)
    assert rebind(ledger, what) is False
    assert row_of(ledger, what).owner == ME
