"""G7, C15: outcomes that could not be written outlive their guard, and are written later."""

from __future__ import annotations

from pathlib import Path

import pytest

from openworker_durable import _db, verbs
from openworker_durable import guard as guards
from openworker_durable.guard import Guard
from openworker_durable.ledger import Ledger
from openworker_durable.models import Outcome
from openworker_durable.snapshot import encode
from openworker_durable.states import Decision, Reason, State
from tests.contract.kit import ME, OTHER, intent, item, locked, row_of, succeeded

THIRD = "owner-third"


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_db, "BUSY_SECONDS", 0.02)


def left_behind(path: Path, outcome: Outcome, call: str = "call_1") -> None:
    """Make one call whose outcome cannot be written before its guard is closed."""
    ledger = Ledger(path)
    guard = Guard(ledger, ME)
    handle = guard.start(intent(call), item())
    guard.dispatch(handle)
    with locked(path):
        guard.finish(handle, outcome)
        guard.close()
    ledger.close()


def test_g7_c15_the_next_owner_writes_what_was_left(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    left_behind(path, succeeded("the result"))
    ledger = Ledger(path)
    after = Guard(ledger, OTHER)
    assert row_of(ledger, intent()).state is State.DISPATCHED
    assert after.adopt() == 1
    row = row_of(ledger, intent())
    assert (row.state, row.owner) == (State.SUCCEEDED, OTHER)
    assert row.snapshot_digest == encode("the result").digest
    assert after.adopt() == 0
    after.close()
    ledger.close()


def test_g9_what_was_found_unknown_meanwhile_is_still_settled_by_its_own_evidence(
    tmp_path: Path,
) -> None:
    path = tmp_path / "l.db"
    left_behind(path, succeeded())
    ledger = Ledger(path)
    ledger.run(verbs.lose, intent().execution_id, 1, ME, Reason.OWNER_DIED, 5.0)
    after = Guard(ledger, OTHER)
    after.adopt()
    row = row_of(ledger, intent())
    assert (row.state, row.reason) == (State.SUCCEEDED, "late")
    after.close()
    ledger.close()


def test_c20_what_was_decided_meanwhile_stays_decided(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    left_behind(path, succeeded())
    ledger = Ledger(path)
    ledger.run(verbs.lose, intent().execution_id, 1, ME, Reason.OWNER_DIED, 5.0)
    ledger.run(verbs.decide, intent().execution_id, 1, Decision.DROP, "p", "", 6.0)
    after = Guard(ledger, OTHER)
    after.adopt()
    row = row_of(ledger, intent())
    assert (row.state, row.decision, row.owner) == (State.FAILED, Decision.DROP, ME)
    assert after.kept(*row.key) is None
    after.close()
    ledger.close()


def test_a_lock_that_stays_hands_it_on_once_more(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    left_behind(path, succeeded())
    ledger = Ledger(path)
    second = Guard(ledger, OTHER)
    with locked(path):
        second.adopt()
        second.close()
    third = Guard(ledger, THIRD)
    assert third.adopt() == 1
    assert (row_of(ledger, intent()).state, row_of(ledger, intent()).owner) == (
        State.SUCCEEDED, THIRD,
    )  # fmt: skip
    third.close()
    ledger.close()


def test_what_is_left_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "KEPT_CHARACTERS", 150)
    path = tmp_path / "l.db"
    for call in ("call_1", "call_2"):
        left_behind(path, succeeded("x" * 100), call)
    ledger = Ledger(path)
    after = Guard(ledger, OTHER)
    assert after.adopt() == 2
    shots = [row_of(ledger, intent(c)).snapshot_digest is not None for c in ("call_1", "call_2")]
    assert shots == [True, False]
    assert row_of(ledger, intent("call_2")).state is State.SUCCEEDED
    after.close()
    ledger.close()
