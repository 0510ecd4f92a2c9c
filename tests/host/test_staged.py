"""Staged use: start, dispatch with a one-time handle, later the outcome."""

from __future__ import annotations

from pathlib import Path

import pytest

from openworker_durable import Authority, AuthorityKind, Outcome, Reason, State, record_in, rows
from openworker_durable.errors import AlreadyRecorded, HandleSpent
from openworker_durable.ledger import Ledger

PROMPT = Authority(kind=AuthorityKind.PROMPT)
DONE = Outcome(state=State.SUCCEEDED, reason=Reason.RETURNED)


def test_g1_a_second_start_gives_no_handle(tmp_path: Path) -> None:
    with record_in(tmp_path) as guard:
        intent = guard.intent("s", "c1", "send", {"to": "ann"})
        handle = guard.start(intent, PROMPT)
        with pytest.raises(AlreadyRecorded):
            guard.start(intent, PROMPT)
        assert guard.dispatch(handle) == 1
        with pytest.raises(HandleSpent):
            guard.dispatch(handle)
        assert guard.finish(handle, DONE) is State.SUCCEEDED
        with pytest.raises(HandleSpent):
            guard.finish(handle, DONE)
        with pytest.raises(AlreadyRecorded):
            guard.start(guard.intent("s", "c1", "send", {"to": "ann"}), PROMPT)


def test_an_unfinished_attempt_stays_dispatched_for_recovery(tmp_path: Path) -> None:
    with record_in(tmp_path) as guard:
        guard.dispatch(guard.start(guard.intent("s", "c1", "send", {}), PROMPT))
    ledger = Ledger(tmp_path / "coworker.db")
    assert [r.state for r in ledger.fetch(rows.open_all())] == [State.DISPATCHED]
    ledger.close()
    with record_in(tmp_path) as again, pytest.raises(AlreadyRecorded):
        again.start(again.intent("s", "c1", "send", {}), PROMPT)
