"""G7: an outcome that cannot be written is kept, bounded, and the write is tried again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from openworker_durable import guard as guard_module
from openworker_durable import rows
from openworker_durable.errors import LedgerError, LedgerUnavailable
from openworker_durable.guard import Guard, run_protected
from openworker_durable.ledger import Ledger
from openworker_durable.models import Outcome
from openworker_durable.snapshot import Snapshot, encode
from openworker_durable.states import Reason, State
from tests.contract.kit import ME, audits, failed, intent, item, row_of, succeeded, table


class Toggle(Ledger):
    """A real ledger whose writes can be made to fail, as on a full disk."""

    up = True
    tried = 0
    wrote: threading.Event

    def submit(self, verb: Any, *args: Any, **kwargs: Any) -> Future[Any]:
        self.tried += 1
        if not self.up:
            raise LedgerUnavailable("the record cannot be used now (disk full)")
        future = super().submit(verb, *args, **kwargs)
        future.add_done_callback(lambda _: self.wrote.set())
        return future


@pytest.fixture
def toggle(path: Any) -> Iterator[Toggle]:
    ledger = Toggle(path)
    ledger.wrote = threading.Event()
    yield ledger
    ledger.close()


@pytest.fixture
def guard(toggle: Toggle) -> Iterator[Guard]:
    guard = Guard(toggle, ME)
    guard._stop.set()  # no thread of its own writes again, unless a test wants it
    yield guard
    guard.close()


def call(guard: Guard, toggle: Toggle, result: Any = "done", name: str = "call_1") -> Any:
    """Make a call during which the disk fills up."""
    toggle.up = True
    handle = guard.start(intent(name), item())

    def effect() -> Any:
        toggle.up = False
        return result

    return run_protected(guard, handle, effect, succeeded, lambda _: failed())


def test_g7_c16_the_result_is_given_and_the_outcome_kept(
    guard: Guard, toggle: Toggle, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    assert call(guard, toggle, "canary") == "canary"
    kept = guard.kept(intent().execution_id, 1)
    assert kept is not None
    assert kept.snapshot == Snapshot("canary")
    assert row_of(toggle, intent()).state is State.DISPATCHED
    assert guard.running(intent().execution_id, 1) is None, "it no longer runs (rule 6)"
    assert "canary" not in caplog.text


def test_g7_c15_the_write_is_tried_again_and_the_call_is_not(guard: Guard, toggle: Toggle) -> None:
    call(guard, toggle)
    assert guard.commit_kept() is False
    toggle.up = True
    assert guard.commit_kept() is True
    assert row_of(toggle, intent()).state is State.SUCCEEDED
    assert guard.kept(intent().execution_id, 1) is None
    assert guard.commit_kept() is True
    assert [x["stage"] for x in audits(toggle.path)] == ["dispatched", "outcome"]


def test_g7_it_heals_by_itself(toggle: Toggle) -> None:
    guard = Guard(toggle, ME)
    call(guard, toggle)
    again = guard._writing_again
    assert again is not None
    toggle.up = True
    again.join(20)
    assert row_of(toggle, intent()).state is State.SUCCEEDED
    guard.close()


def test_g7_close_tries_once_more(toggle: Toggle) -> None:
    guard = Guard(toggle, ME)
    guard._stop.set()
    call(guard, toggle)
    toggle.up = True
    guard.close()
    assert row_of(toggle, intent()).state is State.SUCCEEDED


def test_g7_what_is_kept_is_bounded(
    guard: Guard, toggle: Toggle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_module, "KEPT_CHARACTERS", 100)
    for name in ("c1", "c2", "c3"):
        call(guard, toggle, "x" * 60, name)
    kept = [guard.kept(intent(name).execution_id, 1) for name in ("c1", "c2", "c3")]
    assert [k.snapshot is not None for k in kept if k] == [True, False, False]
    assert [k.state for k in kept if k] == [State.SUCCEEDED] * 3
    toggle.up = True
    assert guard.commit_kept()
    assert {row["state"] for row in table(toggle.path, "tool_executions")} == {"succeeded"}


def test_g7_displays_count_towards_the_bound(
    guard: Guard, toggle: Toggle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A display card may be far larger than the text beside it."""
    monkeypatch.setattr(guard_module, "KEPT_CHARACTERS", 1000)
    for name in ("c1", "c2", "c3"):
        call(guard, toggle, {"ok": 1, "_display": {"image": "x" * 600}}, name)
    kept = [guard.kept(intent(name).execution_id, 1) for name in ("c1", "c2", "c3")]
    shots = [k.snapshot for k in kept if k and k.snapshot]
    assert sum(len(s.text) + len(s.display or "") for s in shots) <= 1000


def test_g7_one_kept_outcome_that_is_refused_does_not_hold_up_the_others(
    guard: Guard, toggle: Toggle
) -> None:
    call(guard, toggle, name="c1")
    call(guard, toggle, name="c2")
    from tests.contract.kit import plain

    with plain(toggle.path) as conn:
        conn.execute("UPDATE tool_executions SET owner = 'other' WHERE tool_call_id = 'c1'")
    toggle.up = True
    assert guard.commit_kept() is True
    assert row_of(toggle, intent("c1")).state is State.DISPATCHED
    assert row_of(toggle, intent("c2")).state is State.SUCCEEDED


def test_c11_g7_no_detail_of_an_outcome_comes_out_as_an_error_of_the_call(
    guard: Guard, toggle: Toggle
) -> None:
    """Finishing never raises what is no error of the record's; the attempt is settled."""
    handle = guard.start(intent(), item())
    guard.dispatch(handle)
    odd = Outcome(
        state=State.SUCCEEDED, reason=Reason.RETURNED, snapshot=encode("x"), detail="\ud800"
    )
    assert guard.finish(handle, odd) is State.SUCCEEDED
    assert row_of(toggle, intent()).state is State.SUCCEEDED


def test_rule_2_an_error_of_the_record_is_never_the_tools(guard: Guard, toggle: Toggle) -> None:
    toggle.up = False
    handle = guard.start(intent(), item())
    with pytest.raises(LedgerError):
        guard.dispatch(handle)
    assert toggle.known(rows.attempts(intent().execution_id)) == []
